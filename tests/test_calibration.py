"""Thresholds keep their promise: exact counts, simulation, scipy and brute force as witnesses."""

import numpy as np
import pytest
import scipy.optimize
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from farout.calibration import (
    conformal_threshold,
    false_alarm_rate,
    fingerprints,
    fit_temperature,
    p_values,
    refuse_trained_on,
    set_fingerprint,
    thinned,
)
from farout.errors import DataError

values = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=30)  # few values: many ties


@given(values, values)
@settings(max_examples=60, deadline=None)
def test_p_values_are_counts(calibration, scores):
    got = p_values(torch.tensor(calibration).double().sort().values, torch.tensor(scores))
    wanted = [(1 + sum(c <= s for c in calibration)) / (len(calibration) + 1) for s in scores]
    assert got.tolist() == wanted


@given(values, values, st.sampled_from([0.05, 0.1, 0.2, 0.5, 0.9]))
@settings(max_examples=100, deadline=None)
def test_below_the_threshold_is_where_the_p_value_is_at_most_alpha(calibration, scores, alpha):
    kept = torch.tensor(calibration).double().sort().values
    if alpha * (len(kept) + 1) < 1:
        with pytest.raises(DataError, match="calibration samples"):
            conformal_threshold(kept, alpha)
        return
    threshold = conformal_threshold(kept, alpha)
    for score in scores:
        count = 1 + sum(c <= score for c in calibration)
        assert (score < threshold) == (count * 100 <= round(alpha * 100) * (len(kept) + 1))


def test_the_false_alarm_rate_holds_on_average_over_calibration_sets():
    """Exchangeable scores: E[rate] = ⌊α(n + 1)⌋/(n + 1), here exactly α; 20,000 sets put the error near 0.0004."""
    rng = torch.Generator().manual_seed(0)
    n, alpha = 19, 0.1
    calibration = torch.rand(20_000, n, generator=rng).sort(dim=1).values
    new = torch.rand(20_000, generator=rng)
    thresholds = torch.tensor([conformal_threshold(row, alpha) for row in calibration[:2000]])
    assert torch.allclose(thresholds, calibration[:2000, 1])  # the second of 19: 2/20
    rate = float((new < calibration[:, 1]).double().mean())
    assert abs(rate - alpha) < 0.008
    too_small = float((new < torch.quantile(calibration, alpha, dim=1)).double().mean())
    assert too_small > alpha + 0.02  # the plain quantile does break the promise at this n


def test_a_budget_too_small_says_how_many_samples_it_needs():
    assert false_alarm_rate(10, 1e6) == 1e-5
    with pytest.raises(DataError, match=r"1e-05 needs at least 99,999 calibration samples.* got 500; .*0\.002"):
        conformal_threshold(torch.arange(500.0), 1e-5)
    assert conformal_threshold(torch.arange(99_999.0), 1e-5) == 0.0
    for alarms, images in ((0, 10), (5, -1), (10, 10)):
        with pytest.raises(ValueError, match="a budget"):
            false_alarm_rate(alarms, images)
    with pytest.raises(ValueError, match="must lie between 0 and 1, got 5"):
        conformal_threshold(torch.arange(9.0), 5)


def test_the_temperature_is_scipys():
    rng = torch.Generator().manual_seed(1)
    logits = 6 * torch.randn(400, 5, generator=rng)
    labels = torch.distributions.Categorical(logits=logits / 3).sample()

    def nll(t):
        return float(F.cross_entropy(logits.double() / t, labels))

    witness = scipy.optimize.minimize_scalar(nll, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9}).x
    assert fit_temperature(logits, labels) == pytest.approx(witness, rel=1e-4)
    assert 2 < witness < 4.5
    assert fit_temperature(logits, logits.argmax(1)) == pytest.approx(0.05, rel=1e-4)  # all right: as sharp as allowed


def test_a_long_list_is_thinned_at_random_and_sorted():
    kept = thinned(torch.arange(1000.0).flip(0), keep=100)
    assert kept.dtype == torch.float64
    assert len(kept.unique()) == 100
    assert torch.equal(kept, kept.sort().values)
    assert abs(float(kept.mean()) - 500) < 100
    assert torch.equal(thinned(torch.tensor([3.0, 1.0])), torch.tensor([1.0, 3.0]).double())
    with pytest.raises(DataError, match="1 of 2 calibration scores are NaN"):
        thinned(torch.tensor([1.0, float("nan")]))


def test_fingerprints_know_a_sample_by_its_pixels():
    images = torch.randint(256, (50, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    prints = fingerprints(images)
    assert len(prints.unique()) == 50
    changed = images.clone()
    changed[7, 0, 0, 0] ^= 1
    assert (fingerprints(changed) != prints).nonzero().flatten().tolist() == [7]
    assert torch.equal(fingerprints(images[[3, 1]].contiguous()), prints[[3, 1]])
    assert set_fingerprint(prints) != set_fingerprint(prints.flip(0))


def test_data_that_was_trained_on_is_refused_and_a_few_duplicates_are_not():
    prints = torch.arange(1000)
    refuse_trained_on(prints, torch.arange(5000, 5500), 500, "fresh")
    refuse_trained_on(prints, torch.arange(990, 1490), 500, "with duplicates")  # 10 of 1000
    refuse_trained_on(prints, torch.empty(0, dtype=torch.int64), 0, "unknown")
    with pytest.raises(DataError, match="the detector was trained on half: 500 of its 1000 samples"):
        refuse_trained_on(prints, torch.arange(500, 1000), 500, "half")
    sampled = torch.from_numpy(np.linspace(0, 49_999, 2048).round().astype(np.int64))
    with pytest.raises(DataError, match="2048 of 50000 training samples"):
        refuse_trained_on(torch.arange(2000, 4000), sampled, 50_000, "a piece")
