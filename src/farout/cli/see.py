"""report and figures: runs to look at."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from farout.cli.app import app

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that hold several.")]
Samples = Annotated[int, typer.Option(min=0, help="How many samples of each set to show the network; 0 asks none.")]


class Kind(StrEnum):
    pdf = "pdf"
    svg = "svg"
    png = "png"


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The file to write; report.html beside the runs by default.")] = None,
    samples: Samples = 400,
) -> None:
    """Make one HTML file about runs: tables, figures and mistakes, to open in any browser without a network.

    Example: `farout report runs/demo --out report.html`
    """
    from farout.see import write_report

    path = write_report(runs, out or _beside(runs) / "report.html", samples)
    print(f"Report     {path} ({path.stat().st_size / 1e6:.1f} MB)")


@app.command()
def figures(
    runs: Runs,
    to: Annotated[Kind, typer.Option(help="The kind of file.")] = Kind.pdf,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write into; figures/ beside the runs by default.")
    ] = None,
    samples: Samples = 400,
) -> None:
    """Draw the report's figures for a paper, one file each.

    Example: `farout figures runs/demo --to pdf --out figures`
    """
    from farout.see import write_figures

    for path in write_figures(runs, out or _beside(runs) / "figures", to.value, samples):
        print(f"Figure     {path}")


def _beside(runs: list[Path]) -> Path:
    return runs[0] if len(runs) == 1 else Path(".")
