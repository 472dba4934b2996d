"""The command line: a few lines a command. What is heavy is imported where it is used, so that help is quick."""

import csv
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

app = typer.Typer(
    name="farout",
    help="Train, test and ship classifiers that know what is far out.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Look after data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes to the recipe, e.g. method.rho=5 train.epochs=3.", show_default=False),
]


def _version(wanted: bool) -> None:
    if wanted:
        from farout import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command; `--debug` is read again in `main`, where errors arrive."""


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--run", help="Where to leave everything.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds for each method.")] = 3,
) -> None:
    """Pre-train, fine-tune OE and DAL, and compare them on data that comes with the installed packages.

    Example: `farout demo --seeds 3`
    """
    from farout.demo import demo as run_demo

    result = run_demo(folder, seeds)
    _print_table(*result.table, title="Digits 0-5 against what the classifier never saw (percent)")
    print(f"\nRows       {result.results}\nTable      {result.markdown}")
    print(f"Histograms {result.picture or result.why_no_picture}")
    print(f"Detector   {result.detector}\nUse it     farout score {result.detector} {result.example}")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (see `farout list recipes`) or a YAML file.")],
    overrides: Overrides = None,
    run: Annotated[Path | None, typer.Option(help="The run's folder; runs/RECIPE/sSEED by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in that folder.")] = False,
) -> None:
    """Train a recipe; the run's folder then holds logs, checkpoints and a calibrated detector.

    Example: `farout train demo/dal method.rho=1 --run runs/try`
    """
    from farout.run import train as run_train

    done = run_train(recipe, overrides or [], run=run, resume=resume)
    print(f"Run        {done.folder}\nDetector   {done.folder / 'detector'}")
    print(f"Next       farout eval {done.folder}")


@app.command("eval")
def eval_command(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a detector's with --recipe.")],
    overrides: Overrides = None,
    scores: Annotated[str | None, typer.Option(help="Scores to report, e.g. msp,energy.")] = None,
    recipe: Annotated[str | None, typer.Option(help="What to test a bare detector on.")] = None,
) -> None:
    """Test a run on its recipe's ID and OOD test sets and print the table.

    Example: `farout eval runs/demo/dal/s0 --scores msp,energy`
    """
    from farout.report.table import long_table
    from farout.run import evaluate

    rows = evaluate(run, overrides or [], scores=scores.split(",") if scores else (), recipe=recipe)
    _print_table(*long_table(rows), title=f"{rows[0]['id']} (percent)")
    print(f"\nRows       {run / 'results.jsonl'}\nTable      {run / 'table.md'}")


@app.command()
def score(
    detector: Annotated[Path, typer.Argument(help="A detector's folder, or a run's.")],
    images: Annotated[list[Path], typer.Argument(help="Image files or folders of them.")],
) -> None:
    """Judge images: CSV on standard output with file, label, score and verdict (ID, OOD or error).

    Example: `farout score runs/demo/detector photos/ > verdicts.csv`
    """
    from farout.scoring import judge

    folder = detector / "detector" if (detector / "detector").is_dir() else detector
    writer = csv.DictWriter(sys.stdout, ["file", "label", "score", "verdict"], lineterminator="\n")
    writer.writeheader()
    failed = 0
    for row in judge(folder, images):
        writer.writerow({key: row[key] for key in writer.fieldnames})
        if row["verdict"] == "error":
            failed += 1
            print(f"{row['file']}: {row['reason']}", file=sys.stderr)
    if failed:
        print(f"error: {failed} of the images could not be read", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def certify(
    detector: Annotated[Path, typer.Argument(help="A detector's folder, or a run's.")],
    data: Annotated[str, typer.Option(help="The set around which outliers are imagined: a name or a path.")],
    rho: Annotated[str, typer.Option(help="Radii of the ball, in sum-norm units of the features.")] = "0.1,1,10",
    root: Annotated[str | None, typer.Option(help="Where sets lie; $FAROUT_DATA, else ./data.")] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    cost: Annotated[str, typer.Option(help="l1 or l2.")] = "l1",
    domain: Annotated[str | None, typer.Option(help="reals, nonnegative or box; by default what is seen.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the curve of risk against rho here.")] = None,
) -> None:
    """Bound the worst-case outlier risk of a detector within a distance rho of a set.

    Example: `farout certify runs/demo/dal/s0 --data demo/outliers --rho 0.1,1,10 --picture curve.png`
    """
    from farout.certify import certificate_curve
    from farout.certify import certify as run_certify

    judge, samples = _detector_and_set(detector, data, root, split)
    rows = run_certify(judge, samples, _numbers(rho), cost, domain)  # type: ignore[arg-type]
    first = rows[0]
    lines = [[f"{row[key]:.4g}" for key in ("rho", "lower", "upper", "reals")] for row in rows]
    _print_table(["Rho", "Lower", "Upper", "Features anything"], lines, title=f"worst-case risk around {first['set']}")
    print(f"\nRisk on the set itself {first['risk']:.4f} nats; features {first['domain']}, cost {first['cost']}.")
    print(f"L = {first['lipschitz']:.4f} (L+ {first['l_plus']:.4f}, L- {first['l_minus']:.4f})")
    if picture is not None:
        print(f"Curve      {certificate_curve(rows, picture)}")


def _detector_and_set(folder: Path, name: str, root: str | None, split: str) -> tuple[Any, Any]:
    from farout.data.named import open_named
    from farout.detector import Detector

    judge = Detector.load(folder / "detector" if (folder / "detector").is_dir() else folder)
    return judge, open_named(name, root=root, split=split, size=judge.size or 32)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"expected numbers with commas between them, got {text!r}") from None


class Kind(StrEnum):
    methods = "methods"
    scores = "scores"
    nets = "nets"
    sets = "sets"
    recipes = "recipes"


@app.command("list")
def list_command(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Say what there is.

    Example: `farout list methods --json`
    """
    from farout.catalogue import catalogue

    rows = catalogue(kind.value)
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        header = list(rows[0])
        _print_table(header, [[_plain(row[key]) for key in header] for row in rows], title=kind.value)


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="SET", help="A set's name (see `farout list sets`) or a path.")],
    root: Annotated[str | None, typer.Option(help="Where sets lie; $FAROUT_DATA, else ./data.")] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
) -> None:
    """Find a set, count it, and read every sample once.

    Example: `farout data check cifar10 --root ~/data`
    """
    from farout.data.named import check_named

    report = check_named(name, root=root, split=split)
    print(f"Set        {report.name} ({report.split})\nFound      {report.path}")
    expected = f" of {report.expected} expected" if report.expected else ""
    print(f"Samples    {report.count}{expected}, each {'x'.join(map(str, report.shape))}")
    print(f"Classes    {len(report.classes) or 'unknown'}")
    for problem, files in (("Corrupt", report.corrupt), ("Altered", report.altered)):
        for file in files:
            print(f"{problem}    {file}")
    print("Verdict    " + ("fine" if report.ok else "not fine"))
    if not report.ok:
        raise typer.Exit(1)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _print_table(header: Sequence[str], lines: Sequence[Sequence[str]], title: str) -> None:
    table = Table(title=escape(title), title_justify="left")
    for name in header:
        table.add_column(name, justify="right" if name[:1].isupper() else "left", overflow="fold")
    section = None
    for line in lines:
        if section is not None and header[0] == "set" and line[0] != section:
            table.add_section()
        section = line[0]
        table.add_row(*map(escape, line))
    # Without a terminal the width is unknown; tables meant for a file are wide enough not to wrap.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)


def main() -> None:
    """Run the command line: exit code 0, 1 (failed), 2 (wrong usage) or 130 (interrupted)."""
    from farout.errors import FaroutError

    try:
        app()
    except KeyboardInterrupt:
        _stop("interrupted", 130)
    except (FaroutError, ValueError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        if type(error).__name__ == "Interrupted":
            _stop(f"{error}. Continue with:\n  {_resume_command()}", 130)
        _stop(f"error: {error}", 1)


def _stop(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)


def _resume_command() -> str:
    import shlex

    arguments = sys.argv[1:]
    return shlex.join(
        [
            "farout",
            *arguments,
            *([] if "--resume" in arguments or arguments[:1] == ["demo"] else ["--resume"]),
        ]
    )
