"""Sets of image files: decode, resize the shorter side, crop the centre."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from farout.data.arrays import checked, labels_at
from farout.errors import ConfigError, DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 89_478_485  # Pillow's own limit, kept here because a program may have lifted Pillow's

Size = int | tuple[int, int]
"""Pixels a side: one number, or (the resized shorter side, the crop), e.g. (256, 224)."""


class ImageFiles:
    """The images `files`, paths below `root`, as RGB (3, size, size): shorter side resized, centre cropped.

    `corrupt` says what to do with an image that cannot be decoded: "raise" a DataError when it is read, or
    "skip" it: decode all once now, leave the bad ones out, list them in `skipped` and warn.
    """

    def __init__(
        self,
        name: str,
        root: Path | str,
        files: Sequence[str],
        labels: Sequence[int] | None = None,
        classes: Sequence[str] = (),
        size: Size = 32,
        corrupt: str = "raise",
    ) -> None:
        if corrupt not in ("raise", "skip"):
            raise ConfigError(f"corrupt={corrupt!r} is not known; use 'raise' or 'skip'")
        if not files:
            raise DataError(f"{name}: no images ({', '.join(EXTENSIONS)}) under {root}")
        self.name = name
        self.root = Path(root)
        self.classes = tuple(classes)
        self.resize, self.crop = _sides(size)
        # One array of bytes: reference counts would copy a list of millions of strings into every worker.
        self._files = np.array([os.fsencode(file) for file in files])
        self._labels = None if labels is None else torch.tensor(labels, dtype=torch.int64)
        self.skipped: tuple[str, ...] = ()
        if corrupt == "skip":
            self._skip(self.damaged())

    @property
    def labels(self) -> Tensor | None:
        return self._labels

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.crop, self.crop

    def __len__(self) -> int:
        return len(self._files)

    def file(self, index: int) -> Path:
        """The path of sample `index`."""
        return self.root / os.fsdecode(self._files[index])

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        rows = checked(indices, len(self), self.name)
        images = torch.empty((len(rows), *self.shape), dtype=torch.uint8)
        for place, row in enumerate(rows.tolist()):
            images[place] = decode(self.file(row), self.resize, self.crop)
        return images, labels_at(self._labels, rows)

    def damaged(self) -> list[int]:
        """The numbers of the images that cannot be decoded; tries every one."""
        return [index for index in range(len(self)) if not self._decodes(index)]

    def _decodes(self, index: int) -> bool:
        try:
            decode(self.file(index), self.resize, self.crop)
        except DataError:
            return False
        return True

    def _skip(self, bad: list[int]) -> None:
        if not bad:
            return
        self.skipped = tuple(str(self.file(index)) for index in bad)
        first = ", ".join(self.skipped[:5]) + (", ..." if len(bad) > 5 else "")
        if len(bad) == len(self):
            raise DataError(f"{self.name}: none of the {len(bad)} images under {self.root} can be decoded: {first}")
        warnings.warn(f"{self.name}: skipped {len(bad)} damaged image(s): {first}", stacklevel=4)
        keep = np.setdiff1d(np.arange(len(self)), bad)
        self._files = self._files[keep]
        if self._labels is not None:
            self._labels = self._labels[keep]


def decode(path: Path, resize: int, crop: int) -> Tensor:
    """The centre, RGB (3, crop, crop), of the image at `path`, its shorter side resized (bilinear, antialiased)."""
    from PIL import Image  # not needed by those who bring arrays

    try:
        with Image.open(path, formats=FORMATS) as picture:
            width, height = _resized(path, picture.size, resize)
            scaled = picture.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    except DataError:
        raise
    except Exception as error:  # damaged bytes raise many kinds: OSError, SyntaxError, MemoryError, ...
        raise DataError(
            f"image {path} cannot be decoded: {type(error).__name__}: {error}; remove it, or open the set"
            " with corrupt='skip'"
        ) from error
    left, top = round((width - crop) / 2), round((height - crop) / 2)
    pixels = np.array(scaled.crop((left, top, left + crop, top + crop)))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _resized(path: Path, size: tuple[int, int], resize: int) -> tuple[int, int]:
    """Width and height once the shorter side is `resize`; refuses what would fill memory, before or after."""
    short, long = min(size), max(size)
    scaled = int(resize * long / short)
    if short * long > MAX_PIXELS or resize * scaled > MAX_PIXELS:
        raise DataError(
            f"image {path} is {size[0]} x {size[1]}, more than {MAX_PIXELS:,} pixels here or once resized to"
            f" {resize}: refused as a decompression bomb; remove it, or open the set with corrupt='skip'"
        )
    return (resize, scaled) if size[0] <= size[1] else (scaled, resize)


def _sides(size: Size) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else tuple(size)  # a recipe gives a list
    if len(sides) != 2 or not 0 < sides[1] <= sides[0]:
        raise ConfigError(f"size={size!r} is not a crop inside a resized image; use e.g. 32 or (256, 224)")
    return sides
