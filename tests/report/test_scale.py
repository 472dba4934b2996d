"""Ticks are round and inside; scales take what data gives them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farout.report.chart import Axis, Chart, Line, Rule, thinned
from farout.report.scale import Scale, label, scales, ticks


def test_ticks_by_hand():
    assert ticks(Scale(0, 100)) == [0, 25, 50, 75, 100]
    assert ticks(Scale(-0.3, 0.31)) == [-0.2, 0.0, 0.2]
    assert ticks(Scale(0.01, 100, log=True)) == [0.01, 0.1, 1, 10, 100]
    assert ticks(Scale(0.18, 10, log=True)) == [0.2, 0.5, 1, 2, 5, 10]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_inside_and_evenly_spaced(low, width):
    scale = Scale(low, low + width)
    if scale.high <= scale.low:
        return
    found = ticks(scale)
    assert len(found) <= 5
    room = 1e-6 * width + 1e-9 * abs(low)
    assert all(scale.low - room <= tick <= scale.high + room for tick in found)
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert all(math.isclose(step, steps[0], rel_tol=1e-3, abs_tol=1e-9 * abs(low)) for step in steps)


def test_a_log_scale_is_even_in_factors():
    scale = Scale(0.01, 100, log=True)
    assert scale(1) == pytest.approx(0.5)
    assert scale(0) == 0  # what has no logarithm lies at the edge


def test_scales_fit_the_marks_and_obey_the_axes():
    chart = Chart("", Axis(), Axis(low=0), [Line([1, 3], [5, math.nan]), Rule(10, "y")])
    x, y = scales(chart)
    assert x.low < 1 < 3 < x.high
    assert (y.low, y.high > 10) == (0, True)


def test_a_constant_still_has_a_scale():
    x, y = scales(Chart("", Axis(log=True), Axis(), [Line([7, 7], [0, 0])]))
    assert x.low < 7 < x.high
    assert y.low < 0 < y.high


def test_labels_are_short():
    assert [label(v) for v in (0.05, 20000.0, 1e-5, 2.5e7, 0.0)] == ["0.05", "20k", "1e-5", "2.5e7", "0"]


def test_thinning_keeps_both_ends():
    assert thinned(1000, 5)[0] == 0
    assert thinned(1000, 5)[-1] == 999
    assert len(thinned(1000, 5)) == 5
    assert thinned(3, 5) == [0, 1, 2]
