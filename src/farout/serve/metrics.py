"""Counters, histograms and gauges in Prometheus' text format, version 0.0.4.

They are changed from the event loop alone, so they need no locks.
"""

import bisect
import math
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """Counts that only grow, one for each combination of label values."""

    kind = "counter"

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.labels = name, about, tuple(labels)
        self.counts: Tally[tuple[str, ...]] = Tally()

    def add(self, *values: str, count: int = 1) -> None:
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, got {values}")
        self.counts[values] += count

    def samples(self) -> Iterator[str]:
        for values, count in sorted(self.counts.items()):
            yield f"{self.name}{braces(self.labels, values)} {count}"


class Histogram:
    """How many observations were at most as large as each of `bounds`, their sum and their count."""

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.about, self.bounds = name, about, tuple(bounds)
        self.counts, self.total = [0] * (len(self.bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def samples(self) -> Iterator[str]:
        so_far = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            so_far += count
            yield f"{self.name}_bucket{braces(['le'], [number(bound)])} {so_far}"
        yield f"{self.name}_sum {number(self.total)}"
        yield f"{self.name}_count {so_far}"


class Gauge:
    """A value that is asked for when it is read; NaN for None."""

    kind = "gauge"

    def __init__(self, name: str, about: str, read: Callable[[], float | None]) -> None:
        self.name, self.about, self.read = name, about, read

    def samples(self) -> Iterator[str]:
        value = self.read()
        yield f"{self.name} {number(math.nan if value is None else value)}"


def render(metrics: Sequence[Counter | Histogram | Gauge]) -> str:
    """The page that Prometheus reads."""
    lines = []
    for metric in metrics:
        about = metric.about.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {metric.name} {about}", f"# TYPE {metric.name} {metric.kind}", *metric.samples()]
    return "\n".join(lines) + "\n"


def braces(names: Sequence[str], values: Sequence[str]) -> str:
    """{name="value",...}, with the values escaped; nothing without labels."""
    escaped = [value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for value in values]
    inside = ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True))
    return f"{{{inside}}}" if inside else ""


def number(value: float) -> str:
    """As Prometheus writes it: +Inf, NaN, and no more digits than needed.

    >>> number(math.inf), number(0.005), number(8)
    ('+Inf', '0.005', '8')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) else repr(float(value))
