"""The figures of scores hold the numbers of the metrics."""

import numpy as np
import pytest
from synthetic_runs import write_run

from farout.metrics import fpr_at_tpr
from farout.report.chart import Interval, Line, Points, Ridge, Rule
from farout.report.gather import find_runs, group_runs, read_run
from farout.report.separation import RATES, dots, histograms, roc


def groups(path):
    return group_runs([read_run(folder) for folder in find_runs([path])])


def test_histograms_fill_what_is_accepted(tmp_path):
    folder = write_run(tmp_path / "run", scores=["msp"])
    figure = histograms(groups(tmp_path))
    (chart,) = figure.charts
    ridges = [mark for mark in chart.marks if isinstance(mark, Ridge)]
    cut = next(mark.value for mark in chart.marks if isinstance(mark, Rule))
    scores = np.load(folder / "scores.npz", allow_pickle=False)
    assert np.mean(scores["msp|digits"] >= cut) >= 0.95
    shares = [row[4] for row in figure.table.rows]
    assert shares[1] == pytest.approx(100 * np.mean(scores["msp|far/noise"] >= cut), abs=0.01)
    assert [ridge.at for ridge in ridges] == [0, 1, 2]
    assert max(ridges[0].heights) == 1


@pytest.mark.parametrize("digits", [9, 0])
def test_the_roc_curve_point_by_point(tmp_path, digits):
    """Rounded to whole numbers nearly all scores are tied."""
    folder = write_run(tmp_path / "run", scores=["msp"], sets=["noise"], count=60)
    rounded = {key: np.round(values, digits) for key, values in np.load(folder / "scores.npz").items()}
    np.savez(folder / "scores.npz", **rounded)
    (chart,) = roc(groups(tmp_path)).charts
    line = next(mark for mark in chart.marks if isinstance(mark, Line))
    marker = next(mark for mark in chart.marks if isinstance(mark, Points))
    scores = np.load(folder / "scores.npz", allow_pickle=False)
    inliers, outliers = scores["msp|digits"], scores["msp|noise"]
    for rate, found in zip(RATES, line.y, strict=True):
        fair = [t for t in [*outliers, *inliers, -np.inf, np.inf] if np.mean(outliers >= t) <= rate + 1e-12]
        assert found == pytest.approx(100 * max(np.mean(inliers >= t) for t in fair))
    assert marker.x[0] == pytest.approx(100 * fpr_at_tpr(id_scores=inliers, ood_scores=outliers))


def test_several_methods_share_a_panel_for_each_set(three):
    figure = roc(groups(three))
    assert [chart.title for chart in figure.charts] == ["noise", "other"]
    assert [mark.name for mark in figure.charts[0].marks if isinstance(mark, Line)] == ["dal", "oe"]


def test_dots_show_each_seed_and_the_interval(three):
    (chart,) = dots(groups(three)).charts
    intervals = [mark for mark in chart.marks if isinstance(mark, Interval)]
    assert len(intervals) == 2 * 3  # two methods, two sets and their average
    assert all(mark.low <= mark.value <= mark.high for mark in intervals)
    assert all(len(mark.x) == 2 for mark in chart.marks if isinstance(mark, Points))


def test_without_scores_each_figure_says_why(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "scores.npz").unlink()
    (folder / "results.jsonl").unlink()
    for figure in (histograms(groups(tmp_path)), roc(groups(tmp_path)), dots(groups(tmp_path))):
        assert "farout eval" in figure.why_missing
        assert not figure.charts
