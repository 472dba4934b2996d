"""One set of rows, five layouts: Markdown, CSV, LaTeX, OpenOOD's CSV and JSONL; all pure functions of rows.

Wide tables have the paper's columns: FPR95 and AUROC of each OOD set in the order of the rows, then the average. The
best of a column is bold, ties at the printed digits all of them. A method that misses a set has no average.
"""

import csv
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from farout.errors import ConfigError
from farout.report.table import COLUMNS, ordered, seed_means, spread
from farout.report.table import markdown as markdown_table
from farout.types import Row

NO_VALUE = "–"
LOWER_IS_BETTER = ("fpr95_id", "fpr95_ood")
FPR = {"id": "fpr95_id", "ood": "fpr95_ood"}

Key = tuple[str, str]  # method, score


@dataclass(frozen=True)
class Wide:
    """`cells[method, score][set, metric]` holds a value for each seed; `average` is a set of its own."""

    keys: list[Key]
    sets: list[str]
    metrics: list[str]
    cells: dict[Key, dict[Key, list[float]]]
    notes: list[str]

    def best(self, column: Key) -> float | None:
        """The best mean of a column in percent, at the printed digits."""
        means = [m for key in self.keys if (m := self.mean(key, column)) is not None]
        if not means:
            return None
        return min(means) if column[1] in LOWER_IS_BETTER else max(means)

    def mean(self, key: Key, column: Key) -> float | None:
        values = self.cells[key].get(column)
        return round(100 * statistics.fmean(values), 2) if values else None

    def columns(self) -> list[Key]:
        return [(name, metric) for name in [*self.sets, "average"] for metric in self.metrics]

    def texts(self, key: Key, bold: Callable[[str], str]) -> list[str]:
        """The cells of one line."""
        line = []
        for column in self.columns():
            values = self.cells[key].get(column)
            text = spread(values) if values else NO_VALUE
            line.append(bold(text) if values and self.mean(key, column) == self.best(column) else text)
        return line

    def labels(self) -> dict[Key, str]:
        """`dal`, or `dal, energy` where a method is shown with several scores."""
        several = {method for method, _ in self.keys if sum(m == method for m, _ in self.keys) > 1}
        return {key: f"{key[0]}, {key[1]}" if key[0] in several else key[0] for key in self.keys}


def wide(rows: Sequence[Row], positive: str = "id") -> Wide:
    """The paper's table from rows of one protocol; `positive` chooses which FPR95 it shows."""
    _refuse_mixtures(rows)
    metrics = [FPR[positive], "auroc"]
    keys = list(dict.fromkeys((str(row.get("method", "")), str(row["score"])) for row in rows))
    sets = ordered(row["ood"] for row in rows)
    cells: dict[Key, dict[Key, list[float]]] = {}
    for key in keys:
        mine = [row for row in rows if (str(row.get("method", "")), row["score"]) == key]
        cells[key] = _cells(mine, sets, metrics)
    return Wide(keys, sets, metrics, cells, notes(rows, positive))


def _cells(mine: Sequence[Row], sets: Sequence[str], metrics: Sequence[str]) -> dict[Key, list[float]]:
    cells = {}
    for metric in metrics:
        for name in sets:
            of_set = [row for row in mine if row["ood"] == name]
            if of_set:
                cells[name, metric] = seed_means(of_set, metric)
        if _complete(mine, sets):
            cells["average", metric] = seed_means(mine, metric)
    return cells


def _complete(mine: Sequence[Row], sets: Sequence[str]) -> bool:
    """Whether every seed was tested on every set, so that averages mean the same."""
    seen: dict[object, set[str]] = {}
    for row in mine:
        seen.setdefault(row.get("seed"), set()).add(row["ood"])
    return all(names == set(sets) for names in seen.values())


