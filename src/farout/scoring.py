"""Images in, verdicts out, as a stream: what `farout score` does.

Sources are read one by one and judged in batches, so memory does not grow with their number (a compressed `.npz` is
the exception: numpy reads such an array whole; `.npy` is mapped). Rows leave in the order of the sources.
"""

import glob
import io
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import torch
from torch import Tensor

from farout.data.arrays import read_arrays
from farout.data.folders import FolderSet
from farout.data.image_files import decode
from farout.detector import Detector, Judgement, channels_of
from farout.errors import CheckpointError, DataError, MissingExtraError
from farout.export import ExportedDetector, open_exported
from farout.preprocess import LUMINANCE, Preprocess
from farout.types import Row
from farout.verdict_files import COLUMNS

BATCH = 256


class Judge(NamedTuple):
    """A detector of whatever kind, and how images are to be read for it."""

    ask: Callable[[Tensor], Judgement]
    classes: tuple[str, ...]
    resize: int
    crop: int
    channels: int


class Sample(NamedTuple):
    """One input: what to call it in the output, and how to get its image (C, S, S)."""

    name: str
    load: Callable[[Judge], Tensor]


def open_judge(detector: Any, device: str | None = None) -> Judge:
    """A detector, its folder, or an exported `.onnx` or `.pt2` file."""
    if not isinstance(detector, Detector) and Path(detector).suffix in (".onnx", ".pt2"):
        return _of_file(open_exported(detector), detector)
    opened = detector if isinstance(detector, Detector) else Detector.load(detector)
    if opened.size is None:
        raise CheckpointError("the detector does not say how large its images are; set Detector(..., size=)")
    resize, crop = (opened.size, opened.size) if isinstance(opened.size, int) else opened.size
    opened = opened if device is None else opened.to(device)
    home = opened.threshold.device
    return Judge(lambda x: opened.judge(x.to(home)), opened.classes, resize, crop, channels_of(opened.net) or 3)


def _of_file(exported: ExportedDetector, path: Any) -> Judge:
    shape, size = exported.card["input"]["shape"], exported.card["size"]
    resize, crop = size if isinstance(size, list) else (size, size)
    if crop is None or shape[1:] not in ([crop, crop], [None, None]):
        raise CheckpointError(
            f"{path} was exported for inputs of {shape}, and `farout score` brings images to the detector's own size "
            "before it asks: export without --input, or with --input any"
        )
    return Judge(exported.judge, tuple(exported.card["classes"]), resize, crop, shape[0])


def judge(
    detector: Any, paths: Iterable[str | Path], *, done: Iterable[str] = (), device: str | None = None
) -> Iterator[Row]:
    """One row for each input: file, label, score (higher = more in-distribution), verdict ID, OOD or error, p_value.

    `paths` are image files, folders, globs, `.npz`, `.npy` and `.parquet` files. What cannot be read gives a row
    with verdict `error` and its reason. Under torchrun each rank takes every n-th input. `done` names the inputs,
    from the first on, that have their rows already.
    """
    asked = open_judge(detector, device)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for batch in _batches(_after(done, shard(samples(paths)))):
            yield from _rows(asked, batch, list(pool.map(lambda sample: _try(sample, asked), batch)))


def _try(sample: Sample, asked: Judge) -> Tensor | DataError:
    try:
        return sample.load(asked)
    except DataError as error:
        return error


def _rows(asked: Judge, batch: list[Sample], images: list[Tensor | DataError]) -> Iterator[Row]:
    good = [image for image in images if isinstance(image, Tensor)]
    answers = iter(zip(*(part.tolist() for part in asked.ask(torch.stack(good))[:4]), strict=True) if good else ())
    for sample, image in zip(batch, images, strict=True):
        row: Row = dict.fromkeys(COLUMNS, "")
        if isinstance(image, DataError):
            yield row | {"file": sample.name, "verdict": "error", "reason": shown(str(image))}
            continue
        label, score, is_ood, p_value = next(answers)
        row |= {"file": sample.name, "label": asked.classes[label] if asked.classes else label, "score": score}
        yield row | {"verdict": "OOD" if is_ood else "ID", "p_value": "" if math.isnan(p_value) else p_value}


def shard(everything: Iterable[Sample]) -> Iterator[Sample]:
    """This rank's inputs, every n-th of them; all without torchrun."""
    rank, ranks = place()
    return itertools.islice(everything, rank, None, ranks)


