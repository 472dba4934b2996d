"""tune: hyper-parameters chosen on held-out training data."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from farout.cli.app import Overrides, app, print_table

SHOWN = 10  # trials in the printed table


class Sampler(StrEnum):
    coordinate = "coordinate"
    grid = "grid"
    tpe = "tpe"
    random = "random"


class Pruner(StrEnum):
    halving = "halving"


@app.command()
def tune(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (see `farout list recipes`) or a YAML file.")],
    overrides: Overrides = None,
    space: Annotated[str, typer.Option(help="What to search: paper, another space's name, or a YAML file.")] = "paper",
    trials: Annotated[int, typer.Option(min=1, help="At most so many trainings.")] = 50,
    sampler: Annotated[Sampler, typer.Option(help="coordinate is the paper's search.")] = Sampler.coordinate,
    pruner: Annotated[Pruner | None, typer.Option(help="Stop trainings early that do not promise.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Where the study is: SQLite in its folder, any Optuna address, or journal:PATH.")
    ] = None,
    study: Annotated[str | None, typer.Option(help="The study's name; RECIPE-SPACE by default.")] = None,
    folder: Annotated[Path | None, typer.Option("--run", help="Its folder; runs/tune/STUDY by default.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the search; the trainings have the recipe's.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the coordinate search.")] = 50,
    protocol: Annotated[str | None, typer.Option(help="Take the data from this protocol, not the recipe.")] = None,
    test: Annotated[bool, typer.Option("--test", help="Then train the winner and test it, once.")] = False,
) -> None:
    """Choose hyper-parameters on data held out from training; no test set is read. The same command goes on.

    Example: `farout tune demo/dal train.init=runs/demo/ce/s0 --space paper --trials 50`
    """
    from farout.report.table import long_table
    from farout.training import Interrupted
    from farout.tune import tune as run_tune

    try:
        done = run_tune(
            recipe,
            overrides or [],
            space=space,
            trials=trials,
            sampler=sampler.value,
            pruner=pruner.value if pruner else None,
            storage=storage,
            study=study,
            folder=folder,
            jobs=jobs,
            seed=seed,
            rounds=rounds,
            test=test,
            protocol=protocol,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except (Interrupted, KeyboardInterrupt):
        print("interrupted; what was under way is saved. The same command goes on.", file=sys.stderr)
        raise typer.Exit(130) from None
    finished = sorted((row for row in done.rows if row["state"] == "complete"), key=lambda row: row["fpr95_id"])
    searched = [key.partition("=")[0] for key in done.overrides]
    lines = [
        [str(row["trial"]), *(f"{100 * row[key]:.2f}" for key in ("fpr95_id", "auroc", "accuracy"))]
        + [str(row[key]) for key in searched]
        for row in finished[:SHOWN]
    ]
    header = ["Trial", "FPR95", "AUROC", "ID accuracy", *(key.rpartition(".")[2] for key in searched)]
    print_table(header, lines, title=f"validation, {len(finished)} of {len(done.rows)} trials finished (percent)")
    print(f"\nBest       {' '.join(done.overrides)}\nRows       {done.folder / 'trials.jsonl'}")
    if done.winner is None:
        print(f"Next       farout train {done.folder / 'best.yaml'}")
    else:
        print_table(*long_table(done.test_rows), title=f"test of the winner, {done.winner.folder} (percent)")
