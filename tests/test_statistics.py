"""Intervals and tests against loops, against other formulas, and against what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from farout import metrics
from farout.statistics import (
    METRICS,
    Difference,
    delong,
    difference,
    holm,
    interval,
    metrics_of_counts,
    placements,
    replicates,
    seeds_interval,
    verdict,
)

few = st.lists(st.integers(0, 6), min_size=1, max_size=40)


def scores(seed, n=300, m=250, gap=1.5):
    rng = np.random.default_rng(seed)
    return rng.normal(gap, 1, n), rng.normal(0, 1.3, m)


@given(few, few)
def test_metrics_of_counts_are_the_metrics(ids, oods):
    counts = [np.bincount(values, minlength=7)[None] for values in (ids, oods)]
    expected = metrics.summary(id_scores=np.array(ids, float), ood_scores=np.array(oods, float))
    found = metrics_of_counts(*counts)
    for metric in METRICS:
        assert found[metric][0] == pytest.approx(expected[metric], abs=1e-12), metric


def test_replicates_are_the_metrics_of_resampled_scores():
    """The bootstrap's spread is that of a plain loop that draws images with replacement."""
    ids, oods = scores(0, 120, 90)
    fast = replicates(id_scores=ids, ood_scores=oods, resamples=400)
    rng = np.random.default_rng(1)
    slow = [
        metrics.summary(id_scores=rng.choice(ids, len(ids)), ood_scores=rng.choice(oods, len(oods))) for _ in range(400)
    ]
    for metric in METRICS:
        plain = np.array([row[metric] for row in slow])
        assert fast[metric].mean() == pytest.approx(plain.mean(), abs=4 * plain.std() / 20 * 2**0.5)
        assert fast[metric].std() == pytest.approx(plain.std(), rel=0.25)


def test_resampled_images_do_not_depend_on_the_scores():
    """Ties change the levels, not the images: a monotone change of the scores leaves every replicate alone."""
    ids, oods = scores(2)
    same = replicates(id_scores=np.exp(ids), ood_scores=np.exp(oods), resamples=60)
    first = replicates(id_scores=ids, ood_scores=oods, resamples=60)
    for metric in METRICS:
        assert np.array_equal(same[metric], first[metric])
    tied = replicates(id_scores=np.r_[ids[:-1], ids[0]], ood_scores=oods, resamples=60)  # one level fewer
    assert np.abs(tied["auroc"] - first["auroc"]).max() < 0.03
    other = replicates(id_scores=ids, ood_scores=oods, resamples=60, stream=1)
    assert not np.array_equal(other["auroc"], first["auroc"])


def test_sets_of_any_size_share_the_id_images_of_a_resample():
    """Against outliers that all have one score, AUROC is a matter of the ID images alone."""
    ids, _ = scores(9)
    few, many = (replicates(id_scores=ids, ood_scores=np.full(n, 1.5), resamples=60, ood_stream=n) for n in (5, 400))
    assert np.allclose(few["auroc"], many["auroc"])


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    truth = scipy_stats.norm.cdf(1.5 / np.hypot(1, 1.3))
    covered = 0
    for seed in range(60):
        ids, oods = scores(seed, 150, 150)
        found = interval(
            metrics.auroc(id_scores=ids, ood_scores=oods),
            replicates(id_scores=ids, ood_scores=oods, resamples=200)["auroc"],
        )
        covered += found.low <= truth <= found.high
    assert 50 <= covered <= 60  # 57 expected


def test_placements_and_delong_against_loops():
    ids, oods = (np.round(values, 1) for values in scores(3, 40, 30))  # rounded: with ties
    loop = np.array([[(a > b) + (a == b) / 2 for b in oods] for a in ids])
    of_id, of_ood = placements(id_scores=ids, ood_scores=oods)
    assert np.allclose(of_id, loop.mean(axis=1))
    assert np.allclose(of_ood, loop.mean(axis=0))
    assert of_id.mean() == pytest.approx(metrics.auroc(id_scores=ids, ood_scores=oods))


def noisy(ids, oods, rng, noise):
    return ids + rng.normal(0, noise, len(ids)), oods + rng.normal(0, noise, len(oods))


