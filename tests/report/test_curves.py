"""Training curves: what is logged is drawn, resumes and bounds are marked."""

import json

import pytest
from synthetic_runs import log_rows, write_run

from farout.config import Config
from farout.report.chart import Line, Rule
from farout.report.curves import resumes, setting, training
from farout.report.gather import find_runs, group_runs, read_run


def figure(path):
    return training(group_runs([read_run(folder) for folder in find_runs([path])]))


def panel(found, title):
    return next(chart for chart in found.charts if chart.title.startswith(title))


def test_every_quantity_has_a_panel_and_every_run_a_line(three):
    found = figure(three)
    assert [chart.title.split()[0].strip(",") for chart in found.charts] == [
        *("ce", "oe", "γ", "radius", "gain", "efficiency:", "learning", "images")
    ]
    lines = [mark for mark in panel(found, "ce").marks if isinstance(mark, Line)]
    assert [(line.name, line.faint) for line in lines] == [("dal", False), ("", True), ("oe", False), ("", True)]
    assert lines[0].y[1] == pytest.approx(1 / 11)


def test_the_radius_is_held_against_rho_and_the_gain_against_its_certificate(tmp_path):
    write_run(tmp_path / "run", settings={"rho": 3})
    found = figure(tmp_path)
    assert [mark.value for mark in panel(found, "radius").marks if isinstance(mark, Rule)] == [3]
    bound = next(mark for mark in panel(found, "gain").marks if isinstance(mark, Line) and mark.dashed)
    assert bound.y == pytest.approx([0.5] * len(bound.y))  # 0.2 / 0.4


def test_a_setting_comes_from_the_recipe_else_from_the_constructor():
    config = Config.from_dict({"method": {"name": "dal", "rho": 3}})
    assert setting(config, "rho") == 3
    assert setting(config, "gamma_max") == 10
    assert setting(config, "nothing") is None
    assert setting(Config.from_dict({"method": {"name": "someone's"}}), "rho") is None


def test_resumes_are_found_where_the_clock_starts_anew(tmp_path):
    rows = log_rows(6, "oe")
    del rows[3]["images_per_second"]
    assert resumes(rows) == [30]
    assert resumes([{"step": 0}, {"step": 1}]) == []  # a log that never had a rate
    folder = write_run(tmp_path / "run", "oe")
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = figure(tmp_path)
    assert "oe, seed 0: resumed at step 30" in found.notes
    assert any(isinstance(mark, Rule) and mark.value == 30 for mark in panel(found, "ce").marks)


def test_what_is_no_number_is_not_drawn(tmp_path):
    folder = write_run(tmp_path / "run", "oe")
    (folder / "log.jsonl").write_text('{"step": 0, "ce": 1.0, "note": "hello"}\n')
    assert [chart.title for chart in figure(tmp_path).charts] == ["ce"]


def test_without_a_log_it_says_so(tmp_path):
    (write_run(tmp_path / "run") / "log.jsonl").unlink()
    assert "log.jsonl" in figure(tmp_path).why_missing
