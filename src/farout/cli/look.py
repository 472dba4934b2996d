"""list and data check: what there is."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farout.cli.app import Root, Split, app, data_app, print_table

if TYPE_CHECKING:
    from farout.data.sets import Report


class Kind(StrEnum):
    methods = "methods"
    scores = "scores"
    nets = "nets"
    sets = "sets"
    recipes = "recipes"
    protocols = "protocols"
    spaces = "spaces"
    optimizers = "optimizers"
    schedules = "schedules"
    augments = "augments"
    loaders = "loaders"
    engines = "engines"


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
        print_table(header, [[_plain(row[key]) for key in header] for row in rows], title=kind.value)


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="SET", help="A set's name (see `farout list sets`) or a path.")],
    root: Root = None,
    split: Split = "train",
    strict: Annotated[bool, typer.Option("--strict", help="Fail where the count is not the published one.")] = False,
) -> None:
    """Find a set, count it, and read every sample once; a part of a set is fine, and said to be one.

    Example: `farout data check cifar10 --root ~/data`
    """
    from farout.data.named import check_named

    report = check_named(name, root=root, split=split)
    print(f"Set        {report.name} ({report.split})\nFound      {report.path}")
    print(f"Samples    {report.count:,}, each {'x'.join(map(str, report.shape))}")
    print(f"Classes    {len(report.classes) or 'unknown'}")
    for problem, files in (("Corrupt", report.corrupt), ("Altered", report.altered)):
        for file in files:
            print(f"{problem}    {file}")
    broken = bool(report.corrupt or report.altered)
    differs = report.expected not in (None, report.count)
    print("Verdict    " + ("not fine" if broken else "fine") + (f"; {_count_note(report)}" if differs else ""))
    if broken or (differs and strict):
        raise typer.Exit(1)


def _count_note(report: "Report") -> str:
    """What a count that is not the published one means."""
    kind = "a part" if report.count < (report.expected or 0) else "another set, or several"
    return f"{report.count:,} images, and the published set has {report.expected:,}: {kind}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
