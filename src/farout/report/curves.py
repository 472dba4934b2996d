"""What happened in training, against steps: loss terms, γ, the radius against ρ, the gain against its certificate."""

import inspect
import math
from collections.abc import Iterator, Sequence
from typing import Any

from farout.config import Config
from farout.methods import METHODS
from farout.report.chart import Axis, Chart, Figure, Line, Mark, Rule, Table, missing, thinned
from farout.report.gather import Group, RunFiles
from farout.report.table import ordered
from farout.types import Row

TITLES = {
    "gamma": "γ, the dual variable",
    "radius": "radius of the search, and ρ",
    "gain": "gain and its certificate, nats",
    "efficiency": "efficiency: gain / possible",
    "lr": "learning rate",
    "images_per_second": "images per second",
}
LAST = ("lr", "images_per_second")
MOST, MOST_FAINT = 120, 40


def setting(config: Config, key: str) -> Any:
    """A setting of the run's method: the recipe's, else the constructor's default, else None."""
    if key in config.method:
        return config.method[key]
    known = METHODS.get(str(config.method.get("name")))
    default = inspect.signature(known).parameters.get(key) if known is not None else None
    return None if default is None or default.default is inspect.Parameter.empty else default.default


def training(groups: Sequence[Group]) -> Figure:
    """One panel for each quantity in the logs, a line for each run; the first seed in front."""
    title = "Training"
    logged = [group for group in groups if any(run.log for run in group.runs)]
    if not logged:
        reasons = [run.why["log"] for group in groups for run in group.runs if "log" in run.why]
        return missing("training", title, "; ".join(reasons[:3]) or "the logs are empty")
    rows_of_all = (row for group in logged for run in group.runs for row in run.log)
    keys = ordered(key for row in rows_of_all for key, value in row.items() if isinstance(value, (int, float)))
    keys = [key for key in keys if key not in ("step", "epoch", *LAST)] + [key for key in LAST if key in keys]
    charts = [_panel(key, logged) for key in keys]
    header, rows = ["method", "seed", "step", *keys], []
    for group in logged:
        run = next(run for run in group.runs if run.log)
        rows += [_line(group, run, run.log[place], keys) for place in thinned(len(run.log), 25)]
    notes = [note for group in logged for run in group.runs for note in _resumed(group, run)]
    notes += [run.why["log"] for group in groups for run in group.runs if "log" in run.why]
    caption = (
        "Loss terms and what the method measures, against steps. The first seed is in front, the others are faint."
    )
    return Figure("training", title, caption, charts, Table(header, rows), notes)


def _line(group: Group, run: RunFiles, row: Row, keys: Sequence[str]) -> list[object]:
    values = (row.get(key, "") for key in keys)
    return [group.label, run.seed, row["step"], *(f"{value:.4g}" if value != "" else "" for value in values)]


def resumes(log: Sequence[Row]) -> list[int]:
    """The steps at which a run was taken up again: its clock starts anew, so that row has no rate."""
    if not any("images_per_second" in row for row in log):
        return []
    return [row["step"] for row in log[1:] if "images_per_second" not in row]


def _resumed(group: Group, run: RunFiles) -> Iterator[str]:
    steps = resumes(run.log)
    if steps:
        yield f"{group.label}, seed {run.seed}: resumed at step {', '.join(map(str, steps))}"


def _panel(key: str, groups: Sequence[Group]) -> Chart:
    marks: list[Mark] = []
    for group in groups:
        having = [run for run in group.runs if any(key in row for row in run.log)]
        for place, run in enumerate(having):
            marks.append(_curve(key, group, run, faint=place > 0))
        if having and key == "gain":
            marks += _bound(group, having[0])
        marks += [Rule(step, name="resumed") for step in resumes(having[0].log)] if having else []
    radii = [_rho(group) for group in groups] if key == "radius" else []
    marks += [Rule(rho, "y", f"ρ = {rho:g}") for rho in sorted({rho for rho in radii if rho})]
    heights = [y for mark in marks if isinstance(mark, Line) for y in mark.y]
    heights += [mark.value for mark in marks if isinstance(mark, Rule) and mark.along == "y"]
    wide = bool(heights) and min(heights) > 0 and max(heights) > 30 * min(heights)
    return Chart(TITLES.get(key, key), Axis("step"), Axis(log=wide), marks, 190)


def _rho(group: Group) -> float | None:
    rho = setting(group.first.config, "rho")
    return float(rho) if isinstance(rho, (int, float)) and math.isfinite(rho) else None


def _curve(key: str, group: Group, run: RunFiles, faint: bool) -> Line:
    rows = [row for row in run.log if key in row]
    rows = [rows[place] for place in thinned(len(rows), MOST_FAINT if faint else MOST)]
    tips = [] if faint else [f"{group.label}, step {row['step']}: {key} {row[key]:.4g}" for row in rows]
    name = "" if faint else group.label
    return Line([row["step"] for row in rows], [row[key] for row in rows], name, group.series, tips, faint)


def _bound(group: Group, run: RunFiles) -> list[Mark]:
    """The most that a search of this length could have gained: gain over efficiency."""
    rows = [row for row in run.log if row.get("efficiency", 0) > 0 and row.get("gain", 0) > 0]
    rows = [rows[place] for place in thinned(len(rows), MOST)]
    heights = [row["gain"] / row["efficiency"] for row in rows]
    tips = [f"{group.label}, step {row['step']}: bound {y:.4g}" for row, y in zip(rows, heights, strict=True)]
    name = f"{group.label}, certificate"
    return [Line([row["step"] for row in rows], heights, name, group.series, tips, dashed=True)] if rows else []
