"""The training log: JSONL rows in a file, a progress bar on the terminal."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from farout.types import Row


class RunLog:
    """`log.jsonl`: one row every few steps, each on disk before the next step begins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_before(self, step: int) -> None:
        """Drop rows from `step` on, and a half-written last line: the resumed run will write them again."""
        if not self.path.exists():
            return
        kept = [row for row in read_rows(self.path, broken_tail=True) if row["step"] < step]
        temporary = self.path.with_name(f".{self.path.name}.part")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        temporary.replace(self.path)

    def write(self, row: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_rows(path: Path, broken_tail: bool = False) -> list[Row]:
    """The rows of a JSONL file; with `broken_tail` a last line that was cut off is left out."""
    rows: list[Row] = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if not (broken_tail and number == len(lines)):
                raise ValueError(f"{path}, line {number} is not JSON: {line[:80]!r}") from None
    return rows


class Bar:
    """A progress bar with the time left; silent where there is no terminal."""

    def __init__(self, title: str, total: int, done: int = 0, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
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
