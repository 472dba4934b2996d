"""Result rows from wherever they lie: run folders, folders of runs, or JSONL files."""

from collections.abc import Sequence
from pathlib import Path

from farout.errors import CheckpointError
from farout.training.log import read_rows
from farout.types import Row

RESULTS = "results.jsonl"


def find_rows(paths: Sequence[Path]) -> list[Row]:
    """The rows of each path in turn; a folder with results of its own speaks for those below it."""
    rows = [row for path in paths for file in _files(path) for row in read_rows(file)]
    if not rows:
        raise CheckpointError(f"no result rows in {', '.join(map(str, paths))}; evaluate a run first: farout eval RUN")
    return rows


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise CheckpointError(f"no such run or file: {path}")
    return [path / RESULTS] if (path / RESULTS).is_file() else sorted(path.rglob(RESULTS))
