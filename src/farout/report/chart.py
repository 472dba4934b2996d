"""Figures as data: what is drawn, apart from how. `svg` draws them for the page, `figures` for a paper.

A chart is a pair of axes and marks on them; a figure is one or several charts, a legend and the table behind them.
Series are numbers: each has its own colour, marker and dash, so that no reader depends on colour alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Numbers: TypeAlias = Sequence[float]
INK = -1
"""The series of what belongs to none: drawn in the colour of the text."""


@dataclass(frozen=True)
class Axis:
    """`categories` stand at 0, 1, 2 ...; on a y-axis the first is at the top. `low`, `high`: None fits the data."""

    label: str = ""
    log: bool = False
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    ticks: bool = True


@dataclass(frozen=True)
class Line:
    """A curve; `tips` say what stands at each point, `faint` puts it behind the others."""

    x: Numbers
    y: Numbers
    name: str = ""
    series: int = 0
    tips: Sequence[str] = ()
    faint: bool = False
    dashed: bool = False
    markers: bool = False


@dataclass(frozen=True)
class Band:
    """The area between two curves."""

    x: Numbers
    low: Numbers
    high: Numbers
    name: str = ""
    series: int = 0


@dataclass(frozen=True)
class Points:
    """Single points, each with its tip."""

    x: Numbers
    y: Numbers
    name: str = ""
    series: int = 0
    tips: Sequence[str] = ()
    size: float = 3.0
    faint: bool = False


@dataclass(frozen=True)
class Arrows:
    """From (x, y) to (to_x, to_y)."""

    x: Numbers
    y: Numbers
    to_x: Numbers
    to_y: Numbers
    name: str = ""
    series: int = 0


@dataclass(frozen=True)
class Interval:
    """A value with its interval, lying at the height `at`; `low` = `high` = value where there is none."""

    value: float
    low: float
    high: float
    at: float
    name: str = ""
    series: int = 0
    tip: str = ""


@dataclass(frozen=True)
class Ridge:
    """A histogram standing on row `at`, its heights in [0, 1]; what lies right of `cut` is filled."""

    at: int
    edges: Numbers
    heights: Numbers
    cut: float
    name: str = ""
    series: int = 0
    tip: str = ""


@dataclass(frozen=True)
class Rule:
    """A straight line across the chart: `along` "x" is an upright line at x = value."""

    value: float
    along: str = "x"
    name: str = ""


@dataclass(frozen=True)
class Cells:
    """A heat map over two axes of categories: values[row][column], None where there is nothing."""

    values: Sequence[Sequence[float | None]]
    tips: Sequence[Sequence[str]]


Mark: TypeAlias = Line | Band | Points | Arrows | Interval | Ridge | Rule | Cells


@dataclass(frozen=True)
class Chart:
    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    height: int = 0
    """In pixels of the page at 380 wide; 0 takes what suits the axes."""


@dataclass(frozen=True)
class Table:
    """What stands behind a figure, for those who cannot or would rather not look at it."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Figure:
    """A numbered part of the report. `why_missing` says why there is nothing; `notes` what to know of what there is."""

    key: str
    title: str
    caption: str = ""
    charts: Sequence[Chart] = ()
    table: Table = field(default_factory=lambda: Table((), ()))
    notes: Sequence[str] = ()
    why_missing: str = ""


def missing(key: str, title: str, why: str) -> Figure:
    """The place of a figure that cannot be drawn, and the reason."""
    return Figure(key, title, why_missing=why)


def legend(charts: Sequence[Chart]) -> list[tuple[str, Mark]]:
    """The names in all charts, each once, with a mark that shows how it is drawn; rules carry their own label."""
    named: dict[str, Mark] = {}
    for chart in charts:
        for mark in chart.marks:
            name = "" if isinstance(mark, (Rule, Cells)) else mark.name
            if name:
                named.setdefault(name, mark)
    return list(named.items())


def has_named_rule(chart: Chart) -> bool:
    """Whether an upright rule needs room above the plot for its name."""
    return any(isinstance(mark, Rule) and mark.along == "x" and bool(mark.name) for mark in chart.marks)


def thinned(count: int, most: int) -> list[int]:
    """At most `most` places among `count`, evenly spread, the first and the last among them.

    >>> thinned(5, 3)
    [0, 2, 4]
    """
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})
