"""Tables of docs/results.md and the README, from results/fast-*/, results/local-*/ and results/tuning/."""

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


def averages(folder: str) -> str:
    """One line a method and score: both FPR95 and AUROC averaged over the OOD sets, with intervals."""
    rows = [row for row in read_rows(RESULTS / folder / "intervals.jsonl") if row["set"] == "average"]
    lines = []
    for row in rows:
        ranges = [_range(row, metric) for metric in ("fpr95_id", "fpr95_ood", "auroc")]
        lines.append([row["method"], row["score"], *ranges, f"{100 * row['accuracy']:.2f}"])
    return markdown(["method", "score", "FPR95", "FPR95 (OOD+)", "AUROC", "ID accuracy"], lines)


def by_set(folder: str) -> str:
    """FPR95 of every set, means over seeds."""
    rows = read_rows(RESULTS / folder / "intervals.jsonl")
    sets = ordered(row["set"] for row in rows)
    lines = []
    for key in dict.fromkeys((row["method"], row["score"]) for row in rows):
        mine = {row["set"]: row for row in rows if (row["method"], row["score"]) == key}
        lines.append([*key, *(f"{100 * mine[each]['fpr95_id']:.2f}" for each in sets)])
    return markdown(["method", "score", *sets], lines)


def verdicts(folder: str) -> str:
    """What differs from CE and OE on average over the sets, seed by seed and image by image."""
    lines = []
    for path in sorted((RESULTS / folder).glob("differences*.jsonl")):
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


PAIRS = (("dal", "oe"), ("oe-wide", "oe"), ("dal-wide", "oe"), ("dal-wide", "oe-wide"), ("dal-wide", "dal"))


def pairs(folder: str) -> str:
    """FPR95 and AUROC of one method against another, both with the same score: difference, interval, p."""
    found = {}
    for path in sorted((RESULTS / folder).glob("differences*.jsonl")):
        rows = [row for row in read_rows(path) if row["set"] == "average"]
        found.update({(row["first"], row["second"], row["metric"]): row for row in rows})
    lines = []
    for score in ("msp", "energy"):
        for one, other in PAIRS:
            names = [name if score == "msp" else f"{name} ({score})" for name in (one, other)]
            cells = [_change(found.get((*names, metric))) for metric in ("fpr95_id", "auroc")]
            lines.append([f"{one} − {other}", score, *cells])
    return markdown(["difference", "score", "FPR95", "AUROC"], lines)


def _change(row: dict | None) -> str:
    if row is None:
        return ""
    told = "**" if row["low"] > 0 or row["high"] < 0 else ""
    p = "p<0.001" if row["p"] < 0.001 else f"p={row['p']:.2g}"
    return f"{told}{100 * row['value']:+.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]{told}, {p}"


def fast_tuning(folder: str) -> str:
    """Validation FPR95 and accuracy of every point, and FPR95 on the held-out auxiliary classes alone."""
    lines = []
    for row in read_rows(RESULTS / folder / "tuning.jsonl"):
        point = {key.rpartition(".")[2]: value for key, value in row.items() if "." in key}
        outliers = next(value for name, value in row["by_set"].items() if not name.startswith("synthetic"))
        shown = ", ".join(f"{key} {value}" for key, value in point.items())
        lines.append([row["study"], shown, *(f"{100 * x:.1f}" for x in (row["fpr95_id"], outliers, row["accuracy"]))])
    return _plain(["method", "point", "FPR95", "auxiliary classes", "ID accuracy"], lines)


CHANGES = {
    "oe a2": "none",
    "mix": "a blend of two outliers",
    "sharp": "sharpness",
    "colour": "colours",
    "all": "blend, sharpness, colours, two halves",
    "shuffle": "a fifth: shuffled patches of ID images",
    "swap": "an ID image's Fourier amplitudes",
    "dal tuned": "none; DAL as tuned for the short schedule",
}


def exploration(folder: str) -> str:
    """What was tried on the outliers, before `wide` was made: validation first, the test beside it."""
    lines = []
    for row in read_rows(RESULTS / folder / "exploration.jsonl"):
        judged = {name: value for name, value in row["validation_fpr95"].items() if name != "matched"}
        test = [fpr95 for fpr95, _ in row["test_fpr95_auroc"].values()]
        numbers = [sum(judged.values()) / len(judged), judged["raw"], sum(test) / len(test), 100 * row["accuracy"]]
        lines.append([CHANGES[row["outliers"]], *(f"{x:.1f}" for x in numbers)])
    return _plain(
        ["half of the outliers get", "validation FPR95", "auxiliary classes", "test FPR95", "accuracy"], lines
    )


def post_hoc(folder: str) -> str:
    """FPR95 / AUROC of every score on every network of seed 0, averaged over the sets."""
    rows = read_rows(RESULTS / folder / "scores.jsonl")
    methods, lines = ordered(row["method"] for row in rows), []
    for score in ordered(row["score"] for row in rows):
        cells = []
        for method in methods:
            mine = [row for row in rows if (row["method"], row["score"]) == (method, score)]
            mean = [100 * sum(row[metric] for row in mine) / len(mine) for metric in ("fpr95_id", "auroc")]
            cells.append(f"{mean[0]:.1f} / {mean[1]:.1f}")
        lines.append([score, *cells])
    return _plain(["score", *methods], lines)


def search() -> str:
    """What gamma, the search and the certificate did in the last quarter of training, means over seeds."""
    lines = []
    for name in SETS:
        rows = read_rows(RESULTS / f"fast-{name}" / "search.jsonl")
        for method in ordered(row["method"] for row in rows):
            mine = [row for row in rows if row["method"] == method]
            keys = ("gamma", "radius", "gain", "efficiency")
            lines.append([name, method, *(f"{sum(row[key] for row in mine) / len(mine):.3f}" for key in keys)])
    return _plain(["ID set", "method", "gamma", "radius", "gain in loss", "efficiency"], lines)


def _plain(header: list[str], lines: list[list[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


PARTS: dict[str, Callable[[], str]] = {"search-stats": search}
for each in SETS:
    for title, make in (("averages", averages), ("by-set", by_set), ("verdicts", verdicts)):
        PARTS[f"{title}-{each}"] = partial(make, f"local-{each}")
    PARTS[f"tuning-{each}"] = partial(tuning, each)
    made = {"averages": averages, "by-set": by_set, "pairs": pairs, "tuning": fast_tuning}
    for title, make in (made | {"exploration": exploration, "scores": post_hoc}).items():
        PARTS[f"fast-{title}-{each}"] = partial(make, f"fast-{each}")
