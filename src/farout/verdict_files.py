"""Rows of verdicts as CSV, JSONL or Parquet, written as they come; CSV and JSONL can be continued after a crash."""

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TextIO

from farout.components import choose
from farout.errors import ConfigError, DataError, MissingExtraError
from farout.types import Row

COLUMNS = ("file", "label", "score", "verdict", "p_value", "reason")


class VerdictFile(Protocol):
    """Takes rows; `open` starts a file or standard output, `rows` reads back what a file holds whole."""

    resumable: ClassVar[bool]

    @classmethod
    def open(cls, path: Path | None, append: bool = False) -> "VerdictFile": ...

    @staticmethod
    def rows(path: Path) -> Iterator[Row]: ...

    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self) -> None: ...


class CsvFile:
    """A header, then a line a row."""

    resumable: ClassVar[bool] = True

    def __init__(self, file: TextIO, header: bool) -> None:
        self.file = file
        self.writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if header:
            self.writer.writeheader()

    @classmethod
    def open(cls, path: Path | None, append: bool = False) -> "CsvFile":
        return cls(_stream(path, append), header=not append)

    @staticmethod
    def rows(path: Path) -> Iterator[Row]:
        """The whole rows; a last one that was cut off is left out."""
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            lines = csv.reader(file)
            header = next(lines, None)
            if header is not None and tuple(header) != COLUMNS and _ends_whole(path):
                raise DataError(f"{path} has the columns {header}, not {list(COLUMNS)}: it is no output to continue")
            yield from _but_cut((dict(zip(COLUMNS, line, strict=False)) for line in lines), path)

    def write(self, rows: Sequence[Row]) -> None:
        self.writer.writerows(rows)
        self.file.flush()

    def close(self) -> None:
        _close(self.file)


class JsonlFile:
    """A JSON object a line; what is not known is null."""

    resumable: ClassVar[bool] = True

    def __init__(self, file: TextIO) -> None:
        self.file = file

    @classmethod
    def open(cls, path: Path | None, append: bool = False) -> "JsonlFile":
        return cls(_stream(path, append))

    @staticmethod
    def rows(path: Path) -> Iterator[Row]:
        """The whole rows; a last one that was cut off is left out."""
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from _but_cut((_object(line) for line in file), path)

    def write(self, rows: Sequence[Row]) -> None:
        self.file.writelines(json.dumps(_typed(row), ensure_ascii=False) + "\n" for row in rows)
        self.file.flush()

    def close(self) -> None:
        _close(self.file)


class ParquetFile:
    """A row group for each write; its index is written at the end, so what was not closed is lost."""

    resumable: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtraError("pyarrow", "parquet", "writing Parquet") from None
        self.arrow = pyarrow
        numbers = ("score", "p_value")
        kinds = {name: pyarrow.float64() if name in numbers else pyarrow.string() for name in COLUMNS}
        self.schema = pyarrow.schema(list(kinds.items()))
        self.writer = pyarrow.parquet.ParquetWriter(path, self.schema)

    @classmethod
    def open(cls, path: Path | None, append: bool = False) -> "ParquetFile":
        if path is None:
            raise ConfigError("Parquet cannot be written to standard output; name a file with --out")
        return cls(path)

    @staticmethod
    def rows(path: Path) -> Iterator[Row]:
        raise ConfigError("a Parquet output cannot be continued; write csv or jsonl where you may want --resume")

    def write(self, rows: Sequence[Row]) -> None:
        if rows:
            self.writer.write_table(self.arrow.Table.from_pylist([_typed(row) for row in rows], schema=self.schema))

    def close(self) -> None:
        self.writer.close()


FILES: Mapping[str, type[VerdictFile]] = {"csv": CsvFile, "jsonl": JsonlFile, "parquet": ParquetFile}


def kind_of(to: str | None, out: Path | None) -> type[VerdictFile]:
    """The format that is asked for, else what the file's ending says, else CSV."""
    ending = out.suffix[1:] if out is not None else ""
    return choose("output format", FILES, to or (ending if ending in FILES else "csv"))


def continue_file(kind: type[VerdictFile], path: Path) -> None:
    """Leave only the whole rows in a file that was cut off, so that more can be appended."""
    temporary = path.with_name(f".{path.name}.part")
    kept = kind.open(temporary)
    try:
        for row in kind.rows(path):
            kept.write([row])
    finally:
        kept.close()
    temporary.replace(path)


def _stream(path: Path | None, append: bool) -> TextIO:
    if path is None:
        return sys.stdout
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a" if append else "w", newline="", encoding="utf-8")


def _close(file: TextIO) -> None:
    if file is not sys.stdout:
        file.close()


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _but_cut(rows: Iterator[Row], path: Path) -> Iterator[Row]:
    """All rows that have every column; the last one only if the file ends with its line."""
    whole, before = _ends_whole(path), None
    for row in rows:
        if before is not None:
            yield _checked(before, path)
        before = row
    if before is not None and whole and set(before) == set(COLUMNS):
        yield before


def _checked(row: Row, path: Path) -> Row:
    if set(row) != set(COLUMNS):
        raise DataError(
            f"{path} holds a row {row} in its middle that is none of `farout score`: it cannot be continued"
        )
    return row


def _object(line: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return {key: "" if value is None else value for key, value in row.items()} if isinstance(row, dict) else {}


def _typed(row: Row) -> dict[str, Any]:
    """Empty cells as null, labels as words."""
    filled = {key: None if value == "" else value for key, value in row.items()}
    return {**filled, "label": None if filled["label"] is None else str(filled["label"])}
