"""Image lists as OpenOOD writes them: a text file of `path label` lines."""

from pathlib import Path

from farout.data.arrays import MAX_CLASSES
from farout.data.folders import inside
from farout.data.image_files import ImageFiles, Size
from farout.errors import DataError


def read_list(
    path: Path | str, root: Path | str, name: str | None = None, size: Size = 32, corrupt: str = "raise"
) -> ImageFiles:
    """The images that `path` lists in their order, each line a path below `root` and a label (-1: none)."""
    path, root = Path(path), Path(root).resolve()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the image list {path} cannot be read: {error}") from error
    pairs = [_pair(path, number, line, root) for number, line in enumerate(lines, start=1) if line.strip()]
    labels = [label for _, label in pairs]
    known = None if all(label == -1 for label in labels) else labels
    return ImageFiles(name or path.stem, root, [file for file, _ in pairs], known, (), size, corrupt)


def _pair(path: Path, number: int, line: str, root: Path) -> tuple[str, int]:
    file, _, label = line.strip().rpartition(" ")
    try:
        pair = file.strip(), int(label)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: expected `path label`, found {line!r}") from error
    if not pair[0] or not -1 <= pair[1] < MAX_CLASSES:
        raise DataError(
            f"{path}, line {number}: expected `path label` with a label from -1 to {MAX_CLASSES - 1}, found {line!r}"
        )
    if not inside(root / pair[0], root):
        raise DataError(f"{path}, line {number}: {pair[0]} leaves {root}; list only files below it")
    return pair
