"""The drift signal: quiet on the calibration's own distribution, loud on another."""

import pytest
import torch

from farout.serve.drift import FEWEST, Drift


def filled(scores, calibration, threshold=0.0, window=1000):
    drift = Drift(calibration, threshold, window)
    for score in scores:
        drift.add(float(score), float(score) < threshold)
    return drift.report()


def test_statistic_by_hand():
    """Twenty scores of which fifteen lie below all calibration scores: D = 3/4."""
    report = filled([0.0] * 15 + [2.5] * 5, torch.tensor([1.0, 2.0, 3.0, 4.0]), threshold=1.5)
    assert report.ks_statistic == pytest.approx(0.75)
    assert report.ood_share == 0.75
    assert report.expected_ood_share == 0.25
    assert report.seen == 20


def test_same_distribution_is_quiet_and_a_shift_is_loud():
    torch.manual_seed(0)
    calibration = torch.randn(2000)
    levels = [filled(torch.randn(300), calibration).p_value for _ in range(100)]
    assert sum(p <= 0.1 for p in levels) <= 22  # 10 expected; 22 has a chance of 1e-4
    assert min(filled(torch.randn(300) - 0.5, calibration).p_value for _ in range(5)) < 1e-6


def test_only_the_window_counts():
    calibration = torch.linspace(0, 1, 200)
    drift = Drift(calibration, 0.0, window=50)
    for score in [-5.0] * 100 + torch.linspace(0, 1, 50).tolist():
        drift.add(score, score < 0)
    report = drift.report()
    assert (report.seen, report.ood_share) == (50, 0)
    assert report.p_value > 0.9


def test_nothing_to_compare_gives_none():
    assert filled([], torch.zeros(3))[1:] == (None, 0.0, None, None)
    few = filled([1.0] * (FEWEST - 1), torch.zeros(3))
    assert (few.seen, few.ood_share, few.p_value) == (FEWEST - 1, 0, None)
    assert filled([1.0] * 30, torch.empty(0)).p_value is None
    with pytest.raises(ValueError, match="at least 20"):
        Drift(torch.zeros(3), 0.0, window=5)
