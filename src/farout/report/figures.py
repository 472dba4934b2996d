"""The report's figures for a paper: matplotlib, Times-like letters of 8 points, as wide as a text column."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farout.report.chart import (
    Arrows,
    Axis,
    Band,
    Cells,
    Chart,
    Figure,
    Interval,
    Line,
    Mark,
    Points,
    Ridge,
    Rule,
    has_named_rule,
    legend,
)
from farout.report.histogram import COLOURS, pyplot
from farout.report.html import Report
from farout.report.mistakes import Gallery
from farout.report.scale import scales

KINDS = ("pdf", "svg", "png")
TEXT_WIDTH, COLUMN = 5.5, 3.3  # inches; NeurIPS' text is 5.5 wide
MARKERS, DASHES = "osv^DP", ("-", "--", ":", "-.", (0, (4, 2, 1, 2)), (0, (8, 3)))
STYLE = {
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "Times New Roman", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,  # TrueType: some venues refuse matplotlib's own Type 3
    "svg.fonttype": "none",
    "svg.hashsalt": "farout",
    "savefig.dpi": 300,
}
NO_DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def save_figures(report: Report, folder: Path, kind: str) -> list[Path]:
    """One file for each figure that could be drawn; the same report gives the same bytes."""
    if kind not in KINDS:
        raise ValueError(f"cannot draw {kind!r}; choose one of {', '.join(KINDS)}")
    plt = pyplot("drawing figures")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with plt.rc_context(STYLE):
        drawings = [(figure.key, _figure(plt, figure)) for figure in report.figures if figure.charts]
        shown = [gallery for gallery in report.galleries if gallery.mistakes]
        drawings += [("mistakes", _galleries(plt, shown))] if shown else []
        for key, drawing in drawings:
            path = folder / f"{key}.{kind}"
            drawing.savefig(path, bbox_inches="tight", metadata=NO_DATE[kind])
            plt.close(drawing)
            paths.append(path)
    return paths


def plain(text: str) -> str:
    """Text as it stands: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def _figure(plt: Any, figure: Figure) -> Any:
    count = len(figure.charts)
    columns = 1 if count == 1 else 2 if count in (2, 4) else 3
    rows = math.ceil(count / columns)
    width = COLUMN if count == 1 else TEXT_WIDTH
    heights = [_height(chart, columns) for chart in figure.charts]
    tall = [max(heights[row * columns : (row + 1) * columns]) for row in range(rows)]
    drawing, axes = plt.subplots(
        rows, columns, figsize=(width, sum(tall) + 0.4), squeeze=False, height_ratios=tall, layout="constrained"
    )
    for axis in axes.flat[count:]:
        axis.remove()
    labels = {chart.x.label for chart in figure.charts}
    for axis, chart in zip(axes.flat, figure.charts, strict=False):
        _chart(axis, chart)
    if count > 1 and len(labels) == 1:  # once below all of them: side by side they would run into each other
        for axis in axes.flat[:count]:
            axis.set_xlabel("")
        drawing.supxlabel(plain(labels.pop()), fontsize=8)
    _legend(plt, drawing, figure.charts, 2 if count == 1 else 4)
    return drawing


def _height(chart: Chart, columns: int) -> float:
    if chart.y.categories:
        return 0.5 + 0.24 * len(chart.y.categories) * max(1.0, (chart.height - 70) / 26 / len(chart.y.categories) / 1.6)
    return 2.1 if columns == 1 else 2.5 if not chart.y.ticks else 1.6


def _legend(plt: Any, drawing: Any, charts: Sequence[Chart], columns: int) -> None:
    handles = []
    for name, mark in legend(charts):
        series = getattr(mark, "series", -1)
        alone = isinstance(mark, (Points, Interval))
        dashes = _dashes(mark) if isinstance(mark, Line) else "-"
        filled = isinstance(mark, (Ridge, Band))
        handles.append(
            plt.Rectangle((0, 0), 1, 1, color=_colour(series), alpha=0.6, label=plain(name))
            if filled
            else plt.Line2D(
                [], [], color=_colour(series), ls="" if alone else dashes, marker=_marker(series) if alone else "",
                ms=3, label=plain(name),
            )
        )  # fmt: skip
    if handles:
        drawing.legend(handles=handles, loc="outside upper center", ncol=min(columns, len(handles)), frameon=False)


def _chart(axis: Any, chart: Chart) -> None:
    x, y = scales(chart)
    for mark in chart.marks:
        _MARKS[type(mark)](axis, mark)
    axis.set_title(plain(chart.title), loc="left", pad=10 if has_named_rule(chart) else None)
    for side, description, scale in ((axis.xaxis, chart.x, x), (axis.yaxis, chart.y, y)):
        _axis(side, description)
        setter = axis.set_xlim if side is axis.xaxis else axis.set_ylim
        upside_down = side is axis.yaxis and bool(description.categories)
        setter((scale.high, scale.low) if upside_down else (scale.low, scale.high))
        if description.log:
            (axis.set_xscale if side is axis.xaxis else axis.set_yscale)("log")


