"""From data to a place on the paper: limits, ticks and their labels."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farout.report.chart import Arrows, Axis, Band, Cells, Chart, Interval, Line, Mark, Points, Ridge, Rule


@dataclass(frozen=True)
class Scale:
    """A value in [low, high] to a share of the axis in [0, 1]; logarithmic if `log`."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        low, high = math.log(self.low), math.log(self.high)
        return (math.log(max(value, self.low)) - low) / (high - low)


def scales(chart: Chart) -> tuple[Scale, Scale]:
    """The scales of both axes, fitted to the marks where the axes do not say."""
    spans = [_span(mark) for mark in chart.marks]
    return (
        _scale(chart.x, [value for x, _ in spans for value in x if math.isfinite(value)]),
        _scale(chart.y, [value for _, y in spans for value in y if math.isfinite(value)]),
    )


def _span(mark: Mark) -> tuple[Sequence[float], Sequence[float]]:
    """The values that a mark takes on both axes."""
    match mark:
        case Line() | Points():
            return mark.x, mark.y
        case Band():
            return mark.x, [*mark.low, *mark.high]
        case Arrows():
            return [*mark.x, *mark.to_x], [*mark.y, *mark.to_y]
        case Interval():
            return [mark.value, mark.low, mark.high], [mark.at]
        case Ridge():
            return mark.edges, [mark.at]
        case Rule():
            return ([mark.value], []) if mark.along == "x" else ([], [mark.value])
        case Cells():
            return [], []


def _scale(axis: Axis, values: Sequence[float]) -> Scale:
    if axis.categories:
        return Scale(-0.5, len(axis.categories) - 0.5)
    if axis.log:
        values = [value for value in values if value > 0]
    low = axis.low if axis.low is not None else min(values, default=0.1 if axis.log else 0.0)
    high = axis.high if axis.high is not None else max(values, default=1.0)
    if axis.log:
        return Scale(low, high, log=True) if high > low else Scale(low / 2, low * 2, log=True)
    if high <= low:
        half = abs(low) / 2 or 0.5
        return Scale(low - half, low + half)
    room = 0.04 * (high - low)
    return Scale(low - room * (axis.low is None), high + room * (axis.high is None))


def ticks(scale: Scale, most: int = 5) -> list[float]:
    """Round numbers inside the scale.

    >>> ticks(Scale(0, 100))
    [0.0, 25.0, 50.0, 75.0, 100.0]
    """
    if scale.log:
        decades = range(math.ceil(math.log10(scale.low) - 1e-9), math.floor(math.log10(scale.high) + 1e-9) + 1)
        if len(decades) > 2:
            return [10.0**power for power in decades][:: math.ceil(len(decades) / (most + 1))]
        if scale.high > 3 * scale.low:
            every = (digit * 10.0**power for power in range(decades.start - 1, decades.stop) for digit in (1, 2, 5))
            return [float(f"{value:.3g}") for value in every if scale.low <= value <= scale.high]
    return next(list(_multiples(scale, step)) for step in _steps(scale) if _count(scale, step) <= most)


def _steps(scale: Scale) -> Iterator[float]:
    """Round steps, growing without end from one that is surely too small."""
    power = math.floor(math.log10((scale.high - scale.low) / 100))
    while True:
        for digit in (1, 2, 2.5, 5):
            yield digit * 10.0**power
        power += 1


def _count(scale: Scale, step: float) -> int:
    return math.floor(scale.high / step + 1e-9) - math.ceil(scale.low / step - 1e-9) + 1


def _multiples(scale: Scale, step: float) -> Iterator[float]:
    first = math.ceil(scale.low / step - 1e-9)
    for number in range(first, first + _count(scale, step)):
        yield float(f"{number * step:.12g}")


def label(value: float) -> str:
    """A tick's number, short.

    >>> label(0.05), label(20000.0), label(1e-05)
    ('0.05', '20k', '1e-5')
    """
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        mantissa, _, exponent = f"{value:.3g}".partition("e")
        return f"{mantissa}e{int(exponent)}" if exponent else f"{value:.3g}"
    if size >= 1e4:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"
