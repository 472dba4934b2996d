"""Every metric against scikit-learn and a plain loop, on tiny sets full of ties."""

import doctest
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from farout import metrics
from farout.metrics import accuracy, aupr, auroc, fnr95, fpr_at_tpr, summary, threshold_at_tpr

SIDES = ("id", "ood")
# few distinct values, so that most examples hold ties within and across the sets
scores = st.lists(st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.5, 0.75, 1.0, np.inf]), min_size=1, max_size=25)
finite = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 0.75, 1.0]), min_size=1, max_size=25)
rates = st.integers(1, 40).map(lambda k: k / 40)


def loop_fpr(ids, oods, tpr, positive):
    """The definition, point by point, in rational numbers."""
    pos, neg = (ids, oods) if positive == "id" else ([-s for s in oods], [-s for s in ids])
    wanted = Fraction(str(tpr))
    points = []
    for t in pos:
        rate = Fraction(sum(s >= t for s in pos), len(pos))
        fpr = Fraction(sum(s >= t for s in neg), len(neg))
        points.append((abs(rate - wanted), -rate, fpr))
    return float(min(points)[2])


def labelled(ids, oods, positive):
    """What scikit-learn takes: (is positive, score of being positive)."""
    is_id = np.array([1] * len(ids) + [0] * len(oods))
    score = np.array([*ids, *oods])
    return (is_id, score) if positive == "id" else (1 - is_id, -score)


@pytest.mark.parametrize("positive", SIDES)
@settings(deadline=None)
@given(ids=scores, oods=scores, tpr=rates)
def test_fpr_is_the_plain_loop(positive, ids, oods, tpr):
    assert fpr_at_tpr(id_scores=ids, ood_scores=oods, tpr=tpr, positive=positive) == loop_fpr(ids, oods, tpr, positive)


@pytest.mark.parametrize("positive", SIDES)
@settings(deadline=None)
@given(ids=finite, oods=finite)
def test_fpr_is_a_point_of_scikit_learns_roc_curve(positive, ids, oods):
    fpr, tpr, _ = roc_curve(*labelled(ids, oods, positive), drop_intermediate=False)
    distance = np.abs(tpr - 0.95).round(12)
    nearest = tpr[distance == distance.min()].max()
    expected = fpr[np.isclose(tpr, nearest)].min()
    assert fpr_at_tpr(id_scores=ids, ood_scores=oods, positive=positive) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(ids=scores, oods=scores)
def test_auroc_is_the_share_of_ordered_pairs(ids, oods):
    doubled = sum((a > b) * 2 + (a == b) for a in ids for b in oods)
    assert auroc(id_scores=ids, ood_scores=oods) == doubled / (2 * len(ids) * len(oods))


@settings(deadline=None)
@given(ids=finite, oods=finite)
def test_auroc_is_scikit_learns(ids, oods):
    expected = roc_auc_score(*labelled(ids, oods, "id"))
    assert auroc(id_scores=ids, ood_scores=oods) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("positive", SIDES)
@settings(deadline=None)
@given(ids=finite, oods=finite)
def test_aupr_is_scikit_learns(positive, ids, oods):
    expected = average_precision_score(*labelled(ids, oods, positive))
    assert aupr(id_scores=ids, ood_scores=oods, positive=positive) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(ids=scores, tpr=rates)
def test_threshold_is_the_largest_that_keeps_its_promise(ids, tpr):
    def share(t):
        return Fraction(sum(s >= t for s in ids), len(ids))

    t = threshold_at_tpr(id_scores=ids, tpr=tpr)
    assert share(t) >= Fraction(str(tpr))
    assert all(share(higher) < Fraction(str(tpr)) for higher in ids if higher > t)


@settings(deadline=None)
@given(ids=scores, oods=scores)
def test_summary_is_each_metric(ids, oods):
    pair = {"id_scores": ids, "ood_scores": oods}
    assert summary(**pair) == {
        "fpr95_id": fpr_at_tpr(**pair),
        "fpr95_ood": fpr_at_tpr(**pair, positive="ood"),
        "auroc": auroc(**pair),
        "aupr_id": aupr(**pair),
        "aupr_ood": aupr(**pair, positive="ood"),
    }


