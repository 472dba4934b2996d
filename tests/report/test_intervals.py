"""Each interval against another way to get it."""

import numpy as np
import pytest
from scipy import stats

from farout.metrics import auroc, fpr_at_tpr
from farout.report.intervals import of_auroc, of_fpr, of_share, over_seeds


def test_over_seeds_is_students():
    values = [0.10, 0.14, 0.12, 0.20]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = over_seeds(values)
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))
    assert "4 seeds" in found.how


def test_over_seeds_stays_a_share_and_one_seed_has_no_interval():
    assert over_seeds([0.0, 0.1]).low == 0
    assert over_seeds([0.3]).low is None


def resampled(metric, inliers, outliers, draws=1500):
    rng = np.random.default_rng(1)
    picks = [(rng.choice(inliers, len(inliers)), rng.choice(outliers, len(outliers))) for _ in range(draws)]
    return np.quantile([metric(id_scores=a, ood_scores=b) for a, b in picks], [0.025, 0.975])


def test_fpr_agrees_with_resampling():
    rng = np.random.default_rng(0)
    inliers, outliers = rng.normal(2, 1, 400), rng.normal(0, 1, 300)
    found = of_fpr(fpr_at_tpr(id_scores=inliers, ood_scores=outliers), inliers, [outliers])
    assert (found.low, found.high) == pytest.approx(tuple(resampled(fpr_at_tpr, inliers, outliers)), abs=0.02)


def test_fpr_over_two_sets_is_narrower_than_over_one():
    rng = np.random.default_rng(0)
    inliers, sets = rng.normal(2, 1, 5000), [rng.normal(0, 1, 50) for _ in range(2)]
    one, two = of_fpr(0.3, inliers, sets[:1]), of_fpr(0.3, inliers, sets)
    assert two.high - two.low < one.high - one.low


def test_auroc_agrees_with_resampling():
    rng = np.random.default_rng(0)
    inliers, outliers = rng.normal(1, 1, 200), rng.normal(0, 1, 150)
    found = of_auroc(auroc(id_scores=inliers, ood_scores=outliers), inliers, outliers)
    assert (found.low, found.high) == pytest.approx(tuple(resampled(auroc, inliers, outliers)), abs=0.01)


def test_share_is_wilsons():
    expected = stats.binomtest(9, 12).proportion_ci(method="wilson")
    found = of_share(9 / 12, 12)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
