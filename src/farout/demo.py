"""`farout demo`: the main job on data that comes with the installed packages.

One network is pre-trained with cross-entropy for each seed; OE and DAL are fine-tuned from that same checkpoint, so
that they differ in nothing else; all are tested on classes and images that no training saw.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from farout.data.named import open_named
from farout.report.histogram import histograms
from farout.report.table import long_table, markdown
from farout.run import evaluate, train
from farout.training.checkpoint import write_atomically
from farout.types import Row

METHODS = ("ce", "oe", "dal")


@dataclass(frozen=True)
class Demo:
    """Where the demonstration left what it made."""

    rows: list[Row]
    table: tuple[list[str], list[list[str]]]
    results: Path
    markdown: Path
    picture: Path | None
    why_no_picture: str
    detector: Path
    example: Path


def demo(folder: Path = Path("runs/demo"), seeds: int = 3) -> Demo:
    """Train and test every method with every seed; a run that is already there is not trained again."""
    console = Console(stderr=True)
    rows: list[Row] = []
    for seed in range(seeds):
        for method in METHODS:
            console.print(f"[dim]{method}, seed {seed}[/dim]")
            init = [] if method == "ce" else [f"train.init={folder / 'ce' / f's{seed}'}"]
            done = train(
                f"demo/{method}",
                [f"train.seed={seed}", *init],
                run=folder / method / f"s{seed}",
                resume=True,
            )
            rows += evaluate(done)
    rows.sort(key=lambda row: METHODS.index(row["method"]))
    table = long_table(rows)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "results.jsonl", lambda file: _put(file, text))
    write_atomically(folder / "table.md", lambda file: _put(file, markdown(*table)))
    detector = folder / "dal" / "s0" / "detector"
    picture, why = _picture(folder)
    return Demo(rows, table, folder / "results.jsonl", folder / "table.md", picture, why, detector, _examples(folder))


def _put(file: object, text: str) -> None:
    file.write(text.encode())  # type: ignore[attr-defined]


def _picture(folder: Path) -> tuple[Path | None, str]:
    from farout.errors import MissingExtraError

    try:
        return histograms({method: folder / method / "s0" for method in METHODS}, folder / "histograms.png"), ""
    except MissingExtraError as error:
        return None, str(error)


def _examples(folder: Path) -> Path:
    """A few test images as files, so that there is something to score."""
    import torch
    from PIL import Image

    where = folder / "images"
    where.mkdir(exist_ok=True)
    for name, split in (("demo/digits", "test"), ("demo/unseen-digits", "test"), ("demo/flower", "test")):
        images, _ = open_named(name, split=split).read(torch.arange(5))
        for number, image in enumerate(images):
            Image.fromarray(image[0].numpy()).save(where / f"{name.rpartition('/')[2]}-{number}.png")
    return where
