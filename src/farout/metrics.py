"""How well scores tell ID from OOD, exact under ties; a higher score is more in-distribution, everywhere.

An operating point is a threshold t placed on the score of a positive: with ID positive, `score >= t` is
accepted; with OOD positive, `score <= t` is detected. Tied scores pass together. Scores are ranked on the CPU, as
float32 if they all are and else as float64, so one set of scores gives one number on any device; +-inf are ranked,
NaN is refused. Results are fractions in [0, 1].
"""

import math
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

Scores: TypeAlias = Any  # a tensor, or anything torch.as_tensor takes: a numpy array, a list
Side: TypeAlias = Literal["id", "ood"]


_CHUNK = 2**20  # points whose products exist at once


class _Curve(NamedTuple):
    """How many positives and negatives pass at each distinct score, integers (T,), ending with all of both.

    Of int32 where that holds them: of 20 million points each array counts.
    """

    positives: Tensor
    negatives: Tensor


def fpr_at_tpr(*, id_scores: Scores, ood_scores: Scores, tpr: float = 0.95, positive: Side = "id") -> float:
    """False-positive rate where the true-positive rate is closest to `tpr`; lower is better.

    positive="id": the share of OOD accepted where about `tpr` of ID is (Hendrycks, Energy, DAL).
    positive="ood": the share of ID rejected where about `tpr` of OOD is detected (OpenOOD).
    Of two equally close rates the higher one counts. Closeness is exact: 0.9 and 1.0 are equally far from
    0.95, though their doubles are not.

    id_scores (N,), ood_scores (M,).

    >>> fpr_at_tpr(id_scores=[4.0, 3.0, 2.0, 1.0], ood_scores=[2.5, 0.0], tpr=0.75)
    0.5
    >>> fpr_at_tpr(id_scores=[4.0, 3.0, 2.0, 1.0], ood_scores=[2.5, 0.0], positive="ood")
    0.5
    """
    return _closest_fpr(_curve(id_scores, ood_scores, positive), _rate(tpr))


def threshold_at_tpr(*, id_scores: Scores, tpr: float = 0.95) -> float:
    """The largest threshold t that accepts at least `tpr` of ID: mean(id_scores >= t) >= tpr.

    For deployment, where `tpr` is a promise. It is not the point behind `fpr_at_tpr`, which takes the closest
    rate and so may fall below `tpr`.

    id_scores (N,); accept where score >= t.

    >>> threshold_at_tpr(id_scores=[4.0, 3.0, 2.0, 1.0], tpr=0.7)
    2.0
    """
    scores = _checked("id_scores", id_scores)
    accepted = math.ceil(_rate(tpr) * len(scores))
    return float(scores.kthvalue(len(scores) - accepted + 1).values)


def auroc(*, id_scores: Scores, ood_scores: Scores) -> float:
    """Area under the ROC curve, P(s_ID > s_OOD) + P(s_ID = s_OOD)/2; higher is better, 0.5 is chance.

    The same whichever side is positive. id_scores (N,), ood_scores (M,).

    >>> auroc(id_scores=[3.0, 2.0], ood_scores=[2.0, 1.0])
    0.875
    """
    return _area(_curve(id_scores, ood_scores, "id"))


def aupr(*, id_scores: Scores, ood_scores: Scores, positive: Side = "id") -> float:
    """Average precision, Σ_t (recall_t − recall_{t−1})·precision_t over distinct scores; higher is better.

    Not the trapezoid under the precision-recall curve, which is too high. Chance is the positives' share of
    the samples, so values compare only at one ratio of ID to OOD. id_scores (N,), ood_scores (M,).

    >>> aupr(id_scores=[3.0, 1.0], ood_scores=[2.0, 0.0])
    0.8333333333333333
    >>> aupr(id_scores=[1.0, 1.0, 1.0], ood_scores=[1.0], positive="ood")
    0.25
    """
    return _average_precision(_curve(id_scores, ood_scores, positive))


def fnr95(*, id_scores: Scores, ood_scores: Scores) -> float:
    """The paper's "FNR95" for what it measures: P(s_ID <= t) where t catches 95 % of OOD; lower is better.

    The paper defines it as the false-negative rate of ID when the true-positive rate of ID is 95 %, which is
    5 % for every detector. Its printed numbers are the false-positive rate at 95 % OOD recall:
    fpr_at_tpr(..., tpr=0.95, positive="ood"), and so is this. id_scores (N,), ood_scores (M,).

    >>> fnr95(id_scores=[4.0, 3.0, 2.0, 1.0], ood_scores=[2.5, 0.0])
    0.5
    """
    return fpr_at_tpr(id_scores=id_scores, ood_scores=ood_scores, positive="ood")


def accuracy(*, logits: Scores, labels: Scores) -> float:
    """Share of samples whose largest logit is the label's, the first of tied ones; higher is better.

    logits (B, K), labels (B,).

    >>> accuracy(logits=[[2.0, 1.0], [0.0, 1.0]], labels=[0, 0])
    0.5
    """
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        shapes = f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"logits must be (B, K) and labels (B,), but their shapes are {shapes}")
    if logits.numel() == 0:
        raise ValueError(f"logits is empty, of shape {tuple(logits.shape)}: pass at least one sample and one class")
    _refuse_nan("logits", logits)
    right = logits.argmax(dim=1) == labels.to(logits.device)
    return int(right.sum()) / len(right)


