"""score, calibrate and export: from a trained detector to verdicts on other people's images."""

import itertools
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from farout.cli.app import DetectorFolder, Root, Split, app, detector_and_set, detector_folder


@app.command()
def score(
    detector: Annotated[Path, typer.Argument(help="A detector's folder, a run's, or an exported .onnx or .pt2 file.")],
    images: Annotated[
        list[str], typer.Argument(help="Images, folders, globs, .npz, .npy or .parquet files; - reads a list of paths.")
    ],
    to: Annotated[str | None, typer.Option(help="csv, jsonl or parquet; by default what --out ends in.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; standard output by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the file --out, which may be cut off.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; where the detector is by default.")] = None,
) -> None:
    """Judge images: a row each with file, label, score, verdict (ID, OOD or error), p-value and reason.

    Exit code 1 if an input could not be read. Under `torchrun` each rank takes its share and writes FILE.rankN.csv.

    Example: `farout score runs/demo/detector photos/ 'more/**/*.png' --out verdicts.csv --resume`
    """
    from farout.scoring import judge, listed, place

    given = detector_folder(detector) if detector.is_dir() else detector
    paths = itertools.chain.from_iterable(listed(sys.stdin) if path == "-" else [path] for path in images)
    rank, ranks = place()
    if ranks > 1 and out is None:
        raise ValueError("several ranks cannot share standard output; name a file with --out")
    if ranks > 1 and out is not None:
        out = out.with_name(f"{out.stem}.rank{rank}{out.suffix}")
    sink, done = _output(to, out, resume)
    begun = time.perf_counter()
    try:
        count, failed = _write(judge(given, paths, done=(row["file"] for row in done), device=device), sink)
    finally:
        sink.close()
    spent = time.perf_counter() - begun
    print(f"{count:,} images in {spent:.1f} s: {count / max(spent, 1e-9):,.0f} images/s", file=sys.stderr)
    failed += sum(row["verdict"] == "error" for row in done)
    if failed:
        print(f"error: {failed} of the images could not be read", file=sys.stderr)
        raise typer.Exit(1)


def _output(to: str | None, out: Path | None, resume: bool) -> tuple[Any, "_Done"]:
    """Where rows go, and those that are there already."""
    from farout.verdict_files import continue_file, kind_of

    kind = kind_of(to, out)
    if resume and out is None:
        raise ValueError("--resume continues a file; name it with --out")
    if out is not None and out.exists():
        if not resume:
            raise ValueError(f"{out} exists; continue it with --resume, or choose another --out")
        continue_file(kind, out)
        return kind.open(out, append=True), _Done(kind, out)
    return kind.open(out), _Done(kind, None)


class _Done:
    """The rows of a file, read anew each time: an output of millions of rows is never held."""

    def __init__(self, kind: Any, path: Path | None) -> None:
        self.kind, self.path = kind, path
        self.count = 0 if path is None else sum(1 for _ in kind.rows(path))

    def __iter__(self) -> Any:
        return itertools.islice(self.kind.rows(self.path), self.count) if self.path is not None else iter(())


def _write(rows: Iterable[dict[str, Any]], sink: Any) -> tuple[int, int]:
    """All rows into `sink`, in pieces; how many there were, and how many errors among them."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    console, rows = Console(stderr=True), iter(rows)
    columns = (TextColumn("scoring"), TextColumn("{task.completed:,} images"), TimeElapsedColumn())
    count = failed = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("score", total=None)
        while piece := list(itertools.islice(rows, 256)):
            sink.write(piece)
            count += len(piece)
            progress.update(task, completed=count)
            for row in piece:
                if row["verdict"] == "error":
                    failed += 1
                    print(f"{row['file']}: {row['reason']}", file=sys.stderr)
    return count, failed


@app.command()
def calibrate(
    detector: DetectorFolder,
    data: Annotated[str, typer.Option(help="Held-out ID data that was not trained on: a set's name or a path.")],
    tpr: Annotated[float | None, typer.Option(help="Accept this share of the data; 0.95 by default.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Flag an ID input with probability at most this (conformal).")
    ] = None,
    alarms_per_day: Annotated[float | None, typer.Option(help="How many false alarms a day are bearable.")] = None,
    images_per_day: Annotated[float | None, typer.Option(help="How many images come in a day.")] = None,
    keep_examples: Annotated[
        int, typer.Option(min=0, max=1000, help="Keep so many of the images beside the detector, to show them.")
    ] = 0,
    root: Root = None,
    split: Split = "test",
    out: Annotated[Path | None, typer.Option(help="Where to save; over the old detector by default.")] = None,
) -> None:
    """Set a detector's threshold, p-values and class probabilities on held-out ID data.

    Example: `farout calibrate runs/demo/dal/s0 --data demo/digits --alpha 0.01 --out calibrated`
    """
    from farout.calibration import false_alarm_rate

    budget = (alarms_per_day, images_per_day)
    if (alarms_per_day is None) != (images_per_day is None):
        raise typer.BadParameter("--alarms-per-day and --images-per-day go together")
    if sum(choice is not None for choice in (tpr, alpha, alarms_per_day)) > 1:
        raise typer.BadParameter("choose one of --tpr, --alpha and --alarms-per-day")
    if budget[0] is not None and budget[1] is not None:
        alpha = false_alarm_rate(budget[0], budget[1])
    judge, samples = detector_and_set(detector, data, root, split)
    before = judge.threshold.item()
    judge.calibrate(samples, tpr=tpr, alpha=alpha)
    if budget[0] is not None:
        judge.calibrated_on |= {"alarms_per_day": budget[0], "images_per_day": budget[1]}
    folder = judge.save(out or detector_folder(detector))
    if keep_examples:
        from farout import examples

        examples.save(examples.gather(judge, samples, keep_examples), judge, folder)
    promise = f"alpha {alpha:g}" if alpha is not None else f"tpr {judge.calibrated_on['tpr']:g}"
    print(f"Data       {len(samples):,} samples of {samples.name}, {promise}")
    print(f"Threshold  {before:.6g} -> {judge.threshold.item():.6g}")
    print(f"Temperature {judge.temperature.item():.4g}\nDetector   {folder}")


@app.command()
def export(
    detector: DetectorFolder,
    to: Annotated[str, typer.Option(help="onnx or torch (a .pt2 file).")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="The file; detector.onnx or detector.pt2 beside it by default.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--input", help="Raw images of HEIGHTxWIDTH, or any; by default of the detector's own crop."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A set to check the export on, beside noise and photographs.")
    ] = None,
    root: Root = None,
    split: Split = "test",
) -> None:
    """Write a whole detector as one ONNX or torch.export file, checked against it.

    Example: `farout export runs/demo/dal/s0 --to onnx --out detector.onnx`
    """
    from farout.components import choose
    from farout.detector import Detector
    from farout.export import FORMATS
    from farout.export import export as run_export

    kind = choose("export format", FORMATS, to)
    if data is None:
        judge, samples = Detector.load(detector_folder(detector)), None
    else:
        judge, samples = detector_and_set(detector, data, root, split)
    target = out or detector_folder(detector) / f"detector{kind.suffix}"
    print(f"Exported   {run_export(judge, target, to, input_size=_sides(size), data=samples)}")


def _sides(text: str | None) -> Any:
    """`480x640` -> (480, 640); any stays a word."""
    if text in (None, "any"):
        return text
    assert text is not None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise typer.BadParameter(f"--input is HEIGHTxWIDTH, e.g. 480x640, or any; got {text!r}")
    return int(height), int(width)