def _refuse_mixtures(rows: Sequence[Row]) -> None:
    """Numbers of different protocols or ID sets do not belong into one table."""
    if not rows:
        raise ConfigError("there are no rows to lay out; evaluate a run first: farout eval RUN")
    for key in ("id", "protocol"):
        found = ordered(str(row.get(key, "none")) for row in rows)
        if len(found) > 1:
            raise ConfigError(f"the rows mix {key} {' and '.join(found)}; make one table for each")


def notes(rows: Sequence[Row], positive: str) -> list[str]:
    """What a reader must know: the side, the seeds, the sets that are not there."""
    seeds = len(ordered(str(row.get("seed")) for row in rows))
    side = {"id": "ID as the positive side, as in the paper", "ood": "OOD as the positive side, as in OpenOOD"}
    spread_note = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    told = [f"ID set {_short(rows[0]['id'])}; percent, {spread_note}; FPR95 has {side[positive]}."]
    if rows[0].get("protocol"):
        told[0] = f"Protocol {rows[0]['protocol']}. {told[0]}"
    left_out = ordered(name for row in rows for name in row.get("left_out") or ())
    if left_out:
        told.append(f"Left out because absent: {', '.join(left_out)}; averages are without them.")
    return told


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def markdown(rows: Sequence[Row], positive: str = "id") -> str:
    """A wide Markdown table; the best of each column is bold."""
    table = wide(rows, positive)
    labels = table.labels()
    header = ["method", *(f"{_short(name)} {COLUMNS[metric]}" for name, metric in table.columns())]
    lines = [[_md(labels[key]), *table.texts(key, lambda text: f"**{text}**")] for key in table.keys]
    return markdown_table([_md(title) for title in header], lines) + "\n" + "\n\n".join(map(_md, table.notes)) + "\n"


def _md(text: str) -> str:
    return text.replace("|", "\\|")


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
}


def escape(text: str) -> str:
    """`text` as LaTeX prints it."""
    return "".join(_LATEX.get(mark, mark) for mark in text)


def latex(rows: Sequence[Row], positive: str = "id") -> str:
    """A booktabs table with the paper's two-line header; the best of each column is bold."""
    table = wide(rows, positive)
    labels, names, width = table.labels(), [*table.sets, "average"], len(table.metrics)
    arrows = {metric: r"$\downarrow$" if metric in LOWER_IS_BETTER else r"$\uparrow$" for metric in table.metrics}
    groups = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{escape(_short(name))}}}" for name in names)
    rules = "".join(rf"\cmidrule(lr){{{2 + width * i}-{1 + width * (i + 1)}}}" for i in range(len(names)))
    heads = " & ".join(f"{escape(COLUMNS[m])} {arrows[m]}" for _, m in table.columns())
    lines = [" & ".join([escape(labels[key]), *_latex_cells(table, key)]) + r" \\" for key in table.keys]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(' '.join(table.notes))}}}",
            rf"\begin{{tabular}}{{l{'r' * width * len(names)}}}",
            r"\toprule",
            rf" & {groups} \\",
            rules,
            rf"Method & {heads} \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_cells(table: Wide, key: Key) -> list[str]:
    marked = table.texts(key, lambda text: f"\0{text}")
    return [rf"\textbf{{{escape(text[1:])}}}" if text[0] == "\0" else escape(text) for text in marked]


METRIC_COLUMNS = ("fpr95_id", "fpr95_ood", "auroc", "aupr_id", "aupr_ood", "accuracy")


def tidy_csv(rows: Sequence[Row], positive: str = "id") -> str:
    """One line for each method, score and set (average last): percent means and deviations of every metric."""
    table = wide(rows, positive)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    spreads = [name for metric in METRIC_COLUMNS for name in (metric, f"{metric}_std")]
    writer.writerow(["method", "score", "set", "group", "seeds", *spreads])
    for method, score in table.keys:
        mine = [row for row in rows if (str(row.get("method", "")), row["score"]) == (method, score)]
        for name in table.sets:
            of_set = [row for row in mine if row["ood"] == name]
            if of_set:
                writer.writerow([method, score, name, of_set[0].get("group", ""), *_numbers(of_set)])
        if _complete(mine, table.sets):
            writer.writerow([method, score, "average", "", *_numbers(mine)])
    return out.getvalue()


