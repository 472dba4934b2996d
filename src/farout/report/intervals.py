"""How sure a number is: over seeds by Student's t, within one run by its test samples.

Quick forms, for a page of hundreds of numbers; `farout.statistics` resamples images and seeds together.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farout.statistics import placements

Array = NDArray[Any]
CONFIDENCE = 0.95
DRAWS = 2000


class Estimate(NamedTuple):
    """A value in [low, high]; both are None where there is nothing to tell them from. `how` names the method."""

    value: float
    low: float | None
    high: float | None
    how: str
    seeds: tuple[float, ...] = ()


def over_seeds(values: Sequence[float], low: float = 0.0, high: float = 1.0) -> Estimate:
    """Mean ± t·s/√n, cut to [low, high]: what a new seed of the same kind would average to."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, None, None, "one seed", tuple(values))
    half = _t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    how = f"95 % t-interval over {len(values)} seeds"
    return Estimate(mean, max(mean - half, low), min(mean + half, high), how, tuple(values))


def _t(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def of_fpr(value: float, inliers: Array, outliers: Sequence[Array], tpr: float = 0.95) -> Estimate:
    """The bootstrap interval of FPR at `tpr` (ID positive), averaged over the OOD sets.

    Resampled ID scores enter through one order statistic alone, whose place among the observed scores is Beta
    distributed, and resampled OOD scores through one binomial count: no sample is drawn.
    """
    rng = np.random.default_rng(0)
    ranked, count = np.sort(inliers), len(inliers)
    rank = max(1, math.floor((1 - tpr) * count + 1e-9) + 1)  # the threshold is the rank-th smallest
    places = np.minimum((rng.beta(rank, count - rank + 1, DRAWS) * count).astype(int), count - 1)
    rates = np.zeros(DRAWS)
    for scores in outliers:
        passed = 1 - np.searchsorted(np.sort(scores), ranked[places], side="left") / len(scores)
        rates += rng.binomial(len(scores), np.clip(passed, 0, 1)) / len(scores) / len(outliers)
    low, high = np.quantile(rates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(
        value, min(float(low), value), max(float(high), value), "95 % bootstrap over test samples", (value,)
    )


def of_auroc(value: float, inliers: Array, outliers: Array) -> Estimate:
    """DeLong's interval: the variance of each side's mean share of the other side that it beats."""
    sides = placements(id_scores=inliers, ood_scores=outliers)
    spread = sum(float(np.var(side, ddof=1)) / len(side) if len(side) > 1 else 0.0 for side in sides)
    half = 1.959964 * math.sqrt(spread)
    how = "95 % interval over test samples (DeLong)"
    return Estimate(value, max(value - half, 0.0), min(value + half, 1.0), how, (value,))


def of_share(value: float, count: int) -> Estimate:
    """Wilson's interval of a share among `count` samples."""
    z = 1.959964
    centre = (value + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(value * (1 - value) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    how = f"95 % interval over {count} test samples (Wilson)"
    return Estimate(value, max(centre - half, 0.0), min(centre + half, 1.0), how, (value,))