@settings(deadline=None)
@given(ids=scores, oods=scores)
def test_swapping_the_sets_and_the_sign_swaps_the_sides(ids, oods):
    here = summary(id_scores=ids, ood_scores=oods)
    there = summary(id_scores=[-s for s in oods], ood_scores=[-s for s in ids])
    assert here["auroc"] == there["auroc"]
    assert (here["fpr95_id"], here["aupr_id"]) == (there["fpr95_ood"], there["aupr_ood"])
    assert (here["fpr95_ood"], here["aupr_ood"]) == (there["fpr95_id"], there["aupr_id"])


@settings(deadline=None)
@given(ids=scores, oods=scores)
def test_swapping_the_sets_alone_mirrors_auroc(ids, oods):
    mirrored = auroc(id_scores=oods, ood_scores=ids)
    assert auroc(id_scores=ids, ood_scores=oods) == pytest.approx(1 - mirrored, abs=1e-15)


@pytest.mark.parametrize("positive", SIDES)
@settings(deadline=None)
@given(ids=scores, oods=scores)
def test_fpr_bounds_auroc(positive, ids, oods):
    """τ(1 − f) <= AUROC <= 1 − (1 − τ)f at the rate τ; tie groups of share g put τ within g/2 of 0.95.

    The pairs of an accepted positive and a rejected negative are in order, those of a rejected positive and
    an accepted negative are not. Neighbouring rates are one tie group apart, so |τ − 0.95| <= g/2.
    """
    positives = ids if positive == "id" else oods
    slack = max(positives.count(s) for s in positives) / len(positives) / 2
    f = fpr_at_tpr(id_scores=ids, ood_scores=oods, positive=positive)
    area = auroc(id_scores=ids, ood_scores=oods)
    assert (0.95 - slack) * (1 - f) - 1e-12 <= area <= 1 - (0.05 - slack) * f + 1e-12


def test_the_papers_inequality_on_many_scores():
    generator = torch.Generator().manual_seed(0)
    for shift in (-2.0, 0.0, 0.5, 4.0):
        row = summary(
            id_scores=torch.randn(20_000, generator=generator) + shift,
            ood_scores=3 * torch.randn(20_000, generator=generator),
        )
        for f in (row["fpr95_id"], row["fpr95_ood"]):
            assert 0.95 * (1 - f) <= row["auroc"] <= 1 - 0.05 * f


def test_equally_close_rates_take_the_higher():
    # 9 of 10 and 10 of 10 are equally far from 0.95 as decimals; as doubles 0.9 is nearer
    pair = {"id_scores": torch.arange(10), "ood_scores": [0.5]}
    assert fpr_at_tpr(**pair) == 1.0
    assert fpr_at_tpr(**pair, tpr=0.949) == 0.0


def test_saturated_scores_pass_together():
    # 96 % of ID tied at 1.0: the closest rate is 0.96, and the OOD tied with it are accepted
    ids = torch.cat([torch.ones(96), torch.linspace(0.1, 0.4, 4)])
    oods = torch.cat([torch.ones(20), torch.zeros(80)])
    assert fpr_at_tpr(id_scores=ids, ood_scores=oods) == 0.20


def test_the_two_sides_differ():
    # ID tight, OOD wide: 5 % of ID below every OOD, half of OOD above every other ID
    ids, oods = [0.0] * 95 + [-9.0] * 5, [1.0] * 50 + [-1.0] * 50
    assert fpr_at_tpr(id_scores=ids, ood_scores=oods, positive="id") == 0.5
    assert fpr_at_tpr(id_scores=ids, ood_scores=oods, positive="ood") == 1.0
    assert fnr95(id_scores=ids, ood_scores=oods) == 1.0


def test_several_points_with_one_rate_give_the_lowest_fpr():
    assert fpr_at_tpr(id_scores=[3.0, 2.0, 0.0], ood_scores=[1.0], tpr=0.66) == 0.0


def test_fnr95_is_not_five_percent():
    generator = torch.Generator().manual_seed(0)
    ids, oods = torch.randn(1000, generator=generator) + 1, torch.randn(500, generator=generator)
    t = oods.sort().values[474]  # 475 of 500 are at or below it
    assert fnr95(id_scores=ids, ood_scores=oods) == float((ids <= t).double().mean()) != 0.05


