"""The paper's tables by one command: what each needs is trained and tested, its printed numbers stand beside ours."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farout.compare import How, Tested, at_root, lay_out, leaks, results
from farout.components import choose
from farout.entries import Entry
from farout.errors import ConfigError
from farout.paper import Printed, Table, printed
from farout.plans import PLANS, Plan, paper_id
from farout.protocols import OODSet, Protocol, load_protocol, ready
from farout.report.layouts import notes as row_notes
from farout.report.table import markdown, ordered
from farout.training.checkpoint import write_atomically
from farout.training.lock import patient
from farout.types import Row

FOLDER = Path("runs/reproduce")
QUICK = ("train.epochs=1",)
QUICK_LINES = 16  # all but the hyper-parameter tables have fewer
FIGURES = "figures"


@dataclass(frozen=True)
class Reproduction:
    """What came out: a row for each cell, what to know about it, where it lies, a line for each run that failed."""

    rows: list[Row]
    notes: list[str]
    folder: Path
    problems: Sequence[str] = ()


def reproduce(
    table: str,
    protocol: str | Path | None = None,
    how: How | None = None,
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    dal: str = "dal",
    root: str | None = None,
    skip_missing: bool = False,
    recipes: str | None = None,
    folder: Path = FOLDER,
) -> Reproduction:
    """Make one of the paper's tables, under its own protocols or another; `dal` names the recipe of its DAL.

    `recipes` is another family of recipes than the protocol's, e.g. of shorter schedules.

    `quick` is one seed, one epoch and the first lines only: a rehearsal.

    >>> reproduce("epochs", "demo", quick=True).rows                              # doctest: +SKIP
    """
    plan = choose("table", PLANS, table)
    names = [protocol] if protocol is not None else list(plan.protocols)
    chosen = [ready(load_protocol(name), root, skip_missing) for name in names]
    chosen = [replace(one, recipes=recipes or one.recipes) for one in chosen]
    how = at_root(_hurried(how or How()) if quick else how or How(seeds=plan.seeds), root)
    rows: list[Row] = []
    told = [f"A rehearsal: one seed, one epoch, {QUICK_LINES} lines at most."] if quick else []
    finish = _figures if table == FIGURES else _table
    problems: list[str] = []
    for one in chosen:
        entries = lines(plan, one, dal, quick, only, how.overrides)
        shared = leaks(entries, one, how)
        more, words, failed = finish(table, plan, one, entries, how, folder / table)
        rows, told, problems = rows + more, told + words + shared, problems + failed
    told += [f"Missing: {problem}" for problem in problems]
    done = Reproduction(rows, ordered(told), folder / table, problems)
    with patient(done.folder, how.tell):
        _write(done)
    return done


def _hurried(how: How) -> How:
    return replace(how, seeds=1, overrides=(*QUICK, *how.overrides))


def lines(
    plan: Plan,
    protocol: Protocol,
    dal: str = "dal",
    quick: bool = False,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> list[Entry]:
    """The lines to make: all, those named, or in a hurry the first few.

    In a hurry, or where `overrides` say how long to train, none has a schedule of its own.
    """
    entries = plan.entries(protocol, dal)
    labels = {entry.label for entry in entries}
    # Some of the paper's labels have commas: what is no label as a whole is several.
    only = [part.strip() for text in only for part in ([text] if text in labels else text.split(","))]
    unknown = set(only) - labels
    if unknown:
        known = ", ".join(entry.label for entry in entries[:20])
        raise ConfigError(f"the table has no line {', '.join(sorted(unknown))}; it has {known}")
    if only:
        entries = [entry for entry in entries if entry.label in only]
    if quick and not only:
        entries = entries[:QUICK_LINES]
    if quick or any(_sets_epochs(override) for override in overrides):
        entries = [replace(e, changes=tuple(c for c in e.changes if not _sets_epochs(c))) for e in entries]
    return entries


def _sets_epochs(change: str) -> bool:
    return change.partition("=")[0] == "train.epochs"


# ---- ours beside theirs


def _table(
    name: str, plan: Plan, protocol: Protocol, entries: Sequence[Entry], how: How, folder: Path
) -> tuple[list[Row], list[str], list[str]]:
    tested, problems = results(entries, protocol, how)
    with patient(folder / protocol.name, how.tell):
        lay_out(tested, folder / protocol.name)
    theirs = printed(name)
    identity = paper_id(theirs, protocol)
    rows = []
    for label, mine in _by_line(plan, tested).items():
        cells = theirs.get((identity, label), {})
        for where in [*_sets(mine[0], plan.group, cells), "average"]:
            for title, metric in plan.reads().items():
                values = [v for one in mine if (v := _value(one, where, metric, plan.group)) is not None]
                cell = cells.get((_printed_set(where, cells), title))
                if values and (cell or where == "average" or title != "accuracy"):
                    rows.append(_row(name, protocol, identity, label, where, title, cell, values))
    side = "ood" if "fpr95_ood" in plan.reads().values() else "id"
    told = [f"Averages are over the sets of group {plan.group}."] if protocol.test.keys() - {plan.group} else []
    words = [*told, *row_notes([row for one in tested for row in one.rows], side), *_notes(theirs, identity, protocol)]
    return rows, words, problems


def _sets(one: Tested, group: str, cells: dict[tuple[str, str], Printed]) -> list[str]:
    """The sets of the plan's group, over which its averages are, and those that the paper prints; else all."""
    named = {where for where, _ in cells}
    kept = [row["ood"] for row in one.rows if row["group"] == group or _printed_set(row["ood"], cells) in named]
    return ordered(kept or [row["ood"] for row in one.rows])


