"""The first page: one sentence with its interval, and the tables from which it comes."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from farout.report.gather import Group
from farout.report.intervals import Estimate, of_auroc, of_fpr, of_share, over_seeds
from farout.report.table import ordered
from farout.types import Row

AVERAGE = "average"


@dataclass(frozen=True)
class Metric:
    """A number of the tables; the direction is said wherever it is shown."""

    key: str
    title: str
    lower_is_better: bool
    about: str


METRICS = (
    Metric("fpr95_id", "FPR95", True, "share of OOD accepted where 95 % of ID is (ID positive, as in the paper)"),
    Metric("auroc", "AUROC", False, "chance that an ID image scores higher than an OOD one"),
    Metric("fpr95_ood", "FPR95 (OOD+)", True, "share of ID rejected where 95 % of OOD is (OOD positive, as OpenOOD)"),
)
ACCURACY = Metric("accuracy", "ID accuracy", False, "share of ID test images whose class is right")


@dataclass(frozen=True)
class Line:
    """One (method, score): an estimate for each column, None where it was not tested."""

    label: str
    score: str
    cells: tuple[Estimate | None, ...]


@dataclass(frozen=True)
class MetricTable:
    """All methods in one metric: the columns are OOD sets, their average, and the accuracy."""

    metric: Metric
    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    def best(self, column: int) -> float | None:
        """The best value of a column; None where there is no choice."""
        values = [line.cells[column] for line in self.lines]
        known = [cell.value for cell in values if cell is not None]
        lower = self.metric.lower_is_better and column < len(self.columns) - 1  # the last one is the accuracy
        return (min(known) if lower else max(known)) if len(known) > 1 else None


def metric_tables(groups: Sequence[Group]) -> list[MetricTable]:
    """One table for each metric."""
    rows = [row for group in groups for row in group.rows]
    if not rows:
        return []
    sets = ordered(row["ood"] for row in rows)
    columns = (*sets, AVERAGE, ACCURACY.title)
    return [MetricTable(metric, columns, tuple(_lines(groups, metric, sets))) for metric in METRICS]


def _lines(groups: Sequence[Group], metric: Metric, sets: Sequence[str]) -> Iterable[Line]:
    shared = shared_sets(groups)
    for group in groups:
        for score in ordered(row["score"] for row in group.rows):
            cells = [estimate(group, score, [name], metric) for name in sets]
            average = estimate(group, score, shared, metric)
            yield Line(group.label, score, (*cells, average, estimate(group, score, shared, ACCURACY)))


def shared_sets(groups: Sequence[Group]) -> list[str]:
    """The OOD sets that every evaluated group was tested on: only over these do averages compare."""
    tested = [{row["ood"] for row in group.rows} for group in groups if group.rows]
    sets = ordered(row["ood"] for group in groups for row in group.rows)
    return [name for name in sets if all(name in names for names in tested)]


def estimate(group: Group, score: str, sets: Sequence[str], metric: Metric) -> Estimate | None:
    """A group's metric on average over `sets`, None unless it was tested on all of them."""
    rows = [row for row in group.rows if row["score"] == score and row["ood"] in sets]
    if not rows or {row["ood"] for row in rows} != set(sets):
        return None
    values = seed_values(rows, metric.key)
    return over_seeds(values) if len(values) > 1 else _within_run(group, score, sets, metric, rows, values[0])


def seed_values(rows: Sequence[Row], key: str) -> list[float]:
    """The mean over sets within each seed."""
    seeds = ordered(row["seed"] for row in rows)
    return [statistics.fmean(row[key] for row in rows if row["seed"] == seed) for seed in seeds]