def test_the_deployed_threshold_is_not_the_metrics_point():
    ids = torch.cat([torch.ones(94), torch.zeros(6)])
    assert threshold_at_tpr(id_scores=ids) == 0.0  # a promise: 94 % is too few
    assert fpr_at_tpr(id_scores=ids, ood_scores=[0.5]) == 0.0  # the closest rate: 94 %


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_dtype(dtype):
    ids = torch.tensor([1.0, 0.5, 0.25], dtype=dtype, requires_grad=True)
    assert auroc(id_scores=ids, ood_scores=np.array([0.5, 0.0])) == 4.5 / 6
    assert threshold_at_tpr(id_scores=ids) == 0.25


def test_float64_scores_stay_apart():
    assert auroc(id_scores=torch.tensor([1.0 + 1e-15], dtype=torch.float64), ood_scores=[1.0]) == 1.0


def test_accuracy():
    logits = torch.tensor([[1.0, 2.0, 0.0], [3.0, 3.0, 1.0], [-torch.inf, 0.0, 1.0]])
    assert accuracy(logits=logits, labels=torch.tensor([1, 0, 1])) == 2 / 3
    assert accuracy(logits=logits.half(), labels=[1, 1, 2]) == 2 / 3


@pytest.mark.parametrize("metric", [fpr_at_tpr, auroc, aupr, fnr95, summary])
@pytest.mark.parametrize("name", ["id_scores", "ood_scores"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([0.0, torch.nan, torch.nan], "holds 2 NaN of 3 values"),
        ([], "is empty"),
        (torch.zeros(2, 3), r"one dimension.*\(2, 3\)"),
        (1.0, r"one dimension.*\(\)"),
    ],
)
def test_bad_scores_are_named(metric, name, bad, message):
    arguments = {"id_scores": [1.0, 0.0], "ood_scores": [1.0, 0.0], name: bad}
    with pytest.raises(ValueError, match=f"{name} .*{message}"):
        metric(**arguments)


def test_the_threshold_checks_its_scores():
    with pytest.raises(ValueError, match="id_scores holds 1 NaN of 1"):
        threshold_at_tpr(id_scores=[torch.nan])


@pytest.mark.parametrize("tpr", [0.0, -0.1, 1.1, 95, torch.nan])
def test_rates_outside_the_unit_interval(tpr):
    with pytest.raises(ValueError, match="tpr must lie in"):
        fpr_at_tpr(id_scores=[1.0], ood_scores=[0.0], tpr=tpr)
    with pytest.raises(ValueError, match="tpr must lie in"):
        threshold_at_tpr(id_scores=[1.0], tpr=tpr)


@pytest.mark.parametrize("metric", [fpr_at_tpr, aupr])
def test_an_unknown_side(metric):
    with pytest.raises(ValueError, match="'id' or 'ood', but it is 'in'"):
        metric(id_scores=[1.0], ood_scores=[0.0], positive="in")


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(3), torch.zeros(3), r"\(3,\) and \(3,\)"),
        (torch.zeros(3, 2), torch.zeros(4), r"\(3, 2\) and \(4,\)"),
        (torch.zeros(0, 2), torch.zeros(0), "logits is empty"),
        (torch.tensor([[torch.nan, 0.0]]), [0], "logits holds 1 NaN of 2"),
    ],
)
def test_bad_logits_and_labels(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        accuracy(logits=logits, labels=labels)


def test_docstring_examples():
    result = doctest.testmod(metrics)
    assert result.attempted >= 8
    assert result.failed == 0


@pytest.mark.parametrize(
    "kinds", [(torch.float32, torch.float32), (torch.float32, torch.float64), (torch.float16,) * 2]
)
def test_the_kind_of_number_does_not_matter(kinds):
    """Ranked as float32 or as float64, ties between the sides included."""
    draws = torch.Generator().manual_seed(3)
    id_scores, ood_scores = ((torch.randn(n, generator=draws) * 8).round() / 8 for n in (300, 200))
    given = {"id_scores": (id_scores + 0.5).to(kinds[0]), "ood_scores": ood_scores.to(kinds[1])}
    before = {name: scores.clone() for name, scores in given.items()}
    assert summary(**given) == summary(**{name: scores.double() for name, scores in given.items()})
    assert all(torch.equal(given[name], before[name]) for name in given)  # sorting in place is ours, not the caller's
