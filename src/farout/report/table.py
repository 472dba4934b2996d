"""Tables from rows: one line for each (method, score), mean ± standard deviation over seeds."""

import statistics
from collections.abc import Iterable, Sequence

from farout.types import Row

COLUMNS = {"fpr95_id": "FPR95", "fpr95_ood": "FPR95 (OOD+)", "auroc": "AUROC", "accuracy": "ID accuracy"}
"""FPR95 with ID as the positive side, as in the paper; (OOD+) with OOD positive, as in OpenOOD."""


def ordered(values: Iterable[str]) -> list[str]:
    """Distinct values in the order of their first appearance."""
    return list(dict.fromkeys(values))


def spread(values: Sequence[float]) -> str:
    """Percent, as `12.34 ± 0.56` over several seeds (sample standard deviation), `12.34` for one."""
    percent = [100 * value for value in values]
    centre = f"{statistics.fmean(percent):.2f}"
    return f"{centre} ± {statistics.stdev(percent):.2f}" if len(percent) > 1 else centre


def seed_means(rows: Iterable[Row], metric: str) -> list[float]:
    """The mean over sets within each seed, so that the spread over seeds is that of the average itself."""
    seeds: dict[object, list[float]] = {}
    for row in rows:
        seeds.setdefault(row.get("seed"), []).append(row[metric])
    return [statistics.fmean(values) for values in seeds.values()]


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; words to the left, numbers to the right."""
    rule = ["---" if title in ("method", "score", "set") else "---:" for title in header]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines)) + "\n"


def long_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """One line for each (OOD set, method, score): fits a terminal, shows both FPR95 definitions."""
    lines = []
    combinations = list(dict.fromkeys((row.get("method", ""), row["score"]) for row in rows))
    for name in [*ordered(row["ood"] for row in rows), "average"]:
        for method, score in combinations:
            mine = [row for row in rows if (row.get("method", ""), row["score"]) == (method, score)]
            if name != "average":
                mine = [row for row in mine if row["ood"] == name]
            cells = [spread(seed_means(mine, metric)) for metric in COLUMNS]
            lines.append([name.rpartition("/")[2], method, score, *cells])
    return ["set", "method", "score", *COLUMNS.values()], lines