def _within_run(
    group: Group, score: str, sets: Sequence[str], metric: Metric, rows: Sequence[Row], value: float
) -> Estimate:
    """The interval of a single run, from its test samples."""
    if metric is ACCURACY:
        return of_share(value, rows[0]["id_count"])
    run = next(run for run in group.runs if run.results)
    table, inlier = run.scores.get(score, {}), rows[0]["id"]
    if inlier not in table or any(name not in table for name in sets):
        return Estimate(value, None, None, "one seed, scores.npz is not there", (value,))
    inliers, outliers = table[inlier], [table[name] for name in sets]
    if metric.key == "fpr95_id":
        return of_fpr(value, inliers, outliers)
    if len(sets) == 1:
        if metric.key == "auroc":
            return of_auroc(value, inliers, outliers[0])
        return of_fpr(value, -outliers[0], [-inliers])
    return Estimate(value, None, None, "one seed; no interval for an average of this", (value,))


def words(estimate: Estimate) -> str:
    """`8.6 % [4.1 to 13.0]`."""
    return f"{100 * estimate.value:.1f} %{_range(estimate)}"


def _range(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{100 * estimate.low:.1f} to {100 * estimate.high:.1f}]"


def tip(estimate: Estimate, metric: Metric) -> str:
    """Everything known of a cell, for pointing at it."""
    better = "lower" if metric.lower_is_better else "higher"
    seeds = ", ".join(f"{100 * value:.2f}" for value in estimate.seeds)
    each = f" Seeds: {seeds}." if len(estimate.seeds) > 1 else ""
    return f"{metric.title} {words(estimate)}, {estimate.how}; {better} is better.{each}"


def verdict(groups: Sequence[Group]) -> str:
    """What came out, in one or two sentences."""
    judged = [(group, _headline(groups, group)) for group in groups]
    known = [(group, value) for group, value in judged if value is not None]
    if not known:
        return "No run was evaluated yet: `farout eval RUN` tests it, then make this report again."
    inliers = ordered(row["id"] for group in groups for row in group.rows)
    if len(inliers) > 1:
        return f"The runs have different ID sets ({', '.join(inliers)}): compare within one set only."
    known.sort(key=lambda pair: pair[1].value)
    group, value = known[0]
    count = len(shared_sets(groups))
    over = f"on average over {count} OOD sets" if count > 1 else f"of {shared_sets(groups)[0]}"
    first = (
        f"Where 95 % of {inliers[0]} is accepted, {group.label} (score {group.score}) lets "
        f"{words(value)} of OOD images pass {over}; {value.how}."
    )
    return f"{first} {_runner_up(groups, known)}".strip()


def _headline(groups: Sequence[Group], group: Group) -> Estimate | None:
    shared = shared_sets(groups)
    return estimate(group, group.score, shared, METRICS[0]) if shared else None


def _runner_up(groups: Sequence[Group], known: Sequence[tuple[Group, Estimate]]) -> str:
    """The best against the second best: the difference over common seeds, and whether chance explains it."""
    if len(known) < 2:
        return ""
    (best, value), (second, other) = known[0], known[1]
    apart = paired(best, second, shared_sets(groups))
    gap = 100 * (other.value - value.value)
    start = f"The next is {second.label} (score {second.score}) at {words(other)}: {gap:.1f} points more"
    if apart is None or apart.low is None or apart.high is None:
        return f"{start}; with fewer than two common seeds, that may be chance."
    around = f"[{100 * apart.low:.1f} to {100 * apart.high:.1f}]".replace("-", "−")
    span = f"{around}, paired over {len(apart.seeds)} seeds"
    judgement = "more than chance would give" if apart.low > 0 else "which chance alone could give"
    return f"{start} {span}, {judgement}."


def paired(group: Group, other: Group, sets: Sequence[str]) -> Estimate | None:
    """other − group in FPR95, seed by seed; None without two seeds in common."""
    tables = [_by_seed(member, sets) for member in (group, other)]
    common = [seed for seed in tables[0] if seed in tables[1]]
    if len(common) < 2:
        return None
    return over_seeds([tables[1][seed] - tables[0][seed] for seed in common], low=-1.0, high=1.0)


def _by_seed(group: Group, sets: Sequence[str]) -> dict[int, float]:
    found = {}
    for run in group.runs:
        rows = [row["fpr95_id"] for row in run.results if row["score"] == group.score and row["ood"] in sets]
        if rows:
            found[run.seed] = statistics.fmean(rows)
    return found
