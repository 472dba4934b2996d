"""The radius ρ against FPR95, for each step size, and γ_max x β x ρ as heat maps: the paper's figure and tables."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farout.report.chart import Axis, Cells, Chart, Figure, Line, Mark, Table, missing
from farout.report.curves import setting
from farout.report.gather import Group
from farout.report.glance import METRICS, estimate, shared_sets
from farout.types import Row

KNOBS = ("rho", "ps", "gamma_max", "beta")
REAL = ("fpr95", "fpr95_id", "value")
AUXILIARY = ("fpr95_aux", "fpr95_auxiliary", "auxiliary", "aux")
TITLES = ("FPR95 against ρ", "FPR95 over β, ρ and γ_max")
NONE = (
    "it takes runs or tuning rows with several values of ρ: train with method.rho=... more than once, or give the "
    "folder of a study (trials.jsonl)"
)


def from_trials(trials: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows {rho, ps, gamma_max, beta, real, auxiliary} in percent, from rows that name these settings anyhow.

    A setting may be called `rho` or `method.rho`, at the top or under `params`; FPR95 may be a share or percent.
    """
    rows = []
    for trial in (trial for trial in trials if trial.get("state", "complete") == "complete"):
        nested = trial.get("params")
        flat = {**trial, **nested} if isinstance(nested, Mapping) else dict(trial)
        plain = {str(key).rpartition(".")[2]: value for key, value in flat.items()}
        real = next((plain[key] for key in REAL if _number(plain.get(key))), None)
        if real is not None and _number(plain.get("rho")):
            other = next((plain[key] for key in AUXILIARY if _number(plain.get(key))), None)
            knobs = {knob: plain[knob] for knob in KNOBS if _number(plain.get(knob))}
            rows.append({**knobs, "real": real, "auxiliary": other})
    shares = all(row["real"] <= 1 for row in rows)
    return [_percent(row) for row in rows] if shares else rows


def _percent(row: Row) -> Row:
    other = row["auxiliary"]
    return {**row, "real": 100 * row["real"], "auxiliary": None if other is None else 100 * other}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def from_groups(groups: Sequence[Group], auxiliary: Mapping[str, float]) -> list[Row]:
    """The same rows from runs that differ in these settings; `auxiliary` is FPR95 on the auxiliary set, by label."""
    rows, shared = [], shared_sets(groups)
    for group in groups:
        knobs = {knob: setting(group.first.config, knob) for knob in KNOBS}
        real = estimate(group, group.score, shared, METRICS[0]) if shared else None
        if real is not None and _number(knobs["rho"]):
            other = auxiliary.get(group.label)
            known = {knob: value for knob, value in knobs.items() if _number(value)}
            rows.append({**known, "real": real.value, "auxiliary": other})
    return [_percent(row) for row in rows]


def against_rho(rows: Sequence[Row]) -> Figure:
    """FPR95 on real OOD (solid) and on the auxiliary set (dashed) against ρ, for each ps."""
    if len(_values(rows, "rho")) < 2:
        return missing("rho", TITLES[0], NONE)
    marks: list[Mark] = []
    table: list[list[object]] = []
    for series, ps in enumerate(_values(rows, "ps") or [None]):
        mine = [row for row in rows if row.get("ps") == ps]
        label = "" if ps is None else f", ps = {ps:g}"
        for key, dashed in (("real", False), ("auxiliary", True)):
            means = _means([row for row in mine if row[key] is not None], "rho", key)
            tips = [f"{key} OOD{label}, ρ = {rho:g}: FPR95 {value:.2f} %" for rho, value in means.items()]
            if means:
                name = f"{key} OOD{label}"
                marks.append(Line(list(means), list(means.values()), name, series, tips, False, dashed, True))
                table += [["" if ps is None else ps, key, rho, round(value, 2)] for rho, value in means.items()]
    log = min(_values(rows, "rho")) > 0
    chart = Chart("FPR95, %", Axis("ρ", log=log), Axis(low=0), marks)
    notes = [] if any(row["auxiliary"] is not None for row in rows) else ["no FPR95 on the auxiliary set was recorded"]
    caption = "Mean over settings and seeds that share ρ and ps; lower is better."
    return Figure("rho", TITLES[0], caption, [chart], Table(["ps", "OOD", "rho", "FPR95 %"], table), notes)


def heat_maps(rows: Sequence[Row]) -> Figure:
    """One map of β x ρ for each γ_max."""
    full = [row for row in rows if {"rho", "beta", "gamma_max"} <= set(row)]
    if len(_values(full, "rho")) < 2 or len(_values(full, "beta")) < 2:
        return missing("heat", TITLES[1], NONE.replace("of ρ", "of both ρ and β"))
    rhos, betas = _values(full, "rho"), _values(full, "beta")
    charts, table = [], []
    for cap in _values(full, "gamma_max"):
        mine = [row for row in full if row["gamma_max"] == cap]
        by_beta = {beta: _means([row for row in mine if row["beta"] == beta], "rho", "real") for beta in betas}
        values = [[by_beta[beta].get(rho) for rho in rhos] for beta in betas]
        tips = [
            [f"γ_max {cap:g}, β {beta:g}, ρ {rho:g}: {_fpr(by_beta[beta].get(rho))}" for rho in rhos] for beta in betas
        ]
        x, y = (Axis(name, categories=tuple(f"{v:g}" for v in steps)) for name, steps in (("ρ", rhos), ("β", betas)))
        charts.append(Chart(f"γ_max = {cap:g}", x, y, [Cells(values, tips)], 84 + 24 * len(betas)))
        table += [[cap, beta, rho, _fpr(by_beta[beta].get(rho))] for beta in betas for rho in rhos]
    caption = (
        "FPR95 in percent, each map with colours of its own, dark = low = better; mean where a setting was tried twice."
    )
    return Figure("heat", TITLES[1], caption, charts, Table(["gamma_max", "beta", "rho", "FPR95"], table))


def _fpr(value: float | None) -> str:
    return "not tried" if value is None else f"{value:.2f} %"


def _values(rows: Iterable[Row], key: str) -> list[float]:
    return sorted({row[key] for row in rows if key in row})


def _means(rows: Sequence[Row], key: str, value: str) -> dict[float, float]:
    return {
        place: statistics.fmean(row[value] for row in rows if row.get(key) == place) for place in _values(rows, key)
    }
