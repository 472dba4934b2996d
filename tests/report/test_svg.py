"""Every mark leaves ink, in the right place, and nothing from data gets out of its text."""

import re
import xml.etree.ElementTree as ET

import pytest

from farout.report.chart import Arrows, Axis, Band, Cells, Chart, Interval, Line, Points, Ridge, Rule
from farout.report.svg import WIDTH, cividis, draw, key

NASTY = "</text></svg><script>alert(1)</script>\"'&"
MARKS = {
    "line": Line([0, 1, 2], [0, 1, 0], NASTY, 0, [NASTY] * 3, markers=True),
    "band": Band([0, 1], [0, 0], [1, 2], NASTY),
    "points": Points([0, 1], [0, 1], NASTY, 1, [NASTY] * 2),
    "arrows": Arrows([0], [0], [1], [1], NASTY),
    "interval": Interval(0.5, 0.2, 0.9, 0.5, NASTY, 2, NASTY),
    "rule": Rule(0.5, "x", NASTY),
}


def parsed(chart):
    return ET.fromstring(draw(chart))


@pytest.mark.parametrize("name", MARKS)
def test_a_mark_is_drawn_and_its_text_stays_text(name):
    empty = len(draw(Chart(NASTY, Axis(NASTY), Axis(NASTY), [])))
    text = draw(Chart(NASTY, Axis(NASTY), Axis(NASTY), [MARKS[name]]))
    assert len(text) > empty + 30
    tree = ET.fromstring(text)
    assert {element.tag for element in tree.iter()} <= {"svg", "g", "path", "circle", "rect", "text"}
    tips = [element.get("data-tip") for element in tree.iter() if element.get("data-tip")]
    assert set(tips) <= {NASTY}
    assert "<script" not in text
    ET.fromstring(key(MARKS[name]))


def test_ridges_stand_on_their_rows_and_fill_what_passes():
    ridge = Ridge(1, [0, 1, 2, 3], [0.5, 1, 0.2], 1.5, "x", 0, "tip")
    tree = parsed(Chart("", Axis(), Axis(categories=("a", "b")), [ridge]))
    whole, passed = (next(e for e in tree.iter() if e.get("class") == c).get("d") for c in ("fill", "passed"))
    assert len(re.findall("H", whole)) == 3
    assert len(re.findall("H", passed)) == 2  # the second bin from the cut on, and the third
    left = [float(re.match(r"M([\d.]+)", path)[1]) for path in (whole, passed)]
    assert left[0] < left[1]


def test_a_heat_map_shows_its_numbers_and_leaves_gaps():
    cells = Cells([[1.0, None], [3.0, 2.0]], [["a", "b"], ["c", "d"]])
    tree = parsed(Chart("", Axis(categories=("x", "y")), Axis(categories=("u", "v")), [cells]))
    boxes = [e for e in tree.iter() if e.tag == "rect"]
    assert [box.get("data-tip") for box in boxes] == ["a", "c", "d"]
    assert boxes[0].get("fill") == "rgb{},{},{}".format(*cividis(0)).replace("rgb", "rgb(") + ")"
    assert [e.text for e in tree.iter() if e.get("class") == "cell"] == ["1", "3", "2"]


def test_a_line_is_cut_where_a_value_is_not_a_number():
    tree = parsed(Chart("", Axis(), Axis(), [Line([0, 1, 2, 3, 4], [0, 1, float("nan"), 1, 0], tips="abcde")]))
    path = next(e for e in tree.iter() if e.get("class") == "line").get("d")
    assert path.count("M") == 2
    assert [e.get("data-tip") for e in tree.iter() if e.get("class") == "hit"] == ["a", "b", "d", "e"]


def test_everything_lies_inside_the_picture():
    chart = Chart("", Axis(), Axis(), [Points([-5, 1000], [1e-9, 7], tips=["", ""])])
    places = re.findall(r"translate\(([\d.-]+) ([\d.-]+)\)", draw(chart))
    assert len(places) == 2
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= 250 for x, y in places)


def test_the_heat_colours_go_from_dark_to_light():
    grey = [sum(cividis(share / 10)) for share in range(11)]
    assert grey == sorted(grey)
    assert cividis(-1) == cividis(0)
    assert cividis(2) == cividis(1)
