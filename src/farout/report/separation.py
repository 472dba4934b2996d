"""How far the scores keep ID and OOD apart: histograms, ROC curves, and FPR95 with intervals."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farout.metrics import fpr_at_tpr, threshold_at_tpr
from farout.report.chart import INK, Axis, Chart, Figure, Interval, Line, Mark, Points, Ridge, Rule, Table, missing
from farout.report.gather import Group
from farout.report.glance import AVERAGE, METRICS, estimate, shared_sets, tip
from farout.report.table import ordered

Array = NDArray[Any]
BINS = 40
RATES = np.concatenate([np.linspace(0, 0.1, 21), np.linspace(0.12, 1, 45)])  # finer where detectors are used


def short(name: str) -> str:
    """demo/noise -> noise."""
    return name.rpartition("/")[2] or name


def histograms(groups: Sequence[Group]) -> Figure:
    """Each set's scores on a row of its own, ID on top; what passes the threshold is filled."""
    title = "Scores: what is accepted"
    charts, table = [], []
    for group, score, sets in _scored(groups):
        chart, lines = _ridges(group, score, sets)
        charts.append(chart)
        table += [[group.label, score, *line] for line in lines]
    if not charts:
        return missing("histograms", title, _why(groups))
    caption = (
        "Scores of the first seed, higher = more in-distribution; each set to its own height. The line is where 95 % "
        "of the ID test set lies to the right; what is filled is accepted as ID."
    )
    header = ["method", "score", "set", "samples", "accepted %", "5 % quantile", "median", "95 % quantile"]
    return Figure("histograms", title, caption, charts, Table(header, table), _notes(groups))


def _scored(groups: Sequence[Group]) -> Iterator[tuple[Group, str, Mapping[str, Array]]]:
    """The first seed of each group that kept its scores, score by score; what is not finite is left out."""
    for group in groups:
        table = next((run.scores for run in group.runs if run.scores), {})
        for score, sets in table.items():
            kept = {name: values[np.isfinite(values)] for name, values in sets.items()}
            if all(len(values) for values in kept.values()):
                yield group, score, kept


def _why(groups: Sequence[Group]) -> str:
    reasons = ordered(run.why["scores"] for group in groups for run in group.runs if "scores" in run.why)
    return "; ".join(reasons[:3]) or "no run kept its scores"


def _notes(groups: Sequence[Group]) -> list[str]:
    return [group.first.why["scores"] for group in groups if not any(run.scores for run in group.runs)]


def _ridges(group: Group, score: str, sets: Mapping[str, Array]) -> tuple[Chart, list[list[object]]]:
    names = list(sets)
    cut = threshold_at_tpr(id_scores=sets[names[0]], tpr=0.95)
    everything = np.concatenate(list(sets.values()))
    low, high = np.quantile(everything, [0.005, 1.0])  # a few far outliers would squeeze the rest
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    marks: list[Mark] = [Rule(cut, name="95 % of ID →")]
    lines: list[list[object]] = []
    for place, (name, values) in enumerate(sets.items()):
        counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
        accepted = 100 * float(np.mean(values >= cut))
        role, key, series = ("ID", "ID", INK) if place == 0 else ("OOD", f"OOD, {group.label}", group.series)
        words = f"{short(name)} ({role}): {accepted:.1f} % of {len(values)} accepted"
        heights = (counts / counts.max()).tolist()
        marks.append(Ridge(place, edges.tolist(), heights, cut, key, series, words))
        quantiles = [round(float(value), 4) for value in np.quantile(values, [0.05, 0.5, 0.95])]
        lines.append([short(name), len(values), round(accepted, 2), *quantiles])
    rows = tuple(short(name) for name in names)
    x, y = Axis("score (higher = more in-distribution)"), Axis(categories=rows)
    chart = Chart(f"{group.label}, {score}", x, y, marks, 66 + 34 * len(rows))
    return chart, lines


def roc(groups: Sequence[Group]) -> Figure:
    """TPR against FPR, ID positive: a panel a set with a line a method, or one panel for a single method."""
    title = "ROC curves"
    curves = [curve for group in groups for curve in _curves(group)]
    if not curves:
        return missing("roc", title, _why(groups))
    sets = ordered(name for _, name, _, _ in curves)
    single = len({group.label for group, *_ in curves}) == 1
    panels: list[Chart] = []
    if single:
        marks = [mark for group, name, ys, at in curves for mark in _roc(short(name), sets.index(name), ys, at)]
        panels.append(_roc_chart(curves[0][0].label, marks))
    else:
        for wanted in sets:
            mine = [(group, ys, at) for group, name, ys, at in curves if name == wanted]
            marks = [mark for group, ys, at in mine for mark in _roc(group.label, group.series, ys, at)]
            panels.append(_roc_chart(short(wanted), marks))
    places = [0, 2, 4, 10, 20, 26, 34, 45, 65]
    header = ["method", "set", *(f"TPR % at FPR {100 * RATES[place]:.0f} %" for place in places), "FPR95 %"]
    rows = [
        [group.label, short(name), *(round(100 * float(ys[place]), 2) for place in places), round(100 * at, 2)]
        for group, name, ys, at in curves
    ]
    caption = (
        "Share of ID accepted against share of OOD accepted, as the threshold falls; by each method's own score, "
        "averaged over seeds. The marker is FPR95."
    )
    return Figure("roc", title, caption, panels, Table(header, rows), _notes(groups))


