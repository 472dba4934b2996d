"""The application that commands hang on, and what they share: tables, numbers, opening a detector and a set."""

import sys
from collections.abc import Sequence
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
Root = Annotated[str | None, typer.Option(help="Where sets lie; $FAROUT_DATA, else ./data.")]
Split = Annotated[str, typer.Option(help="train or test.")]
DetectorFolder = Annotated[Path, typer.Argument(help="A detector's folder, or a run's.")]


def print_table(header: Sequence[str], lines: Sequence[Sequence[str]], title: str) -> None:
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


def detector_folder(folder: Path) -> Path:
    """The detector inside a run's folder, or the folder itself."""
    return folder / "detector" if (folder / "detector").is_dir() else folder


def detector_and_set(folder: Path, name: str, root: str | None, split: str) -> tuple[Any, Any]:
    """A detector, and a set at the size its images have."""
    from farout.data.named import open_named
    from farout.detector import Detector

    judge = Detector.load(detector_folder(folder))
    return judge, open_named(name, root=root, split=split, size=judge.size or 32)


def numbers(text: str) -> list[float]:
    """`0.1,1,10` as numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"expected numbers with commas between them, got {text!r}") from None