def _by_line(plan: Plan, tested: Sequence[Tested]) -> dict[str, list[Tested]]:
    """Our results by the label of the paper's line: all seeds in one, or a line for each."""
    found: dict[str, list[Tested]] = {}
    for one in tested:
        if plan.by_seed:
            found[f"{one.entry.label} #{one.seed + 1}"] = [one]
        else:
            found.setdefault(one.entry.label, []).append(one)
    if plan.by_seed:
        for label in ordered(one.entry.label for one in tested):
            found[f"{label} mean"] = [one for one in tested if one.entry.label == label]
    return found


def _value(one: Tested, where: str, metric: str, group: str) -> float | None:
    """One run's number in percent: of a set, or averaged over the plan's group; accuracy is the same for all."""
    wanted = [row for row in one.rows if row["ood"] == where or (where == "average" and row["group"] == group)]
    if metric == "accuracy":
        wanted = one.rows
    return 100 * statistics.fmean(row[metric] for row in wanted) if wanted else None


def _printed_set(where: str, cells: dict[tuple[str, str], Printed]) -> str:
    """Our `svhn` is the paper's SVHN, `cifar100` its CIFAR-100."""
    for name, _ in cells:
        if name.lower().replace("cifar-", "cifar") == where:
            return name
    return where


def _row(
    table: str,
    protocol: Protocol,
    identity: str,
    label: str,
    where: str,
    title: str,
    cell: Printed | None,
    values: Sequence[float],
) -> Row:
    ours = statistics.fmean(values)
    same = protocol.name.startswith("paper-") and not protocol.left_out
    return {
        "table": table,
        "protocol": protocol.name,
        "paper_id": identity,
        "row": label,
        "set": where,
        "metric": title,
        "printed": cell.value if cell else None,
        "right": cell.right if cell else None,
        "why": cell.why if cell else "",
        "paper": cell.text() if cell else "",
        "ours": ours,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": len(values),
        "difference": ours - cell.best if cell and same else None,
    }