def _numbers(rows: Sequence[Row]) -> list[str]:
    line = [str(len(seed_means(rows, "auroc")))]
    for metric in METRIC_COLUMNS:
        values = [100 * value for value in seed_means(rows, metric)]
        line += [f"{statistics.fmean(values):.4f}", f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""]
    return line


OPENOOD = {"fpr95_ood": "FPR@95", "auroc": "AUROC", "aupr_id": "AUPR_IN", "aupr_ood": "AUPR_OUT", "accuracy": "ACC"}


def openood_files(rows: Sequence[Row]) -> dict[str, str]:
    """OpenOOD's CSV for each method and score: lines dataset, nearood, farood; cells `mean ± std`; OOD positive.

    AUPR is average precision here, the trapezoid there.
    """
    table = wide(rows, "ood")
    return {label: _openood(rows, key) for key, label in table.labels().items()}


def _openood(rows: Sequence[Row], key: Key) -> str:
    mine = [row for row in rows if (str(row.get("method", "")), row["score"]) == key]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["dataset", *OPENOOD.values()])
    for group in ordered(str(row.get("group", "ood")) for row in mine):
        of_group = [row for row in mine if str(row.get("group", "ood")) == group]
        for name in ordered(row["ood"] for row in of_group):
            writer.writerow([_short(name), *_openood_cells([row for row in of_group if row["ood"] == name])])
        writer.writerow([f"{group.removesuffix('ood')}ood", *_openood_cells(of_group)])
    return out.getvalue()


def _openood_cells(rows: Sequence[Row]) -> list[str]:
    return [_openood_cell(rows, metric) for metric in OPENOOD]


def _openood_cell(rows: Sequence[Row], metric: str) -> str:
    values = [100 * value for value in seed_means(rows, metric)]
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2f} ± {deviation:.2f}"


def openood(rows: Sequence[Row], positive: str = "ood") -> str:
    """Every method's CSV, each after a line with its name; `openood_files` has them one by one."""
    return "\n".join(f"# {label}\n{text}" for label, text in openood_files(rows).items())


LEADERBOARD = (
    *("Training", "Postprocessor", "Near-OOD_AUROC", "Far-OOD_AUROC", "ID_Accuracy", "Outlier_Data", "Arch"),
    "Additional_Description",
)
POSTPROCESSORS = {
    "energy": "EBO",
    "mahalanobis": "MDS",
    "max-logit": "MLS",
}  # its own names; others are ours in capitals


def leaderboard(rows: Sequence[Row], positive: str = "ood") -> str:
    """The CSV from which OpenOOD's leaderboard is made: a line for each method and score; cells `mean ± std`."""
    from farout.methods import METHODS  # with torch, which no other layout needs

    table = wide(rows, "ood")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(LEADERBOARD)
    for method, score in table.keys:
        mine = [row for row in rows if (str(row.get("method", "")), row["score"]) == (method, score)]
        near, far = ([row for row in mine if row.get("group") == group] for group in ("near", "far"))
        aurocs = [_openood_cell(group, "auroc") if group else "" for group in (near, far)]
        trained = METHODS.get(str(mine[0].get("trained", method)))
        outliers = "" if trained is None else "Yes" if trained.needs_outliers else "No"
        name = POSTPROCESSORS.get(score, score.upper())
        more = [outliers, mine[0].get("net", ""), ""]
        writer.writerow([method, name, *aurocs, _openood_cell(mine, "accuracy"), *more])
    return out.getvalue()


def jsonl(rows: Sequence[Row], positive: str = "id") -> str:
    """The rows themselves."""
    return "".join(json.dumps(row) + "\n" for row in rows)


LAYOUTS: Mapping[str, Callable[[Sequence[Row], str], str]] = {
    "markdown": markdown,
    "csv": tidy_csv,
    "latex": latex,
    "openood": openood,
    "leaderboard": leaderboard,
    "jsonl": jsonl,
}