def _after(done: Iterable[str], everything: Iterator[Sample]) -> Iterator[Sample]:
    for number, name in enumerate(done, 1):
        sample = next(everything, None)
        if sample is None or sample.name != name:
            found = "the list ends" if sample is None else repr(sample.name)
            raise DataError(f"this does not continue the output: its row {number} is {name!r}, where {found} now")
    return everything


def place() -> tuple[int, int]:
    """Rank and number of ranks, as torchrun sets them."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def samples(paths: Iterable[str | Path]) -> Iterator[Sample]:
    """Every image that `paths` name, in order."""
    for path in paths:
        yield from _samples_of(path)


def _samples_of(path: str | Path) -> Iterator[Sample]:
    found = Path(path)
    if found.is_dir():
        folder = FolderSet(found.name, found)
        yield from (_of_image(folder.file(number)) for number in range(len(folder)))
    elif found.exists():
        read = READERS.get(found.suffix.lower())
        yield from read(found) if read else (_of_image(found),)
    elif glob.has_magic(str(path)) and (matches := sorted(glob.glob(str(path), recursive=True))):
        for match in matches:
            yield from _samples_of(match)
    else:
        raise DataError(f"no such image or folder: {path}")


def shown(name: str) -> str:
    r"""A file's name as text: bytes that are not UTF-8 become \xNN, so that every name can be written.

    >>> shown(os.fsdecode(b"caf\xe9.png"))
    'caf\\xe9.png'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _of_image(file: Path) -> Sample:
    return Sample(shown(str(file)), lambda asked: _grey(decode(file, asked.resize, asked.crop), asked.channels))


def _grey(image: Tensor, channels: int) -> Tensor:
    """(3, S, S) as the detector takes it: itself, or (1, S, S) by luminance."""
    if channels == 3:
        return image
    weights = torch.tensor(LUMINANCE).view(3, 1, 1)
    return (image * weights).sum(0, keepdim=True).round().to(torch.uint8)


def _of_arrays(file: Path) -> Iterator[Sample]:
    """`file.npz#0`, `file.npz#1`, ..."""
    arrays = read_arrays(file)

    def load(row: int, asked: Judge) -> Tensor:
        image, _ = arrays.read(torch.tensor([row]))
        prepared: Tensor = Preprocess(asked.resize, asked.crop, asked.channels)(image)
        return prepared[0]

    for number in range(len(arrays)):
        yield Sample(shown(f"{file}#{number}"), partial(load, number))


class _Named(io.BytesIO):
    """Bytes that call themselves by a name in errors."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.called = name

    def __str__(self) -> str:
        return self.called


def _of_parquet(file: Path) -> Iterator[Sample]:
    """Encoded images in a column of bytes, or of {bytes, path} as Hugging Face writes them; `file.parquet#0`, ..."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", f"reading {file}") from None
    try:
        table = parquet.ParquetFile(file)
    except Exception as error:  # pyarrow has its own classes
        raise DataError(f"{file} cannot be read as Parquet: {error}") from None
    column = _bytes_column(table.schema_arrow, file)
    number = itertools.count()
    for batch in table.iter_batches(batch_size=BATCH, columns=[column]):
        for value in batch.column(0).to_pylist():
            content = value.get("bytes") if isinstance(value, Mapping) else value
            yield _of_bytes(content, f"{file}#{next(number)}")


def _of_bytes(content: bytes | None, name: str) -> Sample:
    def load(asked: Judge) -> Tensor:
        if content is None:
            raise DataError(f"image {name} is empty")
        source = cast(Path, _Named(content, name))
        return _grey(decode(source, asked.resize, asked.crop), asked.channels)

    return Sample(shown(name), load)


def _bytes_column(schema: Any, file: Path) -> str:
    import pyarrow.types as types

    for field in schema:
        inner = field.type
        if types.is_struct(inner) and inner.get_field_index("bytes") >= 0:
            inner = inner.field("bytes").type
        if types.is_binary(inner) or types.is_large_binary(inner):
            return str(field.name)
    raise DataError(f"{file} has no column of bytes; its columns are {', '.join(schema.names)}")


READERS: Mapping[str, Callable[[Path], Iterator[Sample]]] = {
    ".npz": _of_arrays,
    ".npy": _of_arrays,
    ".parquet": _of_parquet,
}


def listed(stream: TextIO) -> Iterator[str]:
    """The paths of a list, one a line; blank lines are skipped. Names need not be UTF-8."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="surrogateescape")
    return (line.rstrip("\n") for line in stream if line.strip())


def _batches(stream: Iterable[Sample]) -> Iterator[list[Sample]]:
    stream = iter(stream)
    while batch := list(itertools.islice(stream, BATCH)):
        yield batch
