"""Tuning rows of any spelling become the paper's figure and tables."""

import pytest
from synthetic_runs import write_run

from farout.report.chart import Cells, Line
from farout.report.gather import find_runs, group_runs, read_run
from farout.report.radius import against_rho, from_groups, from_trials, heat_maps

TRIALS = [
    {"method.rho": rho, "method.ps": ps, "params": {"method.beta": beta, "gamma_max": 5}, "fpr95": value, "aux": 0.01}
    for rho, ps, beta, value in [(0.1, 1, 0.01, 0.04), (0.1, 1, 0.1, 0.06), (10, 1, 0.01, 0.5), (10, 10, 0.1, 0.7)]
]


def test_rows_are_read_however_they_are_spelt():
    rows = from_trials(
        [*TRIALS, {"rho": 1, "state": "pruned", "fpr95": 0.9}, {"unrelated": 3}, {"rho": "x", "fpr95": 0.1}]
    )
    assert len(rows) == 4
    assert rows[0] == {"rho": 0.1, "ps": 1, "gamma_max": 5, "beta": 0.01, "real": 4.0, "auxiliary": 1.0}
    assert from_trials([{"rho": 1, "value": 30.0}])[0]["real"] == 30  # percent already


def test_fpr95_against_rho_averages_what_shares_rho_and_ps():
    (chart,) = against_rho(from_trials(TRIALS)).charts
    lines = {mark.name: mark for mark in chart.marks if isinstance(mark, Line)}
    assert list(lines) == ["real OOD, ps = 1", "auxiliary OOD, ps = 1", "real OOD, ps = 10", "auxiliary OOD, ps = 10"]
    assert lines["real OOD, ps = 1"].x == [0.1, 10]
    assert lines["real OOD, ps = 1"].y == pytest.approx([5, 50])
    assert lines["auxiliary OOD, ps = 1"].dashed


def test_a_heat_map_for_each_cap():
    (chart,) = heat_maps(from_trials(TRIALS)).charts
    (cells,) = [mark for mark in chart.marks if isinstance(mark, Cells)]
    assert chart.title == "γ_max = 5"
    assert cells.values[0] == pytest.approx([4, 50])
    assert cells.values[1] == pytest.approx([6, 70])


def test_runs_that_differ_in_rho_are_rows_too(tmp_path):
    for rho in (1, 5):
        write_run(tmp_path / f"r{rho}", settings={"rho": rho})
    groups = group_runs([read_run(folder) for folder in find_runs([tmp_path])])
    rows = from_groups(groups, {groups[0].label: 0.02})
    assert [(row["rho"], row["auxiliary"]) for row in rows] == [(1, 2.0), (5, None)]
    assert rows[0]["ps"] == 1  # the constructor's
    assert against_rho(rows).charts


@pytest.mark.parametrize("rows", [[], from_trials(TRIALS[:1])])
def test_one_value_of_rho_is_no_figure(rows):
    assert "several values" in against_rho(rows).why_missing
    assert "several values" in heat_maps(rows).why_missing
