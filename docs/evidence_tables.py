"""Tables of docs/results.md and the README, from results/local-*/ and results/tuning/."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from farout.report.table import markdown, ordered
from farout.training.log import read_rows

RESULTS = Path(__file__).resolve().parent.parent / "results"
SETS = ("cifar10", "cifar100")


def _range(row: dict, metric: str) -> str:
    return f"{100 * row[metric]:.2f} [{100 * row[f'{metric}_low']:.1f}, {100 * row[f'{metric}_high']:.1f}]"


def averages(name: str) -> str:
    """One line a method and score: both FPR95 and AUROC averaged over the OOD sets, with intervals."""
    rows = [row for row in read_rows(RESULTS / f"local-{name}" / "intervals.jsonl") if row["set"] == "average"]
    lines = []
    for row in rows:
        ranges = [_range(row, metric) for metric in ("fpr95_id", "fpr95_ood", "auroc")]
        lines.append([row["method"], row["score"], *ranges, f"{100 * row['accuracy']:.2f}"])
    return markdown(["method", "score", "FPR95", "FPR95 (OOD+)", "AUROC", "ID accuracy"], lines)


def by_set(name: str) -> str:
    """FPR95 of every set, means over seeds."""
    rows = read_rows(RESULTS / f"local-{name}" / "intervals.jsonl")
    sets = ordered(row["set"] for row in rows)
    lines = []
    for key in dict.fromkeys((row["method"], row["score"]) for row in rows):
        mine = {row["set"]: row for row in rows if (row["method"], row["score"]) == key}
        lines.append([*key, *(f"{100 * mine[each]['fpr95_id']:.2f}" for each in sets)])
    return markdown(["method", "score", *sets], lines)


def verdicts(name: str) -> str:
    """What differs from CE and OE on average over the sets, seed by seed and image by image."""
    lines = []
    for path in sorted((RESULTS / f"local-{name}").glob("differences*.jsonl")):
        rows = [row for row in read_rows(path) if row["set"] == "average" and "dal" not in row["second"]]
        lines += [f"- {row['verdict']}" for row in rows]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def tuning(name: str) -> str:
    """Validation FPR95 of every point that was tried."""
    study, lines = json.loads((RESULTS / "tuning" / "short.json").read_text()), []
    for row in (row for row in study["trials"] if row["id"] == name):
        point = ", ".join(f"{key} {value}" for key, value in row.items() if key not in ("id", "method", "fpr95_id"))
        lines.append([row["method"], point, f"{100 * row['fpr95_id']:.2f}"])
    return markdown(["method", "score", "FPR95"], lines).replace("| method | score |", "| method | point |")


PARTS: dict[str, Callable[[], str]] = {}
for each in SETS:
    for title, make in (("averages", averages), ("by-set", by_set), ("verdicts", verdicts), ("tuning", tuning)):
        PARTS[f"{title}-{each}"] = partial(make, each)
