"""CIFAR-10 and CIFAR-100 in their two public versions, binary and Python pickles."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farout.data.arrays import Array, ArraySet
from farout.data.pickles import load_plain
from farout.errors import ConfigError, DataError

PIXELS = 3 * 32 * 32  # red, green and blue planes, each row by row

_TEN = "airplane automobile bird cat deer dog frog horse ship truck"
_HUNDRED = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR10_CLASSES = tuple(_TEN.split())
CIFAR100_CLASSES = tuple(_HUNDRED.split())


@dataclass(frozen=True)
class Version:
    """One public version: the files of each split, where the class names are, and images in a full file."""

    files: Mapping[str, tuple[str, ...]]
    names_file: str
    full: Mapping[str, int]


BINARY_10 = Version(
    {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    "batches.meta.txt",
    {"train": 10_000, "test": 10_000},
)
PYTHON_10 = Version(
    {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    "batches.meta",
    {"train": 10_000, "test": 10_000},
)
BINARY_100 = Version(
    {"train": ("train.bin",), "test": ("test.bin",)},
    "fine_label_names.txt",
    {"train": 50_000, "test": 10_000},
)
PYTHON_100 = Version({"train": ("train",), "test": ("test",)}, "meta", {"train": 50_000, "test": 10_000})

MD5_10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
MD5_100 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}


def read_cifar10(folder: Path, split: str, name: str = "cifar10") -> ArraySet:
    """CIFAR-10 from `cifar-10-batches-bin` (a label byte, then the pixels) or `cifar-10-batches-py`."""
    return _read(Path(folder), split, name, BINARY_10, PYTHON_10, CIFAR10_CLASSES)


def read_cifar100(folder: Path, split: str, name: str = "cifar100") -> ArraySet:
    """CIFAR-100, fine labels, from `cifar-100-binary` (coarse, fine, pixels) or `cifar-100-python`."""
    return _read(Path(folder), split, name, BINARY_100, PYTHON_100, CIFAR100_CLASSES)


def _read(folder: Path, split: str, name: str, binary: Version, python: Version, classes: tuple[str, ...]) -> ArraySet:
    if split not in binary.files:
        raise ConfigError(f"{name} has no split {split!r}; it has {', '.join(binary.files)}")
    pickled = any((folder / file).is_file() for file in python.files[split])
    version = python if pickled else binary
    parse = _parse_pickle if pickled else _parse_binary
    names = _class_names(folder / version.names_file, classes)
    parts = [_parse_file(folder / file, parse, version.full[split], names) for file in version.files[split]]
    images = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)
    return ArraySet(name, torch.from_numpy(images), np.concatenate([labels for _, labels in parts]), names)


def _parse_file(path: Path, parse: Any, full: int, names: tuple[str, ...]) -> tuple[Array, Array]:
    if not path.is_file():
        raise DataError(f"{path} is missing; unpack the whole archive again")
    pixels, labels = parse(path, full, 1 if len(names) == 10 else 2)
    if len(labels) != len(pixels) or (len(labels) and not 0 <= labels.min() <= labels.max() < len(names)):
        raise DataError(
            f"{path} is damaged: {len(pixels)} images with {len(labels)} labels, not all in"
            f" 0 .. {len(names) - 1}; unpack it again"
        )
    return pixels, labels


def _parse_binary(path: Path, full: int, label_bytes: int) -> tuple[Array, Array]:
    # CIFAR-100 writes a coarse and a fine label, CIFAR-10 only one: the last label byte is the one wanted.
    record, found = label_bytes + PIXELS, path.stat().st_size
    if found == 0 or found % record:
        raise DataError(
            f"{path} is damaged: {found:,} bytes found, {full * record:,} expected ({full:,} records of"
            f" {record:,} bytes); unpack it again"
        )
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _parse_pickle(path: Path, full: int, label_bytes: int) -> tuple[Array, Array]:
    try:
        batch = _fields(load_plain(path))
    except DataError as error:
        raise DataError(f"{error} (a whole file has over {full * PIXELS:,} bytes)") from error
    pixels, labels = batch.get("data"), batch.get("labels" if label_bytes == 1 else "fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        found = f"{pixels.shape} of {pixels.dtype}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"{path} is damaged: its data is {found}, expected ({full:,}, {PIXELS}) of uint8")
    if not isinstance(labels, (list, tuple)) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise DataError(f"{path} is damaged: its labels are not a list of integers")
    return pixels, np.array(labels, dtype=np.int64)


def _fields(loaded: Any) -> dict[str, Any]:
    # Python 2 wrote the keys as bytes, Python 3 as strings.
    items = loaded.items() if isinstance(loaded, dict) else ()
    return {_text(key): value for key, value in items if isinstance(key, (str, bytes))}


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _class_names(path: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    if not path.is_file():
        return classes
    if path.suffix == ".txt":
        names = path.read_text(encoding="latin1").split()
    else:
        fields = _fields(load_plain(path))
        listed = fields.get("label_names", fields.get("fine_label_names", ()))
        listed = listed if isinstance(listed, (list, tuple)) else ()
        names = [_text(name) for name in listed if isinstance(name, (str, bytes))]
    if len(names) != len(classes):
        raise DataError(f"{path} is damaged: {len(names)} class names found, {len(classes)} expected")
    return tuple(names)
