"""One signature over all readers: a path and a request in, a set out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from farout.data.arrays import read_arrays
from farout.data.cifar import read_cifar10, read_cifar100
from farout.data.folders import FolderSet
from farout.data.image_files import Size
from farout.data.image_lists import read_list
from farout.data.source import ImageSet
from farout.data.svhn import read_svhn
from farout.data.tiny_images import read_tiny_images
from farout.data.wordnet import read_wordnet_folders


@dataclass(frozen=True)
class Request:
    """How a set is to be opened once its path is known; `classes` names the labels of arrays that do not."""

    name: str
    root: Path
    split: str = "train"
    size: Size = 32
    corrupt: str = "raise"
    classes: tuple[str, ...] = ()


Reader = Callable[[Path, Request], ImageSet]


def arrays(path: Path, request: Request) -> ImageSet:
    return read_arrays(path, request.name, request.classes)


def folder(path: Path, request: Request) -> ImageSet:
    return FolderSet(request.name, path, request.size, request.corrupt)


def wordnet(path: Path, request: Request) -> ImageSet:
    return read_wordnet_folders(path, request.name, request.size, request.corrupt)


def tiny_images(path: Path, request: Request) -> ImageSet:
    return read_tiny_images(path, request.name)


def image_list(path: Path, request: Request) -> ImageSet:
    return read_list(path, request.root, request.name, request.size, request.corrupt)


def cifar10(path: Path, request: Request) -> ImageSet:
    """The public batches, or OpenOOD's folder of class folders."""
    if path.name.startswith("cifar-10-"):
        return read_cifar10(path, request.split, request.name)
    return folder(path, request)


def cifar100(path: Path, request: Request) -> ImageSet:
    """The public files, or OpenOOD's folder of class folders."""
    if path.name.startswith("cifar-100-"):
        return read_cifar100(path, request.split, request.name)
    return folder(path, request)


def svhn(path: Path, request: Request) -> ImageSet:
    """A public `.mat` file, or OpenOOD's folder of images."""
    return read_svhn(path, request.name) if path.suffix == ".mat" else folder(path, request)


BY_SUFFIX: Mapping[str, Reader] = {
    ".npy": arrays,
    ".npz": arrays,
    ".bin": tiny_images,
    ".mat": svhn,
    ".txt": image_list,
}