def test_delong_agrees_with_the_paired_bootstrap():
    rng = np.random.default_rng(4)
    one = scores(5, 400, 350)
    two = noisy(*one, rng, 0.7)
    analytic = delong([one], [two])
    draws = [replicates(id_scores=i, ood_scores=o, resamples=600)["auroc"] for i, o in (one, two)]
    values = [metrics.auroc(id_scores=i, ood_scores=o) for i, o in (one, two)]
    assert analytic.value == pytest.approx(values[0] - values[1])
    assert (analytic.high - analytic.low) / 3.92 == pytest.approx((draws[0] - draws[1]).std(), rel=0.15)


def test_delong_finds_a_real_difference_and_no_other():
    rng = np.random.default_rng(6)
    one = scores(7, 400, 400)
    assert delong([one], [noisy(*one, rng, 2.0)]).p < 1e-4
    same = delong([one], [one])
    assert (same.value, same.p) == (0, 1)
    ps = [delong([noisy(*one, rng, 1.0)], [noisy(*one, rng, 1.0)]).p for _ in range(60)]
    assert 0 <= sum(p < 0.05 for p in ps) <= 9  # 3 expected


def test_seeds_widen_the_interval_and_images_too():
    rng = np.random.default_rng(8)
    draws = 0.3 + rng.normal(0, 0.01, (4, 500))
    quiet = seeds_interval([0.3, 0.3001, 0.2999, 0.3], draws)
    assert quiet.high - quiet.low == pytest.approx(2 * 1.96 * 0.01 / 2, rel=0.15)  # images alone, averaged over 4
    loud = seeds_interval([0.25, 0.35, 0.28, 0.32], draws)
    classic = scipy_stats.ttest_1samp([0.25, 0.35, 0.28, 0.32], 0).confidence_interval()
    assert loud.high >= classic.high - 1e-9  # never narrower than over seeds alone
    assert loud.high == pytest.approx(classic.high, rel=0.03)
    one = seeds_interval([0.3], draws[:1])
    assert one == interval(0.3, draws[0])


@pytest.mark.parametrize("images", [0.3, 1.0])
def test_few_seeds_that_happen_to_agree_do_not_pass_for_many(images):
    """Coverage of the interval for two seeds where images add to the noise."""
    rng = np.random.default_rng(11)
    spread = images / 2**0.5
    noise = rng.normal(0, 1, 400)
    draws = np.tile(spread * (noise - noise.mean()) / noise.std(ddof=1), (2, 1))
    covered = 0
    for _ in range(400):
        found = seeds_interval(rng.normal(0, 1, 2) + rng.normal(0, spread), draws)
        covered += found.low <= 0 <= found.high
    assert covered / 400 >= 0.92


def test_difference_is_paired_t_where_images_are_many():
    first, second = [0.10, 0.12, 0.11, 0.13], [0.13, 0.14, 0.15, 0.15]
    draws = np.zeros((4, 50))
    found = difference(first, second, draws, draws)
    expected = scipy_stats.ttest_rel(first, second)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert found.value == pytest.approx(-0.0275)
    assert difference([0.1, 0.1], [0.1, 0.1], np.zeros((2, 9)), np.zeros((2, 9))).p == 1
    with pytest.raises(ValueError, match="same seeds"):
        difference(first, second[:3], draws, draws[:3])


def test_one_seed_gives_the_bootstraps_p_and_never_zero():
    draws = np.full((1, 99), 0.2)
    found = difference([0.2], [0.0], draws, 0 * draws)
    assert found.p == found.p_images == pytest.approx(0.02)


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_verdicts_in_words():
    words = verdict("DAL", "OE", "fpr95_id", Difference(-0.014, -0.026, -0.003, 0.01, 0.01, 5))
    assert words == "DAL lowers FPR95 against OE by 1.4 [0.3, 2.6], p=0.01 (5 seeds)"
    words = verdict("DAL", "OE", "auroc", Difference(0.02, 0.01, 0.03, 0.0001, 0.01, 2))
    assert words.startswith("DAL raises AUROC against OE by 2.0 [1.0, 3.0], p<0.001")
    assert "too few" in words
    words = verdict("DAL", "OE", "fpr95_ood", Difference(-0.01, -0.03, 0.01, 0.3, 0.2, 1))
    assert words.startswith("DAL and OE are not told apart in FPR95 (OOD+): -1.0 [-3.0, 1.0], p=0.30 (one seed")


@pytest.mark.parametrize("bad", [[], [[1.0]], [float("nan")]])
def test_what_cannot_be_ranked_is_refused(bad):
    with pytest.raises(ValueError, match="id_scores"):
        replicates(id_scores=bad, ood_scores=[1.0])
