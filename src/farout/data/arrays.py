"""Sets that are one array: in memory, or memory-mapped from a `.npy` file."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from farout.data.source import ImageSet
from farout.errors import DataError

Array = npt.NDArray[Any]

IMAGE_KEYS = ("images", "x", "data", "arr_0")
LABEL_KEYS = ("labels", "y")

MAX_CLASSES = 1_000_000  # a larger number is no class but damage, and K logits must fit into memory
# A packed file may unfold to this many bytes, or to this many times its size: more is taken for a trap.
MAX_UNFOLDED, MAX_RATIO = 256 * 2**20, 200


class Mapped:
    """An array on disk, mapped on first use in each process; pickled as the way to open it, not as its bytes.

    A memory map has no file offset, so forked workers cannot disturb each other's reads.
    """

    def __init__(self, opener: Callable[[], Array]) -> None:
        self.opener = opener
        self._array: Array | None = None

    @property
    def array(self) -> Array:
        if self._array is None:
            self._array = self.opener()
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __getitem__(self, rows: Array) -> Array:
        array = self.array
        if isinstance(array, np.memmap) and array.flags.c_contiguous and array.ndim > 1:
            return _read_rows(array, np.asarray(rows))
        return np.asarray(array[rows])

    def __getstate__(self) -> dict[str, Any]:
        return {"opener": self.opener, "_array": None}


def _read_rows(array: np.memmap[Any, Any], rows: Array) -> Array:
    """Rows of a mapped file, read and not mapped: a page that was touched counts as this process's memory as long as
    it runs, and one that a shortened file no longer has would end it without a word."""
    chosen = np.empty((len(rows), *array.shape[1:]), array.dtype)
    size = array[:1].nbytes
    together = len(rows) > 1 and bool((np.diff(rows) == 1).all())
    parts = [(rows[0], chosen)] if together else list(zip(rows.tolist(), chosen, strict=True))
    file = os.open(array.filename, os.O_RDONLY)  # type: ignore[arg-type]
    try:
        if not together and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # what lies around a random row is not needed
        for row, part in parts:
            if part.nbytes and os.preadv(file, [part.data], array.offset + int(row) * size) != part.nbytes:
                raise DataError(f"{array.filename} is shorter than when it was opened; row {row} is gone")
    finally:
        os.close(file)
    return chosen


class ArraySet:
    """N samples of one array: uint8 tensor (N, C, H, W), uint8 numpy (N, H, W, C) or float (N, D) embeddings.

    Numpy images are turned to (C, H, W) batch by batch, so a memory-mapped file is never copied whole;
    embeddings are read as float32. `labels` are integers (N,), with -1 for "none known".
    """

    def __init__(
        self,
        name: str,
        images: Tensor | Array | Mapped,
        labels: Tensor | Array | Sequence[int] | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        _check_images(name, images)
        self.name = name
        self.classes = tuple(classes)
        self.images = images
        self._labels = None if labels is None else _checked_labels(name, labels, len(self), self.classes)

    @property
    def labels(self) -> Tensor | None:
        return self._labels

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        rows = checked(indices, len(self), self.name)
        return self._samples(rows), labels_at(self._labels, rows)

    def _samples(self, rows: Tensor) -> Tensor:
        if isinstance(self.images, Tensor):
            samples = self.images[rows]
            return samples if samples.dtype == torch.uint8 else samples.float()
        batch = np.asarray(self.images[rows.numpy()])
        if batch.dtype != np.uint8:
            return torch.from_numpy(batch.astype(np.float32))
        # As it lies: whoever needs another order is nearer the device.
        return torch.from_numpy(batch).permute(0, 3, 1, 2)


class Subset:
    """The samples of `base` at `indices`, in that order; labels keep their numbers and names."""

    def __init__(self, base: ImageSet, indices: Tensor | Sequence[int]) -> None:
        self.base = base
        self.name = base.name
        self.classes = base.classes
        self.indices = checked(torch.as_tensor(indices), len(base), base.name)

    @property
    def labels(self) -> Tensor | None:
        labels = self.base.labels
        return None if labels is None else labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.base.read(self.indices[checked(indices, len(self), self.name)])


def read_arrays(path: Path | str, name: str | None = None, classes: Sequence[str] = ()) -> ArraySet:
    """The set in a `.npy` file (memory-mapped) or a `.npz` file; pickled objects in either are refused.

    A `.npz` file holds images|x|data|arr_0, and if known labels|y and classes (an array of strings). The
    argument `classes` names the labels of a file that does not, provided that no label is beyond them.
    """
    path = Path(path)
    try:
        images, labels, named = _open_npz(path) if path.suffix == ".npz" else (_open_npy(path), None, ())
    except DataError:
        raise
    except Exception as error:  # damaged bytes raise many kinds: ValueError, BadZipFile, TokenError, ...
        raise DataError(
            f"{path} cannot be read as a plain array file: {type(error).__name__}: {error}; write it anew with "
            "numpy.save or savez"
        ) from error
    if not named and labels is not None and labels.size and labels.max() < len(classes):
        named = tuple(classes)
    return ArraySet(name or path.stem, images, labels, named)


def checked(indices: Tensor, count: int, name: str) -> Tensor:
    """`indices` as int64 on the CPU; an IndexError unless each is in [0, count)."""
    rows = indices.detach().cpu().long()
    if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= count):
        raise IndexError(f"{name} has {count} samples; asked for {int(rows.min())} .. {int(rows.max())}")
    return rows


def labels_at(labels: Tensor | None, rows: Tensor) -> Tensor:
    """The labels (B,) of `rows`, -1 where the set has none."""
    return torch.full_like(rows, -1) if labels is None else labels[rows]


def refuse_trap(path: Path, unfolded: int) -> None:
    """A DataError where a small file says that it holds `unfolded` bytes, far more than its size makes likely."""
    size = path.stat().st_size
    if unfolded > max(MAX_UNFOLDED, MAX_RATIO * size):
        raise DataError(
            f"{path} has {size:,} bytes and unfolds to {unfolded:,}: refused as a decompression bomb; if it is what "
            "you want, write its arrays as .npy"
        )


def _open_npy(path: Path) -> Mapped:
    mapped = Mapped(partial(np.load, path, mmap_mode="r", allow_pickle=False))
    if not isinstance(mapped.array, np.ndarray):
        raise ValueError("it holds several arrays; name it .npz")
    return mapped


def _open_npz(path: Path) -> tuple[Array, Array | None, tuple[str, ...]]:
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)  # a bare array is mapped, not read
    if isinstance(loaded, np.ndarray):
        raise ValueError("it holds one bare array; name it .npy")
    refuse_trap(path, sum(entry.file_size for entry in loaded.zip.infolist()))
    with loaded as arrays:
        image_key = next((key for key in IMAGE_KEYS if key in arrays), None)
        if image_key is None:
            raise ValueError(f"it has {', '.join(arrays.files) or 'nothing'}, none of {', '.join(IMAGE_KEYS)}")
        label_key = next((key for key in LABEL_KEYS if key in arrays), None)
        classes = arrays["classes"] if "classes" in arrays else np.empty(0, dtype=np.str_)
        if classes.dtype.kind != "U":
            raise ValueError(f"classes must be an array of strings, not {classes.dtype}")
        labels = None if label_key is None else np.ravel(arrays[label_key])
        return arrays[image_key], labels, tuple(str(name) for name in np.ravel(classes))


def _check_images(name: str, images: Tensor | Array | Mapped) -> None:
    shape = tuple(images.shape)
    dtype = str(images.dtype) if isinstance(images, Tensor) else images.dtype.name
    dtype = dtype.removeprefix("torch.")
    channels = 1 if isinstance(images, Tensor) else 3
    if dtype == "uint8" and len(shape) == 4 and shape[channels] in (1, 3):
        return
    if dtype.startswith(("float", "bfloat")) and len(shape) == 2:
        return
    raise DataError(
        f"{name}: an array {shape} of {dtype} is not a set of samples; give uint8 images with 1 or 3 channels"
        ", (N, C, H, W) as a torch tensor or (N, H, W, C) as a numpy array, or float embeddings (N, D)"
    )


def _checked_labels(name: str, labels: Any, count: int, classes: tuple[str, ...]) -> Tensor:
    known = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if known.shape != (count,) or (known.dtype.kind not in "iu" and count):
        raise DataError(f"{name}: labels must be {count} integers, one a sample, not {known.shape} of {known.dtype}")
    if count and (known.min() < -1 or known.max() >= (len(classes) or MAX_CLASSES)):
        raise DataError(
            f"{name}: labels run from {known.min()} to {known.max()}; expected -1 (none known) or"
            f" 0 .. {(len(classes) or MAX_CLASSES) - 1}"
        )
    return torch.from_numpy(known.astype(np.int64))
