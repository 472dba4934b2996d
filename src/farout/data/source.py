"""What a data set and a source of batches look like to the rest of the house."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor


class ImageSet(Protocol):
    """A finite set of samples that are read by number; images are uint8 (C, H, W), embeddings float (D,).

    `labels` is (N,) int64, or None where the set has none (outliers); `classes` names them, () when unknown.
    """

    name: str
    classes: tuple[str, ...]

    @property
    def labels(self) -> Tensor | None: ...

    def __len__(self) -> int: ...

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The samples (B, C, H, W) and labels (B,) at `indices`; the label is -1 where none is known."""
        ...


class Source(Protocol):
    """Turns lists of indices into batches on the training device."""

    set: ImageSet

    def batches(self, indices: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]: ...
