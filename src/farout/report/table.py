"""Tables from rows: one line for each (method, score), mean ± standard deviation over seeds."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from farout.types import Row

METRICS = {"fpr95_id": "FPR95", "auroc": "AUROC"}


def ordered(values: Iterable[str]) -> list[str]:
    """Distinct values in the order of their first appearance."""
    return list(dict.fromkeys(values))


def spread(values: Sequence[float]) -> str:
    """Percent, as `12.34 ± 0.56` over several seeds (sample standard deviation), `12.34` for one."""
    percent = [100 * value for value in values]
    centre = f"{statistics.fmean(percent):.2f}"
    return f"{centre} ± {statistics.stdev(percent):.2f}" if len(percent) > 1 else centre


def _by_seed(rows: Iterable[Row], value: Callable[[list[Row]], float]) -> list[float]:
    seeds: dict[object, list[Row]] = {}
    for row in rows:
        seeds.setdefault(row.get("seed"), []).append(row)
    return [value(group) for group in seeds.values()]


def summarise(
    rows: Sequence[Row], metrics: Sequence[str] = tuple(METRICS)
) -> tuple[list[str], list[list[str]]]:
    """Header and cells: method, score, then metric by metric each OOD set and their average, then ID accuracy.

    The average over sets is taken within each seed first, so that its spread is that of the average itself.
    """
    sets = ordered(row["ood"] for row in rows)
    header = ["method", "score"]
    for metric in metrics:
        header += [f"{METRICS.get(metric, metric)} {name.rpartition('/')[2]}" for name in [*sets, "average"]]
    lines = []
    for method, score in dict.fromkeys((row.get("method", ""), row["score"]) for row in rows):
        mine = [row for row in rows if (row.get("method", ""), row["score"]) == (method, score)]
        line = [method, score]
        for metric in metrics:
            for name in sets:
                line.append(spread([row[metric] for row in mine if row["ood"] == name]))
            line.append(spread(_by_seed(mine, lambda group: statistics.fmean(row[metric] for row in group))))
        line.append(spread(_by_seed(mine, lambda group: group[0]["accuracy"])))
        lines.append(line)
    return [*header, "ID accuracy"], lines


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; words to the left, numbers to the right."""
    rule = ["---" if title in ("method", "score", "set") else "---:" for title in header]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines)) + "\n"


def long_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """One line for each (OOD set, method, score): fits a terminal, shows both FPR95 definitions."""
    metrics = {"fpr95_id": "FPR95", "fpr95_ood": "FPR95 (OOD+)", "auroc": "AUROC"}
    lines = []
    combinations = list(dict.fromkeys((row.get("method", ""), row["score"]) for row in rows))
    for name in [*ordered(row["ood"] for row in rows), "average"]:
        for method, score in combinations:
            mine = [row for row in rows if (row.get("method", ""), row["score"]) == (method, score)]
            if name != "average":
                mine = [row for row in mine if row["ood"] == name]
            cells = [
                spread(_by_seed(mine, lambda group, m=metric: statistics.fmean(r[m] for r in group)))  # type: ignore[misc]
                for metric in metrics
            ]
            accuracy = spread(_by_seed(mine, lambda group: group[0]["accuracy"]))
            lines.append([name.rpartition("/")[2], method, score, *cells, accuracy])
    return ["set", "method", "score", *metrics.values(), "ID accuracy"], lines
