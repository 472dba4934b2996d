"""A chart as inline SVG: colours come from the page's style, so that it is right in light, dark and print.

Everything that can be pointed at carries its text in `data-tip`; the page's script shows it, by mouse, touch or arrow
keys. Whatever comes from data is escaped here.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from farout.report.chart import (
    INK,
    Arrows,
    Axis,
    Band,
    Cells,
    Chart,
    Interval,
    Line,
    Mark,
    Points,
    Ridge,
    Rule,
    has_named_rule,
)
from farout.report.scale import Scale, label, scales, ticks

WIDTH, WIDER, HEIGHT = 380, 440, 250  # wider where one or two stand alone; still readable 400 pixels wide
SERIES = 6
SHAPES = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",  # circle
    "M-2.8-2.8h5.6v5.6h-5.6z",  # square
    "M0-3.6L3.4 2.6H-3.4z",  # triangle
    "M0-4L3.4 0L0 4L-3.4 0z",  # diamond
    "M-1.2-3.6h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4v-2.4h2.4z",  # cross
    "M0 3.6L3.4-2.6H-3.4z",  # triangle, point down
)
DASHES = ("", "7 3", "2 2", "9 3 2 3", "4 2 1 2", "12 4")
CIVIDIS = ((0, 34, 78), (66, 78, 108), (124, 123, 120), (187, 175, 113), (254, 232, 56))


def draw(chart: Chart, width: int = WIDTH) -> str:
    """The chart as one <svg> element."""
    frame = Frame(chart, width)
    body = "".join((frame.axes(), *(_MARKS[type(mark)](mark, frame) for mark in _back_to_front(chart.marks))))
    title = f'<text class="title" x="4" y="14">{escape(_short(chart.title, 52))}</text>'
    words = escape(f"{chart.title}. Arrow keys walk through the values.")
    return (
        f'<svg class="chart" viewBox="0 0 {width} {frame.height}" role="img" tabindex="0" aria-label="{words}">'
        f"{title}{body}</svg>"
    )


def key(mark: Mark) -> str:
    """The small picture of a mark in the legend."""
    series = getattr(mark, "series", INK)
    style = _style(series)
    match mark:
        case Points() | Interval():
            return _key(style, f'<path class="mark" d="{_shape(mark.series)}" transform="translate(11 6)"/>')
        case Ridge() | Band():
            return _key(style, '<path class="fill" d="M1 11V4h8V1h8v4h4v6z"/>')
        case Arrows():
            return _key(style, '<path class="arrow" d="M2 9L18 3m-5-1l5 1l-3 4"/>')
        case _:
            dashed = isinstance(mark, Line) and mark.dashed
            dots = f'<path class="mark" d="{_shape(series)}" transform="translate(11 6)"/>' if _dotted(mark) else ""
            return _key(style, f'<path class="line" d="M1 6H21"{_dash(series, dashed)}/>{dots}')


def _key(style: str, body: str) -> str:
    return f'<svg class="key {style}" viewBox="0 0 22 12" aria-hidden="true">{body}</svg>'


def _dotted(mark: Mark) -> bool:
    return isinstance(mark, Line) and mark.markers


class Frame:
    """Where things lie: the plot inside its margins, and both scales."""

    def __init__(self, chart: Chart, width: int) -> None:
        self.chart = chart
        self.height = chart.height or HEIGHT
        self.x_scale, self.y_scale = scales(chart)
        self.left = 10 + 6.1 * max((len(text) for _, text in self._labels(chart.y, self.y_scale)), default=0)
        self.right, self.top = width - 12.0, 40.0 if chart.y.label else 34.0 if has_named_rule(chart) else 26.0
        self.bottom = self.height - (36.0 if chart.x.label else 20.0)

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * self.x_scale(value)

    def y(self, value: float) -> float:
        share = self.y_scale(value)
        return self.top + (self.bottom - self.top) * (share if self.chart.y.categories else 1 - share)

    def at(self, x: float, y: float) -> str:
        return f"{_n(self.x(x))} {_n(self.y(y))}"

    def _labels(self, axis: Axis, scale: Scale) -> list[tuple[float, str]]:
        if axis.categories:
            return [(place, _short(name, 18)) for place, name in enumerate(axis.categories)]
        return [(tick, label(tick)) for tick in ticks(scale)] if axis.ticks else []

    def axes(self) -> str:
        """Grid lines, tick labels and the names of the axes."""
        line = f'<path class="axis" d="M{_n(self.left)} {_n(self.bottom)}H{_n(self.right)}"/>'
        parts = [line if self.chart.x.ticks else ""]
        for tick, text in self._labels(self.chart.y, self.y_scale):
            y = _n(self.y(tick))
            if not self.chart.y.categories:
                parts.append(f'<path class="grid" d="M{_n(self.left)} {y}H{_n(self.right)}"/>')
            parts.append(_text(text, self.left - 5, self.y(tick) + 4, "end"))
        for tick, text in self._labels(self.chart.x, self.x_scale):
            if not self.chart.x.categories:
                parts.append(f'<path class="grid" d="M{_n(self.x(tick))} {_n(self.top)}V{_n(self.bottom)}"/>')
            parts.append(_text(text, self.x(tick), self.bottom + 14, "middle"))
        parts.append(_text(self.chart.x.label, (self.left + self.right) / 2, self.height - 5, "middle", "name"))
        parts.append(_text(self.chart.y.label, 4, 31, "start", "name"))
        return "".join(parts)


def _back_to_front(marks: Sequence[Mark]) -> list[Mark]:
    """What is faint or wide first, so that it hides nothing."""
    return sorted(marks, key=lambda mark: 0 if isinstance(mark, (Band, Rule)) else 1 if _faint(mark) else 2)


def _faint(mark: Mark) -> bool:
    return isinstance(mark, (Line, Points)) and mark.faint


def _line(mark: Line, frame: Frame) -> str:
    style = f"{_style(mark.series)}{' faint' if mark.faint else ''}"
    runs = _finite_runs(mark.x, mark.y)
    path = "".join("M" + "L".join(frame.at(x, y) for x, y in run) for run in runs)
    dash = "" if mark.faint else _dash(mark.series, mark.dashed)
    dots = "".join(_dot(mark.series, frame, x, y) for run in runs for x, y in run) if mark.markers else ""
    hits = [
        f'<circle class="hit" cx="{_n(frame.x(x))}" cy="{_n(frame.y(y))}" r="5"{_tip(tip)}/>'
        for x, y, tip in zip(mark.x, mark.y, mark.tips, strict=False)
        if math.isfinite(x) and math.isfinite(y)
    ]
    return f'<g class="{style}"><path class="line" d="{path}"{dash}/>{dots}{"".join(hits)}</g>'


def _finite_runs(x: Sequence[float], y: Sequence[float]) -> list[list[tuple[float, float]]]:
    """The curve cut where a value is not finite."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in zip(x, y, strict=True):
        if all(map(math.isfinite, point)):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _band(mark: Band, frame: Frame) -> str:
    there = [frame.at(x, y) for x, y in zip(mark.x, mark.high, strict=True)]
    back = [frame.at(x, y) for x, y in zip(mark.x, mark.low, strict=True)]
    return f'<path class="band {_style(mark.series)}" d="M{"L".join(there + back[::-1])}z"/>'


