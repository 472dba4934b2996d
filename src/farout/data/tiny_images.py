"""80 Million Tiny Images: one file of 3,072 bytes an image, less those that are CIFAR's."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from farout.data.arrays import Array, Mapped, checked, labels_at
from farout.errors import DataError

PIXELS = 3 * 32 * 32
EXCLUSION_LIST = "80mn_cifar_idxs.txt"


class TinyImages:
    """`tiny_images.bin`, memory-mapped, without the images listed in `exclude` (numbers from 1, one a line).

    Sample i is the i-th image that stays: with the excluded e_0 < e_1 < ... (from 0), e_k has e_k − k kept
    images before it, so i lies at i + #{k : e_k − k ≤ i}. Nothing the size of the file is held in memory.
    """

    classes: tuple[str, ...] = ()
    labels: Tensor | None = None

    def __init__(self, path: Path | str, exclude: Path | str | None = None, name: str = "tiny-images") -> None:
        self.name = name
        self.path = Path(path)
        stored = _stored(self.path)
        excluded = np.empty(0, np.int64) if exclude is None else _read_exclusions(Path(exclude), stored)
        self._count = stored - len(excluded)
        if self._count == 0:
            raise DataError(f"{exclude} excludes all {stored} images of {self.path}")
        self._kept_before = excluded - np.arange(len(excluded))
        self._rows = Mapped(partial(np.memmap, self.path, dtype=np.uint8, mode="r", shape=(stored, PIXELS)))

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        rows = checked(indices, len(self), self.name)
        stored = rows.numpy() + np.searchsorted(self._kept_before, rows.numpy(), side="right")
        # Each channel is a plane stored column by column, hence the swap of the last two axes.
        planes = torch.from_numpy(self._rows[stored]).view(-1, 3, 32, 32)
        return planes.transpose(2, 3).contiguous(), labels_at(None, rows)


def read_tiny_images(path: Path, name: str = "tiny-images") -> TinyImages:
    """`TinyImages` less the CIFAR images that `80mn_cifar_idxs.txt` beside the file lists."""
    exclude = path.parent / EXCLUSION_LIST
    if not exclude.is_file():
        raise DataError(
            f"{path} holds the CIFAR images too, and {exclude}, which says which, is missing; put it there"
            " (it comes with the Outlier Exposure release), or use TinyImages(path) to read them all"
        )
    return TinyImages(path, exclude, name)


def _stored(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path} is missing; 80 Million Tiny Images is one file, tiny_images.bin")
    size = path.stat().st_size
    if size == 0 or size % PIXELS:
        raise DataError(
            f"{path} is damaged: {size:,} bytes found, expected a whole number of {PIXELS:,}-byte images"
            " (243,615,796,224 bytes for all 79,302,017)"
        )
    return size // PIXELS


def _read_exclusions(path: Path, stored: int) -> Array:
    """The excluded image numbers from 0, sorted, each once."""
    try:
        numbers = np.unique(np.array(path.read_text(encoding="ascii").split(), dtype=np.int64))
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path} is not a list of image numbers, one a line: {error}") from error
    if len(numbers) and not 1 <= numbers[0] <= numbers[-1] <= stored:
        raise DataError(
            f"{path} lists images {numbers[0]} .. {numbers[-1]}, but the image file has 1 .. {stored};"
            " the two do not belong together"
        )
    return numbers - 1
