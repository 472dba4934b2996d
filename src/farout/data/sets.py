"""Opening sets by name or path, and checking what is on disk."""

import difflib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from farout.data import readers
from farout.data.catalogue import ALIASES, SETS, SetInfo
from farout.data.image_files import ImageFiles, Size
from farout.data.readers import Reader, Request
from farout.data.source import ImageSet
from farout.errors import ConfigError, DataError

__all__ = ["SETS", "Report", "SetInfo", "check_set", "open_set"]

CHUNK = 1024  # samples that `check_set` holds at a time
SPLIT_FOLDERS = ("train", "test", "val", "valid", "validation", "extra")


@dataclass(frozen=True)
class Found:
    """Where a set is, and what reads it there."""

    name: str
    split: str
    root: Path
    path: Path
    reader: Reader
    info: SetInfo | None = None

    def open(self, size: Size = 32, corrupt: str = "raise") -> ImageSet:
        classes = self.info.classes if self.info else ()
        request = Request(self.name, self.root, self.split, size, corrupt, classes)
        return self.reader(self.path, request)


@dataclass(frozen=True)
class Report:
    """What `check_set` saw: `corrupt` files cannot be decoded, `altered` ones are not as published (MD5)."""

    name: str
    split: str
    path: Path
    count: int
    expected: int | None
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    corrupt: tuple[str, ...]
    altered: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every image decodes, every known file is as published and none is missing."""
        return not self.corrupt and not self.altered and self.expected in (None, self.count)


def open_set(
    name: str, root: Path | str | None = None, split: str = "train", size: Size = 32, corrupt: str = "raise"
) -> ImageSet:
    """The set `name` of `farout.data.SETS`, or the folder, `.npy`, `.npz`, `.bin`, `.mat` or `.txt` list.

    Looked for below `root` (default $FAROUT_DATA, else "data"): first arrays `<name>-<split>.npz|.npy` and
    `<name>.npz|.npy` (the latter serves every split), then the set's public layouts. `size` is for image
    files, as is `corrupt` ("raise" or "skip"). Sets without splits, such as OOD test sets, ignore `split`. A
    known name is never taken for a path: write ./textures to mean a folder.
    """
    if corrupt not in ("raise", "skip"):
        raise ConfigError(f"corrupt={corrupt!r} is not known; use 'raise' or 'skip'")
    return find(name, data_root(root), split).open(size, corrupt)


def check_set(name: str, root: Path | str | None = None, split: str = "train", size: Size = 32) -> Report:
    """Reads all of a set once, in chunks, and says what was found; a DataError where it cannot be opened."""
    found = find(name, data_root(root), split)
    images = found.open(size)
    shape, corrupt = _read_all(images)
    expected = found.info.count(split) if found.info else None
    altered = _altered(found)
    return Report(found.name, split, found.path, len(images), expected, shape, images.classes, corrupt, altered)


def data_root(root: Path | str | None) -> Path:
    """`root`, else $FAROUT_DATA, else "data"."""
    return Path(root if root is not None else os.environ.get("FAROUT_DATA") or "data").expanduser()


def find(name: str, root: Path, split: str) -> Found:
    """Where `name` is below `root`, or the path `name` itself; a DataError that says what was looked for."""
    if not name:
        raise ConfigError(f"a data set needs a name; known sets: {', '.join(SETS)}")
    info = SETS.get(ALIASES.get(name.lower(), name.lower()))
    if info and info.splits and split not in info.splits:
        raise ConfigError(f"{info.name!r} has no split {split!r}; it has {', '.join(info.splits)}")
    stems = dict.fromkeys((name, info.name) if info else (name,))
    arrays = [f"{stem}{end}{kind}" for end in (f"-{split}", "") for stem in stems for kind in (".npz", ".npy")]
    title = info.name if info else Path(name).stem
    for path in (root / array for array in arrays):
        if path.is_file():
            return Found(title, split, root, path, readers.arrays, info)
    if info is None:
        path, reader = _find_path(name, root, split)
        return Found(title, split, root, path, reader)
    for pattern in info.patterns(split):
        for path in sorted(root.glob(pattern)):
            return Found(title, split, root, path, info.reader, info)
    raise _missing(info, root, split, arrays)


def _find_path(name: str, root: Path, split: str) -> tuple[Path, Reader]:
    for path in (Path(name).expanduser(), root / name):
        if path.is_dir():
            return _find_folder(path, split)
        if path.is_file() and path.suffix in readers.BY_SUFFIX:
            return path, readers.BY_SUFFIX[path.suffix]
        if path.is_file():
            kinds = ", ".join(readers.BY_SUFFIX)
            raise DataError(f"{path} is no kind of set known here; give a folder or one of {kinds}")
    close = difflib.get_close_matches(name.lower(), [*SETS, *ALIASES], n=1)
    hint = f", did you mean {close[0]!r}?" if close else "."
    raise DataError(
        f"unknown data set {name!r}{hint} It is not a path either, and {root.absolute()} has no"
        f" {name}-{split}.npz, {name}.npz or .npy. Known sets: {', '.join(SETS)}"
    )


def _find_folder(path: Path, split: str) -> tuple[Path, Reader]:
    """A folder of nothing but train/, test/, ... has splits; any other is one set, class `train` or no."""
    if path.name.startswith("cifar-10-"):
        return path, readers.cifar10
    if path.name.startswith("cifar-100-"):
        return path, readers.cifar100
    folders = sorted(part.name for part in path.iterdir() if part.is_dir() and not part.name.startswith("."))
    if not folders or not set(folders) <= set(SPLIT_FOLDERS):
        return path, readers.folder
    wanted = (split, "val", "valid", "validation") if split == "test" else (split,)
    chosen = next((part for part in wanted if part in folders), None)
    if chosen is None:
        raise DataError(f"{path} has {', '.join(folders)} but no {split}; add it, or name the folder you mean")
    return path / chosen, readers.folder


def _missing(info: SetInfo, root: Path, split: str, arrays: Sequence[str]) -> DataError:
    part = f" ({split})" if info.splits else ""
    looked = ", ".join((*arrays, *info.patterns(split)))
    return DataError(
        f"data set {info.name!r}{part} was not found below {root.absolute()}. Looked for: {looked}."
        f" To get it: {info.source}. If it is elsewhere, set FAROUT_DATA or pass root"
    )


def _read_all(images: ImageSet) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The shape of a sample, and the files that cannot be decoded."""
    if isinstance(images, ImageFiles):
        return images.shape, tuple(str(images.file(index)) for index in images.damaged())
    shape: tuple[int, ...] = ()
    for start in range(0, len(images), CHUNK):
        samples, _ = images.read(torch.arange(start, min(start + CHUNK, len(images))))
        shape = tuple(samples.shape[1:])
    return shape, ()


def _altered(found: Found) -> tuple[str, ...]:
    """The files of a published set, in its folder or as its path, that are not as published."""
    known = found.info.md5 if found.info else {}
    files = {name: found.path if found.path.name == name else found.path / name for name in known}
    return tuple(str(file) for name, file in files.items() if file.is_file() and _md5(file) != known[name])


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
