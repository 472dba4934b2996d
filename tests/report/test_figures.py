"""The same figures as files for a paper. Few and small: laying out a figure takes matplotlib a second."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from synthetic_runs import write_run

from farout.report.chart import (
    Arrows,
    Axis,
    Band,
    Cells,
    Chart,
    Figure,
    Interval,
    Line,
    Points,
    Ridge,
    Rule,
    Table,
)
from farout.report.figures import KINDS, plain, save_figures
from farout.report.mistakes import Gallery, Mistake, png
from farout.see import make_report

STARTS = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
NO_DATA = Table((), ())


@pytest.fixture
def report(tmp_path):
    """A report with a single small figure."""
    write_run(tmp_path / "run", sets=["$\\frac{"], scores=["$x"])
    made = make_report([tmp_path / "run"], samples=0)
    nothing = {"embedding": [], "training": [], "radius": [], "worst_case": [], "galleries": []}
    return replace(made, scores=made.scores[:1], **nothing)


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_is_a_file_of_its_kind(report, tmp_path, kind):
    """Its names hold dollar signs, which would begin formulas, and broken ones."""
    (path,) = save_figures(report, tmp_path / "deep" / "figures", kind)
    assert path.name == f"fpr95.{kind}"
    assert path.read_bytes().startswith(STARTS[kind])
    if kind == "png":
        picture = Image.open(path).convert("L")
        assert picture.getextrema()[0] < 100
        assert 2.5 * 300 < picture.width < 3.6 * 300  # one column
    if kind == "svg":
        assert "frac{" in path.read_text()  # letters, not outlines
        again = save_figures(report, tmp_path / "again", kind)[0]
        assert path.read_bytes() == again.read_bytes()


def test_every_mark_leaves_ink(report, tmp_path):
    marks = {
        "line": Line([0, 1], [0, 1], "a", 7, markers=True),
        "band": Band([0, 1], [0, 0], [1, 1], "b"),
        "points": Points([0.5], [0.5], "c", 1),
        "arrows": Arrows([0], [0], [1], [1], "d", -1),
        "interval": Interval(0.5, 0.2, 0.9, 0.5, "e"),
        "rule": Rule(0.5, "x", "here"),
        "ridge": Ridge(0, [0, 0.5, 1], [1, 0.5], 0.4, "f"),
        "cells": Cells([[0.1, None]], [["", ""]]),
    }
    figures = []
    for name, mark in marks.items():
        x = Axis(categories=("u", "v") if name == "cells" else (), ticks=False)
        y = Axis(categories=("r",) if name in ("ridge", "cells") else (), ticks=False)
        figures += [Figure(name, name, "", [Chart("", x, y, [mark])], NO_DATA)]
    for path in save_figures(replace(report, scores=figures), tmp_path / "out", "png"):
        dark = sum(Image.open(path).convert("L").histogram()[:230])
        assert dark > 50, path.name


def test_thumbnails_are_drawn_and_embeddings_leave_a_gap(report, tmp_path):
    picture = png(torch.zeros(1, 8, 8, dtype=torch.uint8))
    gallery = Gallery("t", [Mistake("s", 1, 0.5, True, "$", "a", "b", p) for p in (picture, None)])
    (path,) = save_figures(replace(report, scores=[], galleries=[gallery, Gallery("none", (), "why")]), tmp_path, "png")
    assert path.name == "mistakes.png"
    assert Image.open(path).convert("L").getextrema()[0] == 0


def test_a_kind_that_is_not_known(report, tmp_path):
    with pytest.raises(ValueError, match="cannot draw 'gif'; choose one of pdf, svg, png"):
        save_figures(report, tmp_path, "gif")
    assert plain("a$b") == r"a\$b"
