"""What a user has, as a set: a set already, a tensor or array of samples, or a pair (samples, labels)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from farout.data.arrays import ArraySet
from farout.data.source import ImageSet
from farout.errors import DataError


class DatasetSet:
    """A map-style torch Dataset of (image, label) as a set; items are read one by one and stacked."""

    def __init__(self, dataset: "Dataset[Any]", name: str) -> None:
        self.dataset = dataset
        self.name = name
        self.classes = tuple(map(str, getattr(dataset, "classes", ())))
        targets = getattr(dataset, "targets", None)
        self._labels = None if targets is None else torch.as_tensor(targets).long()

    @property
    def labels(self) -> Tensor | None:
        return self._labels

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        items = [self.dataset[index] for index in indices.tolist()]
        pairs = [item if isinstance(item, (tuple, list)) else (item, -1) for item in items]
        x = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
        return x, torch.tensor([int(pair[1]) for pair in pairs])


def as_set(data: Any, name: str = "data") -> ImageSet:
    """`data` as an ImageSet."""
    if hasattr(data, "read") and hasattr(data, "labels") and hasattr(data, "classes"):
        known: ImageSet = data
        return known
    if isinstance(data, (Tensor, np.ndarray)):
        return ArraySet(name, data)
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], (Tensor, np.ndarray)):
        return ArraySet(name, data[0], data[1])
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return DatasetSet(data, name)
    raise DataError(
        f"cannot read samples from a {type(data).__name__}; give a set, a tensor or array, a pair (samples, labels), "
        "or a map-style torch Dataset"
    )
