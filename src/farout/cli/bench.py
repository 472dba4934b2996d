"""compare, table and reproduce: methods side by side, with statistics."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from farout.cli.app import Overrides, Root, app, print_table


class Leakage(StrEnum):
    warn = "warn"
    refuse = "refuse"
    none = "none"


Protocol = Annotated[str, typer.Option(help="A protocol's name (see `farout list protocols`) or a YAML file.")]
Jobs = Annotated[int, typer.Option(min=1, help="How many trainings at a time.")]
Cache = Annotated[Path, typer.Option(help="Where trained runs are kept, so that nothing is trained twice.")]
SkipMissing = Annotated[bool, typer.Option("--skip-missing", help="Leave out OOD sets that are not on the disk.")]
Leaks = Annotated[Leakage, typer.Option(help="Images that training and test sets share: tell, refuse, or do not look.")]
Recipes = Annotated[
    str | None, typer.Option(help="Take recipes from this family, not the protocol's, e.g. cifar10-short.")
]
Resume = Annotated[bool, typer.Option("--resume", hidden=True)]  # always so; named by the message after Ctrl-C


class Layout(StrEnum):
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    openood = "openood"
    leaderboard = "leaderboard"
    jsonl = "jsonl"


class Side(StrEnum):
    id = "id"
    ood = "ood"


class PaperTable(StrEnum):
    table1 = "table1"
    hard = "hard"
    accuracy = "accuracy"
    scores = "scores"
    trials = "trials"
    hyper = "hyper"
    epochs = "epochs"
    norms = "norms"
    probe = "probe"
    fnr = "fnr"
    imagenet = "imagenet"
    figures = "figures"


@app.command()
def compare(
    methods: Annotated[str, typer.Argument(help="With commas between them; ce:energy tests ce with that score.")],
    overrides: Overrides = None,
    protocol: Protocol = "demo",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds for each method.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them, to share a comparison's seeds out.")] = 0,
    jobs: Jobs = 1,
    ours: Annotated[str | None, typer.Option(help="Judged against each of the others; the last by default.")] = None,
    root: Root = None,
    skip_missing: SkipMissing = False,
    recipes: Recipes = None,
    leakage: Leaks = Leakage.warn,
    run: Annotated[Path | None, typer.Option(help="Where results go; runs/compare/PROTOCOL by default.")] = None,
    cache: Cache = Path("runs/cache"),
    resume: Resume = False,
) -> None:
    """Train and test methods under one protocol with several seeds, and say which differ.

    Example: `farout compare ce,oe,dal --protocol demo --seeds 5 --jobs 2`
    """
    from farout.compare import How, interval_table
    from farout.compare import compare as run_compare

    changes = tuple(overrides or ())
    how = How(seeds, jobs, changes, cache, leakage=leakage.value, tell=_tell, first_seed=first_seed)
    names = [name for name in methods.split(",") if name.strip()]
    done = run_compare(
        names, protocol, how, ours=ours, root=root, skip_missing=skip_missing, recipes=recipes, folder=run
    )
    print_table(*interval_table(done.intervals), title=f"{protocol} (percent, 95 % intervals over images and seeds)")
    print()
    for line in [*done.verdicts, "", *done.notes]:
        print(line)
    print(f"\nRows       {done.folder / 'results.jsonl'}\nPairs      {done.folder / 'differences.jsonl'}")
    print(f"Table      {done.folder / 'table.md'}")
    _fail(done.problems)


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, folders of runs, or files of result rows.")],
    layout: Annotated[Layout, typer.Option(help="What to print.")] = Layout.markdown,
    positive: Annotated[Side, typer.Option(help="Whose FPR95 a wide table shows: id (the paper) or ood.")] = Side.id,
    out: Annotated[Path | None, typer.Option(help="A file to write instead; for openood, a folder.")] = None,
) -> None:
    """Lay results out as Markdown, CSV, LaTeX, OpenOOD's CSV, a line for its leaderboard, or JSONL.

    Example: `farout table runs/compare/demo --layout latex --out table.tex`
    """
    from farout.report.layouts import LAYOUTS, openood_files
    from farout.report.rows import find_rows

    rows = find_rows(runs)
    if out is not None and layout is Layout.openood:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in openood_files(rows).items():
            (out / f"{name.replace('/', '-').replace(', ', '-')}.csv").write_text(text, encoding="utf-8")
        return
    text = LAYOUTS[layout.value](rows, positive.value)
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, encoding="utf-8")


@app.command()
def reproduce(
    name: Annotated[PaperTable, typer.Argument(metavar="TABLE", help="A table of the paper, or its figures.")],
    overrides: Overrides = None,
    protocol: Annotated[str | None, typer.Option(help="Other data than the paper's, e.g. demo.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, one epoch, few lines: a rehearsal.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; each table has its own default.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these lines, e.g. MSP,OE,DAL.")] = None,
    dal: Annotated[str, typer.Option(help="The recipe behind the paper's DAL, e.g. dal-proximal.")] = "dal",
    jobs: Jobs = 1,
    root: Root = None,
    skip_missing: SkipMissing = False,
    recipes: Recipes = None,
    leakage: Leaks = Leakage.warn,
    run: Annotated[Path, typer.Option(help="Where results go, in a folder for each table.")] = Path("runs/reproduce"),
    cache: Cache = Path("runs/cache"),
    resume: Resume = False,
) -> None:
    """Make a table of the paper again and set its printed numbers, our corrections marked, beside ours.

    Example: `farout reproduce epochs --protocol demo --quick`
    """
    from farout.compare import How
    from farout.plans import PLANS
    from farout.reproduce import reproduce as run_reproduce
    from farout.reproduce import shown

    how = How(seeds or PLANS[name.value].seeds, jobs, tuple(overrides or ()), cache, leakage=leakage.value, tell=_tell)
    done = run_reproduce(
        name.value,
        protocol,
        how,
        quick=quick,
        only=only or (),
        dal=dal,
        root=root,
        skip_missing=skip_missing,
        recipes=recipes,
        folder=run,
    )
    print_table(*shown(done.rows), title=PLANS[name.value].what)
    print()
    for line in done.notes:
        print(line)
    print(f"\nRows       {done.folder / 'rows.jsonl'}\nTable      {done.folder / 'table.md'}")
    _fail(done.problems)


def _fail(problems: Sequence[str]) -> None:
    """What is there was shown; what is not is an error."""
    if problems:
        for problem in problems:
            _tell(f"error: {problem}")
        _tell("The same command tries these again; all else is kept.")
        raise typer.Exit(1)


def _tell(line: str) -> None:
    import sys

    print(line, file=sys.stderr, flush=True)
