"""Data sets, auxiliary outliers and the batches made of them."""

from farout.data.arrays import ArraySet, Subset, read_arrays
from farout.data.folders import FolderSet
from farout.data.image_lists import read_list
from farout.data.outliers import auxiliary, overlapping_classes, without_classes
from farout.data.sets import SETS, Report, SetInfo, check_set, open_set
from farout.data.source import ImageSet, Source
from farout.data.tiny_images import TinyImages

__all__ = [
    "SETS",
    "ArraySet",
    "FolderSet",
    "ImageSet",
    "Report",
    "SetInfo",
    "Source",
    "Subset",
    "TinyImages",
    "auxiliary",
    "check_set",
    "open_set",
    "overlapping_classes",
    "read_arrays",
    "read_list",
    "without_classes",
]
