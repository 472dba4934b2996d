"""What the worst case says: risk against ρ between the certificate's bounds, and how far the test sets lie away."""

from collections.abc import Mapping, Sequence

from farout.report.chart import INK, Axis, Band, Chart, Figure, Interval, Line, Mark, Points, Rule, Table, missing
from farout.report.gather import Group
from farout.report.separation import short
from farout.types import Row
from farout.worst_case.discrepancy import Estimate

TITLES = ("Worst-case risk against ρ", "Distance of the test sets from the auxiliary outliers")


def risk(groups: Sequence[Group], rows: Mapping[str, Sequence[Row]], why: Sequence[str]) -> Figure:
    """A band a method, from the rows of `certify`: no distribution within ρ of the auxiliary set has a higher risk."""
    shown = [group for group in groups if rows.get(group.label)]
    if not shown:
        return missing("risk", TITLES[0], "; ".join(why) or "no run could be certified")
    marks: list[Mark] = []
    table: list[list[object]] = []
    for group in shown:
        mine = list(rows[group.label])
        rho, low, high = ([row[key] for row in mine] for key in ("rho", "lower", "upper"))
        tips = [
            f"{group.label}, ρ = {row['rho']:.3g}: between {row['lower']:.4g} and {row['upper']:.4g} nats"
            for row in mine
        ]
        marks += [Band(rho, low, high, "", group.series), Line(rho, high, group.label, group.series, tips)]
        marks.append(Line(rho, low, f"{group.label}, lower bound", group.series, (), dashed=True))
        table += [[group.label, *(f"{row[key]:.4g}" for key in ("rho", "lower", "upper", "reals"))] for row in mine]
    first = rows[shown[0].label][0]
    marks.append(Rule(first["uniform"], "y", "uniform prediction"))
    chart = Chart(
        "mean outlier risk, nats", Axis("ρ, in sum-norm units of the features", log=True), Axis(log=True), marks
    )
    caption = (
        f"Worst mean ℓ_OE over all distributions within ρ of {first['set']} ({first['count']} samples, first seed, "
        f"features {first['domain']}); lower is better. The truth lies between the lines."
    )
    header = ["method", "rho", "lower", "upper", "features anything"]
    return Figure("risk", TITLES[0], caption, [chart], Table(header, table), list(why))


def distances(groups: Sequence[Group], found: Mapping[str, Mapping[str, Estimate]], why: Sequence[str]) -> Figure:
    """W1 between the auxiliary set and each test set in each method's embedding, beside what no distance looks like."""
    shown = [group for group in groups if found.get(group.label)]
    if not shown:
        return missing("discrepancy", TITLES[1], "; ".join(why) or "no run could be measured")
    charts, table = [], []
    for group in shown:
        marks: list[Mark] = []
        sets = found[group.label]
        for place, (name, each) in enumerate(sets.items()):
            words = f"{short(name)}: W1 {each.value:.4g} [{each.low:.4g} to {each.high:.4g}], at least {each.least:.4g}"
            marks.append(Interval(each.value, each.low, each.high, place, "W1, subsampled", group.series, words))
            floor = f"{short(name)}: {each.floor:.4g} between halves of the auxiliary set"
            marks.append(Points([each.floor], [place], "the auxiliary set against itself", INK, [floor], 2.5))
            table.append([group.label, short(name), *(f"{v:.4g}" for v in each[:5]), each.size, each.draws])
        rows = tuple(short(name) for name in sets)
        x = Axis("W1 in the embedding, sum norm", low=0)
        charts.append(Chart(group.label, x, Axis(categories=rows), marks, 66 + 26 * len(rows)))
    caption = (
        "Wasserstein-1 between subsamples, with its interval over draws. Subsamples lie further apart than the sets: "
        "read it against the grey point. Embeddings differ between methods, so compare sets within one panel."
    )
    header = ["method", "set", "W1", "low", "high", "floor", "at least", "rows", "draws"]
    return Figure("discrepancy", TITLES[1], caption, charts, Table(header, table), list(why))
