"""data fetch, data overlap and data fingerprint: getting sets, seeing that they are apart, and what else differs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farout.cli.app import Root, data_app, print_table

if TYPE_CHECKING:
    from farout.data.source import ImageSet
    from farout.protocols import Protocol


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


@data_app.command()
def fingerprint(
    id_set: Annotated[str | None, typer.Argument(metavar="ID", help="The ID set's name or path.")] = None,
    outliers: Annotated[str | None, typer.Argument(metavar="OUTLIERS", help="The auxiliary set.")] = None,
    tests: Annotated[list[str] | None, typer.Argument(metavar="TEST", help="OOD sets to test on.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Take all sets, less the classes it drops, from this protocol.")
    ] = None,
    root: Root = None,
    count: Annotated[int, typer.Option(help="How many images of each set to look at.")] = 3000,
    size: Annotated[int, typer.Option(help="The side to which image files are resized; a protocol has its own.")] = 32,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out OOD sets of the protocol that are not on the disk.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the rows to this JSON file.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Say how well power spectra alone tell auxiliary outliers from ID images: a short cut that a network may take.

    Example: `farout data fingerprint cifar10 tinyimagenet textures`, or with `--protocol local-cifar10`
    """
    from farout.data.fingerprint import fingerprint as take
    from farout.data.fingerprint import verdict
    from farout.training.checkpoint import write_atomically

    chosen = _chosen(protocol, id_set, outliers, tests or [], size)
    known, pool, oods = _opened(chosen, root, skip_missing)
    rows = take(known, pool, oods, count=count)
    found = {"id": chosen.id, "outliers": chosen.outliers, "count": count, "rows": rows}
    text = json.dumps(found, indent=2)
    if out is not None:
        write_atomically(out, lambda file: file.write(f"{text}\n".encode()))  # type: ignore[arg-type]
    if as_json:
        print(text)
        return
    lines = [[row["set"], f"{row['auroc']:.3f}", f"{row['count']:,}"] for row in rows]
    print_table(["outliers", "AUROC", "Images"], lines, title=f"{chosen.id} and {chosen.outliers}, by spectrum")
    print(f"Verdict    {verdict(rows[0]['auroc'])}")


def _chosen(protocol: str | None, id_set: str | None, outliers: str | None, tests: list[str], size: int) -> "Protocol":
    """The protocol by name, or one made of the sets that were given."""
    from farout.errors import ConfigError
    from farout.protocols import OODSet, Protocol, load_protocol

    if (protocol is None) == (id_set is None) or (id_set is not None and outliers is None):
        raise typer.BadParameter("give ID OUTLIERS [TEST ...], or --protocol NAME alone")
    if protocol is None:
        return Protocol("", "", id_set or "", {"test": tuple(map(OODSet, tests))}, outliers, size=size)
    chosen = load_protocol(protocol)
    if chosen.outliers is None:
        raise ConfigError(f"protocol {chosen.name!r} has no auxiliary set to look at; give ID OUTLIERS [TEST ...]")
    return chosen


def _opened(
    protocol: "Protocol", root: str | None, skip_missing: bool
) -> tuple["ImageSet", "ImageSet", dict[str, "ImageSet"]]:
    """The sets as training and evaluation see them: ID, auxiliary and test sets, less dropped classes."""
    from farout.data.named import open_named
    from farout.data.outliers import auxiliary, without_classes
    from farout.protocols import ready

    protocol = ready(protocol, root, skip_missing) if protocol.name else protocol
    known = open_named(protocol.id, root=root, size=protocol.size)
    pool = open_named(protocol.outliers or "", root=root, size=protocol.size)
    pool = auxiliary(pool, known.classes, protocol.drop)
    tests = {
        ood.name: without_classes(
            open_named(ood.path or ood.name, root=root, split="test", size=protocol.size), ood.drop
        )
        for ood in protocol.sets()
    }
    return known, pool, tests
