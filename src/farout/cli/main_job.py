"""demo, train and eval: the way from data to a tested detector."""

from pathlib import Path
from typing import Annotated

import typer

from farout.cli.app import Overrides, app, print_table


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--run", help="Where to leave everything.")] = Path("runs/demo"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds for each method; 3, or 1 with --all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every method and score; the averages are shown.")] = False,
) -> None:
    """Pre-train, fine-tune OE and DAL, and compare them on data that comes with the installed packages.

    Example: `farout demo --seeds 3`
    """
    from farout.demo import demo as run_demo

    result = run_demo(folder, seeds or (1 if everything else 3), everything)
    header, lines = result.table
    shown = [line for line in lines if line[0] == "average"] if everything else lines
    print_table(header, shown, title="Digits 0-5 against what the classifier never saw (percent)")
    print(f"\nRows       {result.results}\nTable      {result.markdown}")
    print(f"Histograms {result.picture or result.why_no_picture}\nReport     {result.report}")
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
    from farout import distributed
    from farout.run import train as run_train

    done = run_train(recipe, overrides or [], run=run, resume=resume)
    if distributed.started_rank() > 0:
        return
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
    print_table(*long_table(rows), title=f"{rows[0]['id']} (percent)")
    print(f"\nRows       {run / 'results.jsonl'}\nTable      {run / 'table.md'}")
