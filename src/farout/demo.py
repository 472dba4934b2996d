"""`farout demo`: the main job on data that comes with the installed packages.

One network is pre-trained with cross-entropy for each seed; what fine-tunes starts from that same checkpoint, so
that methods differ in nothing else; all are tested on classes and images that no training saw.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from farout.data.named import open_named
from farout.entries import recipe_of
from farout.errors import MissingExtraError
from farout.methods import METHODS
from farout.report.histogram import histograms
from farout.report.table import long_table, markdown
from farout.run import Run, evaluate, train
from farout.see import write_report
from farout.training.checkpoint import write_atomically
from farout.types import Row

BRIEF = ("ce", "oe", "dal")
POST_HOC = ["msp", "max-logit", "energy", "gen", "react", "ash", "mahalanobis", {"name": "knn", "k": 10}, "vim", "odin"]
"""What `--all` scores ce, oe and dal with; the other methods are scored as their papers do."""


@dataclass(frozen=True)
class Demo:
    """Where the demonstration left what it made."""

    rows: list[Row]
    table: tuple[list[str], list[list[str]]]
    results: Path
    markdown: Path
    picture: Path | None
    report: Path
    why_no_picture: str
    detector: Path
    example: Path


def demo(folder: Path = Path("runs/demo"), seeds: int = 3, everything: bool = False) -> Demo:
    """Train and test; a run that is already there is not trained again. `everything` is every method and score."""
    console, rows = Console(stderr=True), []
    names = tuple(METHODS) if everything else BRIEF
    with _one_thread():
        for seed in range(seeds):
            for name in names:
                console.print(f"[dim]{name}, seed {seed}[/dim]")
                scores: Sequence[Any] = POST_HOC if everything and name in BRIEF else ()
                rows += evaluate(_run(name, seed, folder), scores=scores)
    rows.sort(key=lambda row: names.index(row["method"]))
    return _leave(folder, rows, everything)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Products this small are no faster with more, far slower where a core is busy, and round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(name: str, seed: int, folder: Path) -> Run:
    """The finished run of a demo recipe, with what it starts from trained before it."""
    config = recipe_of("demo", name)
    init = None
    if config.start is not None:
        init = str(_run(config.start.rpartition("/")[2], seed, folder).folder)
    config = replace(config, train=replace(config.train, seed=seed, init=init))
    done: Run = train(config, run=folder / name / f"s{seed}", resume=True)
    return done


def _leave(folder: Path, rows: list[Row], everything: bool) -> Demo:
    """Write rows, table, picture and a few images to score."""
    table, stem = long_table(rows), "all-" if everything else ""
    results, page = folder / f"{stem}results.jsonl", folder / f"{stem}table.md"
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(results, lambda file: _put(file, text))
    write_atomically(page, lambda file: _put(file, markdown(*table)))
    picture, why = _picture(folder, everything)
    # The brief methods' runs are there either way; a page of twenty methods would be no report.
    report = write_report([folder / method for method in BRIEF], folder / "report.html")
    detector = folder / "dal" / "s0" / "detector"
    return Demo(rows, table, results, page, picture, report, why, detector, _examples(folder))


def _put(file: Any, text: str) -> None:
    file.write(text.encode())


def _picture(folder: Path, everything: bool) -> tuple[Path | None, str]:
    name = "all-histograms.png" if everything else "histograms.png"
    try:
        return histograms({method: folder / method / "s0" for method in BRIEF}, folder / name), ""
    except MissingExtraError as error:
        return None, str(error)


def _examples(folder: Path) -> Path:
    """A few test images as files, so that there is something to score."""
    import torch
    from PIL import Image

    where = folder / "images"
    where.mkdir(exist_ok=True)
    for name in ("demo/digits", "demo/unseen-digits", "demo/flower"):
        images, _ = open_named(name, split="test").read(torch.arange(5))
        for number, image in enumerate(images):
            Image.fromarray(image[0].numpy()).save(where / f"{name.rpartition('/')[2]}-{number}.png")
    return where
