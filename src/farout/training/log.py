"""The training log: JSONL rows in a file, a progress bar on the terminal."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from farout import distributed
from farout.errors import CheckpointError, DataError
from farout.training.checkpoint import write_atomically
from farout.types import Row


class RunLog:
    """`log.jsonl`: one row every few steps, each on disk before the next step begins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_before(self, step: int) -> None:
        """Drop rows from `step` on, and a half-written last line: the resumed run will write them again."""
        if not self.path.exists():
            return
        kept = [row for row in read_rows(self.path, broken_tail=True) if self._step(row) < step]
        text = "".join(json.dumps(row) + "\n" for row in kept).encode()
        write_atomically(self.path, lambda file: _put(file, text))

    def _step(self, row: Row) -> int:
        if not isinstance(row.get("step"), int):
            raise DataError(f"{self.path} is not a training log: a row has no step: {str(row)[:80]}")
        return int(row["step"])

    def write(self, row: Row) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path}: {error}; the last checkpoint is intact") from error


def _put(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def read_rows(path: Path, broken_tail: bool = False) -> list[Row]:
    """The rows of a JSONL file; with `broken_tail` a last line that was cut off is left out."""
    rows: list[Row] = []
    # Bytes first, and newlines alone: a cut may fall within a character, and text knows other ends of lines.
    lines = path.read_bytes().split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # not JSON, not UTF-8, a number of 5,000 digits, nested without end
            if broken_tail and number == len(lines):
                break
            raise DataError(f"{path}, line {number} is not JSON: {line[:80]!r}") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number} is not a row but a {type(row).__name__}: {line[:80]!r}")
        rows.append(row)
    return rows


class Bar:
    """A progress bar with the time left; silent where there is no terminal, and on all ranks but the first."""

    def __init__(self, title: str, total: int, done: int = 0, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal or distributed.rank() > 0)
        self.task = self.progress.add_task(title, total=total, completed=done, note="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def advance(self, note: str | None = None) -> None:
        self.progress.advance(self.task)
        if note is not None:
            self.progress.update(self.task, note=note)
