"""Images in, verdicts out: what `farout score` does."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from farout.data.folders import FolderSet
from farout.data.image_files import decode
from farout.detector import Detector
from farout.errors import CheckpointError, DataError
from farout.types import Row

BATCH = 256


def judge(detector: Detector | str | Path, paths: Sequence[str | Path]) -> Iterator[Row]:
    """One row for each image: file, label, score (higher = more in-distribution), verdict ID, OOD or error.

    Folders are searched for images. A file that cannot be read gives a row with verdict `error` and its reason.
    """
    judge_with = detector if isinstance(detector, Detector) else Detector.load(detector)
    if judge_with.size is None:
        raise CheckpointError("the detector does not say how large its images are; set Detector(..., size=)")
    channels = len(getattr(judge_with.net.normalise, "mean", torch.zeros(3)))
    for batch in _batches(_files(paths)):
        images, good, bad = [], [], {}
        for file in batch:
            try:
                images.append(_read(file, judge_with.size, channels))
                good.append(file)
            except DataError as error:
                bad[file] = str(error)
        yield from _rows(judge_with, batch, images, good, bad)


def _rows(
    detector: Detector, batch: list[Path], images: list[torch.Tensor], good: list[Path], bad: dict[Path, str]
) -> Iterator[Row]:
    verdicts = {}
    if images:
        verdict = detector(torch.stack(images).to(detector.threshold.device))
        verdicts = dict(zip(good, zip(*(part.tolist() for part in verdict), strict=True), strict=True))
    for file in batch:
        if file in bad:
            yield {"file": str(file), "label": "", "score": "", "verdict": "error", "reason": bad[file]}
            continue
        label, score, is_ood = verdicts[file]
        name = detector.classes[label] if detector.classes else label
        yield {"file": str(file), "label": name, "score": score, "verdict": "OOD" if is_ood else "ID"}


def _read(file: Path, size: int, channels: int) -> torch.Tensor:
    """An image as the detector takes it: (3, size, size), or (1, size, size) by luminance."""
    image = decode(file, size, size)
    if channels == 3:
        return image
    luminance = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    return (image * luminance).sum(0, keepdim=True).round().to(torch.uint8)


def _files(paths: Sequence[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            folder = FolderSet(path.name, path)
            yield from (folder.file(number) for number in range(len(folder)))
        elif path.exists():
            yield path
        else:
            raise DataError(f"no such image or folder: {path}")


def _batches(files: Iterable[Path]) -> Iterator[list[Path]]:
    batch: list[Path] = []
    for file in files:
        batch.append(file)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
