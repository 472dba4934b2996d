"""data fetch and data overlap: getting sets, and seeing that they are apart."""

import json
from typing import Annotated, Any

import typer

from farout.cli.app import Root, data_app, print_table


@data_app.command()
def fetch(
    name: Annotated[str | None, typer.Argument(metavar="[SET]", help="Which set; without it, those there are.")] = None,
    root: Root = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the archive after unpacking it.")] = False,
) -> None:
    """Fetch a public set, check it and unpack it; broken off, the same command goes on.

    Example: `farout data fetch cifar10 --root ~/data`
    """
    from farout.data import SETS
    from farout.data import fetch as fetching

    if name is None:
        lines = [[known.name, known.licence, known.citation] for known in fetching.ORIGINS.values()]
        print_table(["set", "terms", "cite"], lines, title="sets that farout can fetch")
        return
    known = fetching.origin(name)
    print(f"Set        {known.name}\nTerms      {known.licence}\nCite       {known.citation}")
    if known.note:
        print(f"Note       {known.note}")
    with _bar() as bar:
        found = fetching.fetch(known, root, keep=keep, progress=bar)
    for one in found:
        print(f"Path       {one.path}" + ("" if one.sha256 else " (was already there)"))
        if one.sha256:
            print(f"SHA-256    {one.sha256} (of the file as fetched)")
    if known.name in SETS:
        print(f"Next       farout data check {known.name}" + (f" --root {root}" if root else ""))


class _bar:
    """A progress bar on standard error that is told what is going on, and how far."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> "_bar":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=total)
        self.progress.update(self.tasks[what], completed=done, total=total)


@data_app.command()
def overlap(
    a: Annotated[str, typer.Argument(metavar="A", help="A set's name or path, e.g. the outliers.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The set to look for in it, e.g. a test set.")],
    root: Root = None,
    split_a: Annotated[str, typer.Option(help="train or test, of A.")] = "train",
    split_b: Annotated[str, typer.Option(help="train or test, of B.")] = "train",
    threshold: Annotated[int, typer.Option(help="How many of 63 bits may differ in a near copy.")] = 4,
    size: Annotated[int, typer.Option(help="The side to which image files are resized.")] = 32,
    examples: Annotated[int, typer.Option(help="How many pairs to show.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Find images that two sets share, exactly or nearly, and class names that both have.

    Example: `farout data overlap tinyimagenet cifar10 --split-b test`
    """
    from farout.data.named import open_named
    from farout.data.overlap import overlap as find_overlap

    first = open_named(a, root=root, split=split_a, size=size)
    second = open_named(b, root=root, split=split_b, size=size)
    found = find_overlap(first, second, threshold=threshold, examples=examples)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    for side, name, split in (("a", a, split_a), ("b", b, split_b)):
        count, exact, near, flat = (getattr(found, f"{what}_{side}") for what in ("count", "exact", "near", "flat"))
        print(f"{side.upper()}          {name} ({split})")
        print(f"Exact      {exact} of {count} samples are in the other set")
        print(f"Near       {near} have a near copy there; {flat} without contrast were not looked at")
    print(f"Classes    {', '.join(found.classes) or 'none in common'}")
    if found.examples:
        lines = [[str(p.a), str(p.b), str(p.distance), f"{p.likeness:.3f}"] for p in found.examples]
        print_table(["A", "B", "Bits", "Likeness"], lines, title="nearest pairs: indices, bits, correlation of greys")
        print("Near is by a perceptual hash, which also takes some plain images for alike: look before you judge.")