def _curves(group: Group) -> Iterator[tuple[Group, str, Array, float]]:
    """(group, set, TPR at RATES, FPR95), each the mean over seeds."""
    tables = [run.scores[group.score] for run in group.runs if group.score in run.scores]
    for name in list(tables[0])[1:] if tables else ():
        having = [table for table in tables if name in table]
        pairs = [(next(iter(table.values())), table[name]) for table in having]
        ys = np.mean([_tpr(inliers, outliers) for inliers, outliers in pairs], axis=0)
        at = [fpr_at_tpr(id_scores=inliers, ood_scores=outliers) for inliers, outliers in pairs]
        yield group, name, ys, float(np.mean(at))


def _tpr(inliers: Array, outliers: Array) -> Array:
    """The share of ID accepted where at most a share RATES of OOD is: the ROC curve from above, ties not split."""
    ranked = np.sort(outliers)[::-1]
    allowed = np.floor(RATES * len(ranked) + 1e-9).astype(int)
    # the first OOD score that may not pass; every ID score above it is accepted
    stops = np.append(ranked, -np.inf)[allowed]
    refused = np.searchsorted(np.sort(inliers), stops, side="right")
    return np.asarray(1 - refused / len(inliers))


def _roc(name: str, series: int, ys: Array, at: float) -> list[Mark]:
    tips = [f"{name}: {100 * y:.1f} % of ID at {100 * x:.1f} % of OOD" for x, y in zip(RATES, ys, strict=True)]
    curve = Line((100 * RATES).tolist(), (100 * ys).tolist(), name, series, tips)
    return [curve, Points([100 * at], [95], "", series, [f"{name}: FPR95 {100 * at:.1f} %"], 4)]


def _roc_chart(title: str, marks: Sequence[Mark]) -> Chart:
    x, y = Axis("OOD accepted, %", low=0, high=100), Axis("ID accepted, %", low=0, high=100)
    return Chart(title, x, y, [Rule(95, "y"), *marks])


def dots(groups: Sequence[Group]) -> Figure:
    """FPR95 for each set and method: mean and interval, with the seeds as faint points."""
    title, metric = "FPR95 by set and method", METRICS[0]
    shared = shared_sets(groups)
    tested = [group for group in groups if group.rows]
    if not tested:
        reasons = ordered(run.why["results"] for group in groups for run in group.runs if "results" in run.why)
        return missing("fpr95", title, "; ".join(reasons[:3]))
    sets = ordered(row["ood"] for group in tested for row in group.rows)
    columns = {name: [name] for name in sets} | ({AVERAGE: shared} if len(shared) > 1 else {})
    marks: list[Mark] = []
    table: list[list[object]] = []
    for place, (name, members) in enumerate(columns.items()):
        for number, group in enumerate(tested):
            cell = estimate(group, group.score, members, metric)
            if cell is None:
                continue
            at = place + 0.7 * ((number + 0.5) / len(tested) - 0.5)
            seeds = [100 * value for value in cell.seeds] if len(cell.seeds) > 1 else []
            marks.append(Points(seeds, [at] * len(seeds), "", INK, (), 1.5, faint=True))
            low, high = (100 * (cell.value if end is None else end) for end in (cell.low, cell.high))
            words = f"{group.label} on {short(name)}: {tip(cell, metric)}"
            marks.append(Interval(100 * cell.value, low, high, at, group.label, group.series, words))
            table.append([short(name), group.label, group.score, *_rounded(cell.value, cell.low, cell.high), cell.how])
    rows = tuple(short(name) for name in columns)
    tall = 70 + max(26, 12 * len(tested) + 6) * len(rows)
    chart = Chart("FPR95, %", Axis("OOD accepted, %  (lower is better)", low=0), Axis(categories=rows), marks, tall)
    header = ["set", "method", "score", "FPR95 %", "low", "high", "interval"]
    caption = "ID positive. The marker is the mean, the bar its interval, small points are single seeds."
    return Figure("fpr95", title, caption, [chart], Table(header, table), _untested(groups))


def _rounded(*values: float | None) -> list[object]:
    return ["" if value is None else round(100 * value, 2) for value in values]


def _untested(groups: Sequence[Group]) -> list[str]:
    return [run.why["results"] for group in groups for run in group.runs if "results" in run.why]