def _points(mark: Points, frame: Frame) -> str:
    tips = mark.tips or [""] * len(mark.x)
    scale = mark.size / 3
    dots = (_dot(mark.series, frame, x, y, tip, scale) for x, y, tip in zip(mark.x, mark.y, tips, strict=True))
    return f'<g class="{_style(mark.series)}{" faint" if mark.faint else ""}">{"".join(dots)}</g>'


def _dot(series: int, frame: Frame, x: float, y: float, tip: str = "", scale: float = 1.0) -> str:
    size = f" scale({_n(scale, 2)})" if scale != 1 else ""
    return f'<path class="mark" d="{_shape(series)}" transform="translate({frame.at(x, y)}){size}"{_tip(tip)}/>'


def _arrows(mark: Arrows, frame: Frame) -> str:
    paths = []
    for x, y, to_x, to_y in zip(mark.x, mark.y, mark.to_x, mark.to_y, strict=True):
        start, end = (frame.x(x), frame.y(y)), (frame.x(to_x), frame.y(to_y))
        paths.append(f"M{_n(start[0])} {_n(start[1])}L{_n(end[0])} {_n(end[1])}{_head(start, end)}")
    return f'<path class="arrow {_style(mark.series)}" d="{"".join(paths)}"/>'


def _head(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Two short strokes at the end of an arrow, none on one too short to show them."""
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    size = min(4.0, math.dist(start, end) / 2)
    if size < 0.5:
        return ""
    wings = [(end[0] - size * math.cos(angle + turn), end[1] - size * math.sin(angle + turn)) for turn in (0.5, -0.5)]
    return "".join(f"M{_n(wing[0])} {_n(wing[1])}L{_n(end[0])} {_n(end[1])}" for wing in wings)


def _interval(mark: Interval, frame: Frame) -> str:
    y, low, high = _n(frame.y(mark.at)), frame.x(mark.low), frame.x(mark.high)
    whisker = f'<path class="whisker" d="M{_n(low)} {y}H{_n(high)}"/>' if high > low else ""
    dot = f'<path class="mark" d="{_shape(mark.series)}" transform="translate({frame.at(mark.value, mark.at)})"/>'
    wide = max(high - low, 10)
    hit = f'<rect class="hit" x="{_n((low + high - wide) / 2)}" y="{_n(frame.y(mark.at) - 5)}" width="{_n(wide)}" '
    return f'<g class="{_style(mark.series)}"{_tip(mark.tip)}>{whisker}{dot}{hit}height="10"/></g>'


def _ridge(mark: Ridge, frame: Frame) -> str:
    base = frame.y(mark.at + 0.42)
    tall = 0.84 * (frame.y(mark.at + 1) - frame.y(mark.at))
    passed = [(max(edge, mark.cut), height) for edge, height in _right_of(mark)]
    parts = [_stairs(list(zip(mark.edges, mark.heights, strict=False)), mark.edges[-1], base, tall, frame)]
    parts.append(_stairs(passed, mark.edges[-1], base, tall, frame) if passed else "")
    shown = f'<path class="fill" d="{parts[0]}"/><path class="passed" d="{parts[1]}"/>'
    return f'<g class="{_style(mark.series)}"{_tip(mark.tip)}>{shown}</g>'


def _right_of(mark: Ridge) -> list[tuple[float, float]]:
    """The bins, as (left edge, height), of which some part lies right of the cut."""
    bins = zip(mark.edges, mark.edges[1:], mark.heights, strict=False)
    return [(left, height) for left, right, height in bins if right > mark.cut]


def _stairs(bins: Sequence[tuple[float, float]], end: float, base: float, tall: float, frame: Frame) -> str:
    steps = [f"M{_n(frame.x(bins[0][0]))} {_n(base)}"]
    for (left, height), right in zip(bins, [*(edge for edge, _ in bins[1:]), end], strict=True):
        steps.append(f"L{_n(frame.x(left))} {_n(base - tall * height)}H{_n(frame.x(right))}")
    return "".join(steps) + f"V{_n(base)}z"


def _rule(mark: Rule, frame: Frame) -> str:
    if mark.along == "y":
        path = f"M{_n(frame.left)} {_n(frame.y(mark.value))}H{_n(frame.right)}"
        words = _text(mark.name, frame.right - 2, frame.y(mark.value) - 3, "end", "note")
    else:
        x = frame.x(mark.value)
        path = f"M{_n(x)} {_n(frame.top)}V{_n(frame.bottom)}"
        side, shift = ("end", -3) if x > (frame.left + frame.right) / 2 else ("start", 3)
        words = _text(mark.name, x + shift, frame.top - 3, side, "note")
    return f'<path class="rule" d="{path}"/>{words}'


def _cells(mark: Cells, frame: Frame) -> str:
    known = [value for row in mark.values for value in row if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    wide, tall = frame.x(1) - frame.x(0), frame.y(1) - frame.y(0)
    parts = []
    for row, (values, tips) in enumerate(zip(mark.values, mark.tips, strict=True)):
        for column, (value, tip) in enumerate(zip(values, tips, strict=True)):
            if value is not None:
                share = (value - low) / (high - low) if high > low else 0.5
                red, green, blue = cividis(share)
                x, y = frame.x(column), frame.y(row)
                parts.append(
                    f'<rect x="{_n(x - wide / 2)}" y="{_n(y - tall / 2)}" width="{_n(wide)}" height="{_n(tall)}"'
                    f' fill="rgb({red},{green},{blue})"{_tip(tip)}/>'
                    f'<text class="cell" x="{_n(x)}" y="{_n(y + 4)}" style="fill:{"#fff" if share < 0.5 else "#000"}">'
                    f"{value:.3g}</text>"
                )
    return "".join(parts)


def cividis(share: float) -> tuple[int, int, int]:
    """The colour of a share in [0, 1], dark blue to yellow: the same to most colour-blind eyes, and in grey."""
    place = min(max(share, 0.0), 1.0) * (len(CIVIDIS) - 1)
    first = min(int(place), len(CIVIDIS) - 2)
    mixed = zip(CIVIDIS[first], CIVIDIS[first + 1], strict=True)
    red, green, blue = (round(a + (b - a) * (place - first)) for a, b in mixed)
    return red, green, blue


_MARKS: dict[type[Mark], Any] = {  # what draws which mark
    Line: _line,
    Band: _band,
    Points: _points,
    Arrows: _arrows,
    Interval: _interval,
    Ridge: _ridge,
    Rule: _rule,
    Cells: _cells,
}


def _n(value: float, digits: int = 1) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _style(series: int) -> str:
    return "ink" if series < 0 else f"s{series % SERIES}"


def _shape(series: int) -> str:
    return SHAPES[max(series, 0) % len(SHAPES)]


def _dash(series: int, dashed: bool) -> str:
    """The second round of colours is dashed too."""
    pattern = DASHES[1 + max(series, 0) % (len(DASHES) - 1)] if dashed or series >= SERIES else ""
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def _tip(text: str) -> str:
    return f' data-tip="{escape(text)}"' if text else ""


def _text(text: str, x: float, y: float, anchor: str, style: str = "tick") -> str:
    if not text:
        return ""
    return f'<text class="{style}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