def _axis(side: Any, axis: Axis) -> None:
    side.set_label_text(plain(axis.label))
    if axis.categories:
        side.set_ticks(range(len(axis.categories)), [plain(name) for name in axis.categories])
    elif not axis.ticks:
        side.set_ticks([])
        side.axes.spines[:].set_visible(False)


def _colour(series: int) -> str:
    return "0.35" if series < 0 else COLOURS[series % len(COLOURS)]


def _marker(series: int) -> str:
    return MARKERS[max(series, 0) % len(MARKERS)]


def _dashes(mark: Line) -> Any:
    return DASHES[1 + max(mark.series, 0) % 5] if mark.dashed or mark.series >= len(COLOURS) else "-"


def _line(axis: Any, mark: Line) -> None:
    dots = _marker(mark.series) if mark.markers else ""
    faint = {"lw": 0.5, "alpha": 0.4} if mark.faint else {"ls": _dashes(mark)}
    axis.plot(mark.x, mark.y, color=_colour(mark.series), marker=dots, ms=3, zorder=2 if mark.faint else 3, **faint)


def _band(axis: Any, mark: Band) -> None:
    axis.fill_between(mark.x, mark.low, mark.high, color=_colour(mark.series), alpha=0.18, lw=0)


def _points(axis: Any, mark: Points) -> None:
    style = {"marker": _marker(mark.series), "color": _colour(mark.series), "alpha": 0.5 if mark.faint else 0.9}
    axis.scatter(mark.x, mark.y, s=(1.3 * mark.size) ** 2, linewidths=0, zorder=4, **style)


def _arrows(axis: Any, mark: Arrows) -> None:
    style = {
        "arrowstyle": "->",
        "lw": 0.4,
        "color": _colour(mark.series),
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 4,
    }
    for x, y, to_x, to_y in zip(mark.x, mark.y, mark.to_x, mark.to_y, strict=True):
        axis.annotate("", (to_x, to_y), (x, y), arrowprops=style)


def _interval(axis: Any, mark: Interval) -> None:
    axis.plot([mark.low, mark.high], [mark.at] * 2, color=_colour(mark.series), lw=1)
    axis.plot([mark.value], [mark.at], color=_colour(mark.series), marker=_marker(mark.series), ms=3.2)


def _ridge(axis: Any, mark: Ridge) -> None:
    base = mark.at + 0.42
    tops = [base - 0.84 * height for height in mark.heights]
    colour = _colour(mark.series)
    axis.stairs(tops, mark.edges, baseline=base, fill=True, color=colour, alpha=0.15)
    axis.stairs(tops, mark.edges, baseline=base, color=colour, lw=0.6)
    bins = [b for b in zip(mark.edges, mark.edges[1:], tops, strict=False) if b[1] > mark.cut]
    if bins:
        edges = [max(bins[0][0], mark.cut), *(right for _, right, _ in bins)]
        axis.stairs([top for *_, top in bins], edges, baseline=base, fill=True, color=colour, alpha=0.75)


def _rule(axis: Any, mark: Rule) -> None:
    upright = mark.along == "x"
    (axis.axvline if upright else axis.axhline)(mark.value, color="0.4", lw=0.6, ls="--", zorder=1)
    if mark.name:
        at = (mark.value, 1.0) if upright else (1.0, mark.value)
        where = axis.get_xaxis_transform() if upright else axis.get_yaxis_transform()
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 6, "color": "0.3", "va": "bottom"}
        side = "center" if upright else "right"
        axis.annotate(plain(mark.name), at, (0, 1), xycoords=where, ha=side, **style)


def _cells(axis: Any, mark: Cells) -> None:
    values = [[math.nan if value is None else value for value in row] for row in mark.values]
    axis.imshow(values, cmap="cividis", aspect="auto")
    known = [value for row in values for value in row if not math.isnan(value)]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if not math.isnan(value):
                shade = "white" if value < middle else "black"
                axis.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=6, color=shade)


_MARKS: dict[type[Mark], Any] = {
    Line: _line,
    Band: _band,
    Points: _points,
    Arrows: _arrows,
    Interval: _interval,
    Ridge: _ridge,
    Rule: _rule,
    Cells: _cells,
}


def _galleries(plt: Any, galleries: Sequence[Gallery]) -> Any:
    """A row of thumbnails for each gallery."""
    import io

    most = max(len(gallery.mistakes) for gallery in galleries)
    space = {"wspace": 0.15, "hspace": 0.85}
    size = (TEXT_WIDTH, 1.15 * len(galleries))
    drawing, axes = plt.subplots(len(galleries), most, figsize=size, squeeze=False, gridspec_kw=space)
    for axis in axes.flat:
        axis.axis("off")
    for line, gallery in zip(axes, galleries, strict=True):
        line[0].set_title(plain(gallery.title), loc="left", fontsize=7)
        for axis, mistake in zip(line, gallery.mistakes, strict=False):
            if mistake.picture is not None:
                axis.imshow(
                    plt.imread(io.BytesIO(mistake.picture)), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
                )
            words = f"{mistake.label or '?'} → {mistake.nearest}\n{mistake.score:.2g}"
            axis.text(0.5, -0.05, plain(words), transform=axis.transAxes, ha="center", va="top", fontsize=6)
    return drawing