def _notes(theirs: Table, identity: str, protocol: Protocol) -> list[str]:
    told = []
    sets = ordered(where for (name, _), cells in theirs.items() if name == identity for where, _ in cells)
    own = {ood.name for ood in protocol.sets()}
    untested = [w for w in sets if w != "average" and w.lower().replace("cifar-", "cifar") not in own]
    if untested:
        told.append(f"Columns of the paper that {protocol.name} does not test: {', '.join(untested)}.")
    if not protocol.name.startswith("paper-"):
        told.append(f"{protocol.name} is not the paper's data: compare lines with each other, not with {identity}.")
    told.append("[..] is our correction of a printed number, [?] one that is wrong without a known right value.")
    return [*told, *([protocol.note] if protocol.note else [])]


def shown(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The table as it is printed: paper, ours, and the difference where the data are the paper's."""
    header = ["protocol", "method", "set", "metric", "Paper", "Ours", "Ours - paper"]
    lines = []
    for row in rows:
        ours = f"{row['ours']:.2f}" + (f" ± {row['std']:.2f}" if row["std"] is not None else "")
        difference = "" if row["difference"] is None else f"{row['difference']:+.2f}"
        name = row["set"].rpartition("/")[2]
        lines.append([row["protocol"], row["row"], name, row["metric"], row["paper"], ours, difference])
    return header, lines


def _write(done: Reproduction) -> None:
    texts = {
        "rows.jsonl": "".join(json.dumps(row) + "\n" for row in done.rows),
        "table.md": markdown(*shown(done.rows)) + "\n" + "\n\n".join(done.notes) + "\n",
    }
    for name, text in texts.items():
        write_atomically(done.folder / name, lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]


# ---- figures


def _figures(
    name: str, plan: Plan, protocol: Protocol, entries: Sequence[Entry], how: How, folder: Path
) -> tuple[list[Row], list[str], list[str]]:
    """The runs behind the figures, as rows in trials.jsonl and as run folders, and the figures drawn from them."""
    wider, told = _with_auxiliary(protocol, how)
    tested, problems = results(entries, wider, how)
    home = folder / protocol.name
    with patient(home, how.tell):
        lay_out(tested, home)
    swept = [_trial(one, protocol) for one in tested if one.entry.changes]
    text = "".join(json.dumps(row) + "\n" for row in swept)
    write_atomically(home / "trials.jsonl", lambda file: file.write(text.encode()))  # type: ignore[arg-type]
    rows = [
        _row(name, protocol, protocol.paper, one.entry.label, where, "FPR95", None, [value])
        for one in tested
        for where in ("average", protocol.outliers or "")
        if (value := _value(one, where, "fpr95_id", plan.group)) is not None
    ]
    return rows, [*told, *_draw(home)], problems


def _with_auxiliary(protocol: Protocol, how: How) -> tuple[Protocol, list[str]]:
    """The auxiliary outliers as one more test set, if there is a test split of them."""
    if protocol.outliers is None:
        return protocol, ["The protocol names no auxiliary outliers, so their curve is missing."]
    root = next((o.partition("=")[2].strip('"') for o in how.overrides if o.startswith("data.root=")), None)
    own = OODSet(protocol.outliers, drop=protocol.drop)
    wider = replace(protocol, test={**protocol.test, "auxiliary": (own,)})
    if own.name in wider.missing(root):
        return protocol, [f"{own.name} has no test split on this disk, so the curve of auxiliary outliers is missing."]
    return wider, []


def _trial(one: Tested, protocol: Protocol) -> Row:
    """A row as the ρ figure reads it: the settings, FPR95 on real and on auxiliary outliers."""
    settings = dict(part.split("=") for part in one.entry.label.split())
    real = _value(one, "average", "fpr95_id", "far")
    auxiliary = _value(one, protocol.outliers or "", "fpr95_id", "auxiliary")
    return {
        **{key: float(value) for key, value in settings.items()},
        "fpr95": real,
        "fpr95_aux": auxiliary,
        "seed": one.seed,
    }


def _draw(home: Path) -> list[str]:
    try:
        from farout.see import write_figures

        paths = write_figures([home], home / "figures", "png")
    except ImportError as error:  # a drawing package that is not installed says so itself
        return [f"No figure is drawn ({error}); the rows are in {home / 'trials.jsonl'}."]
    return [f"Figures: {', '.join(map(str, paths))}"]