def summary(*, id_scores: Scores, ood_scores: Scores) -> dict[str, float]:
    """Every score metric of one ID set against one OOD set, from a single sort.

    >>> summary(id_scores=[3.0, 2.0], ood_scores=[1.0, 0.0])
    {'fpr95_id': 0.0, 'fpr95_ood': 0.0, 'auroc': 1.0, 'aupr_id': 1.0, 'aupr_ood': 1.0}
    """
    curve, rate = _curve(id_scores, ood_scores, "id"), _rate(0.95)
    fpr95_id, area, aupr_id = _closest_fpr(curve, rate), _area(curve), _average_precision(curve)
    curve = _other_side(curve)  # one curve at a time
    return {
        "fpr95_id": fpr95_id,
        "fpr95_ood": _closest_fpr(curve, rate),
        "auroc": area,
        "aupr_id": aupr_id,
        "aupr_ood": _average_precision(curve),
    }


def _checked(name: str, scores: Scores) -> Tensor:
    """`scores` as a float32 or float64 vector on the CPU, or an error that names the argument."""
    # .cpu() before .double(): some devices (MPS) know no float64
    vector = torch.as_tensor(scores).detach().cpu()
    vector = vector if vector.dtype == torch.float32 else vector.double()
    if vector.ndim != 1:
        raise ValueError(f"{name} must have one dimension, one score a sample, but its shape is {tuple(vector.shape)}")
    if len(vector) == 0:
        raise ValueError(f"{name} is empty: pass at least one score")
    _refuse_nan(name, vector)
    return vector


def _refuse_nan(name: str, values: Tensor) -> None:
    count = int(values.isnan().sum())
    if count:
        raise ValueError(f"{name} holds {count} NaN of {values.numel()} values: NaN cannot be ranked, find its cause")


def _rate(tpr: float) -> Fraction:
    """`tpr` as the decimal number it is written as: 0.95 is 19/20, not the nearest double."""
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], but it is {tpr}")
    return Fraction(repr(float(tpr)))


def _curve(id_scores: Scores, ood_scores: Scores, positive: Side) -> _Curve:
    if positive not in ("id", "ood"):
        raise ValueError(f"positive must be 'id' or 'ood', but it is {positive!r}")
    scores, is_id = _ranked(_checked("id_scores", id_scores), _checked("ood_scores", ood_scores))
    # a point stands where the next score differs; != and not a difference, for inf - inf is NaN
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])
    del scores
    counts = torch.int32 if len(last) < 2**31 else torch.int64
    accepted_ids = _chosen(is_id.cumsum(0, dtype=counts), last)
    accepted = _chosen(torch.arange(1, len(last) + 1, dtype=counts), last)
    curve = _Curve(accepted_ids, accepted.sub_(accepted_ids))
    return curve if positive == "id" else _other_side(curve)


def _chosen(counts: Tensor, mask: Tensor) -> Tensor:
    """counts[mask], through numpy: torch would first list the places, in int64."""
    return torch.from_numpy(counts.numpy()[mask.numpy()])


def _ranked(ids: Tensor, oods: Tensor) -> tuple[Tensor, Tensor]:
    """All scores, highest first, and which of them are ID: (N,), (M,) -> (N + M,) twice.

    Each side is sorted by itself and the ids are then looked up among the oods: numpy's sort of bare numbers, in
    place, is several times faster than one that carries an order along, and needs half of the memory.
    """
    kind = torch.promote_types(ids.dtype, oods.dtype)
    ids, oods = ids.to(kind, copy=True), oods.to(kind, copy=True)
    for side in (ids, oods):
        side.numpy().sort()
    place = torch.searchsorted(oods, ids).add_(torch.arange(len(ids)))
    is_id = torch.zeros(len(ids) + len(oods), dtype=torch.bool)
    is_id[place] = True
    del place
    scores = torch.cat([ids, oods])
    del ids, oods
    scores.numpy().sort(kind="stable")  # merges the two sorted runs
    return scores.flip(0), is_id.flip(0)


def _other_side(curve: _Curve) -> _Curve:
    """The curve of the same scores with the sides swapped: what passed at scores >= t becomes all at <= t."""
    accepted, rejected = (_at_most(counts) for counts in curve)
    return _Curve(positives=rejected, negatives=accepted)


def _at_most(counts: Tensor) -> Tensor:
    """From how many lie at each score or above it to how many lie there or below, lowest score first."""
    below = counts[-1].repeat(len(counts))
    below[1:] -= counts[:-1]
    return below.flip(0)


def _steps(counts: Tensor) -> Tensor:
    """How many samples each point adds."""
    steps = counts.clone()
    steps[1:] -= counts[:-1]
    return steps


def _closest_fpr(curve: _Curve, rate: Fraction) -> float:
    positives, negatives = curve
    target = rate * int(positives[-1])
    above = int(torch.searchsorted(positives, math.ceil(target)))  # the first point with at least that rate
    higher, lower = int(positives[above]), int(positives[above - 1]) if above > 0 else 0
    # a point that passes no positive stands on the score of a negative and does not count
    closest = lower if lower > 0 and target - lower < higher - target else higher
    chosen = int(torch.searchsorted(positives, closest))  # its first point has the lowest FPR
    return int(negatives[chosen]) / int(negatives[-1])


def _area(curve: _Curve) -> float:
    positives, negatives = curve
    # twice the pairs in the right order, a tied pair counted once: an integer, hence exact
    doubled, gained, lost = 0, _steps(positives), _steps(negatives)
    for start in range(0, len(positives), _CHUNK):
        part = slice(start, start + _CHUNK)
        below = 2 * (negatives[-1].long() - negatives[part]) + lost[part]
        doubled += int((gained[part].long() * below).sum())
    return doubled / (2 * int(positives[-1]) * int(negatives[-1]))


def _average_precision(curve: _Curve) -> float:
    positives, negatives = curve
    share = positives.double().div_(positives + negatives).mul_(_steps(positives))
    return float(share.sum()) / int(positives[-1])
