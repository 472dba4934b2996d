"""Folders of images: one folder a class, or all in one."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from farout.data.image_files import EXTENSIONS, ImageFiles, Size
from farout.errors import DataError


class FolderSet(ImageFiles):
    """All images below `root`, sorted; the class is the first folder level, whatever lies deeper.

    Every first-level folder is a class, even an empty one, so that splits of one set number their classes
    alike; `names` renames them. An image directly in `root` has label -1; without folders none has one.
    Links that leave `root` are refused; links to folders inside it are not followed, lest images count twice.
    """

    def __init__(
        self,
        name: str,
        root: Path | str,
        size: Size = 32,
        corrupt: str = "raise",
        names: Mapping[str, str] | None = None,
    ) -> None:
        root = Path(root).resolve()
        try:
            folders = [entry.name for entry in _entries(root) if entry.is_dir(follow_symlinks=False)]
            files = list(_images(root, "", root))
        except OSError as error:
            raise DataError(f"{name}: the folder {root} cannot be read: {error}") from error
        numbers = {folder: number for number, folder in enumerate(folders)}
        labels = [numbers.get(file.partition("/")[0], -1) for file in files] if folders else None
        classes = [(names or {}).get(folder, folder) for folder in folders]
        super().__init__(name, root, files, labels, classes, size, corrupt)


def inside(path: Path, root: Path) -> bool:
    """Whether `path`, links followed, lies below `root` (itself resolved); what leads nowhere does not."""
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError, ValueError):  # a link to itself, a name with a zero byte
        return False


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _images(folder: Path, prefix: str, root: Path) -> Iterator[str]:
    for entry in _entries(folder):
        is_image = entry.name.lower().endswith(EXTENSIONS)
        if entry.is_symlink() and (is_image or entry.is_dir()) and not inside(Path(entry.path), root):
            raise DataError(
                f"{entry.path} is a link that leaves {root} (to {os.readlink(entry.path)}); copy the files"
                " there, or open the folder it points to"
            )
        if entry.is_dir(follow_symlinks=False):
            yield from _images(Path(entry.path), f"{prefix}{entry.name}/", root)
        elif is_image and not entry.is_dir():
            yield prefix + entry.name
