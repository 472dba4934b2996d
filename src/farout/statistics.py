"""How sure a number is: intervals over images and seeds, paired tests between methods, a verdict in words.

Two kinds of chance stand behind a result. Other test images would have been drawn: the bootstrap, and DeLong's
formula for AUROC, say how much that moves a number for the networks at hand. Other seeds would have trained other
networks: only several seeds show that. Values are fractions; a higher score is more in-distribution.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from farout import seeds

Array: TypeAlias = npt.NDArray[Any]
METRICS = ("fpr95_id", "fpr95_ood", "auroc")
RESAMPLES = 1000
ID_STREAM, OOD_STREAM = 10, 11
ROWS = 25  # resamples held at a time; one number for all, so that the images drawn do not depend on the scores


class Interval(NamedTuple):
    """A value and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """First minus second: its 95 % interval and two-sided p.

    `p` asks whether the methods differ: seeds and images are chance (images alone where there is one seed).
    `p_images` asks whether these very networks differ: images alone are chance.
    """

    value: float
    low: float
    high: float
    p: float
    p_images: float
    seeds: int


def replicates(
    *, id_scores: Any, ood_scores: Any, resamples: int = RESAMPLES, stream: int = 0, ood_stream: int = 0
) -> dict[str, Array]:
    """Each metric on `resamples` bootstrap samples of ID and OOD scores: {metric: (R,)}.

    The images drawn depend on counts and streams alone. So with the same stream two methods meet the same images in
    each resample, two OOD sets the same ID images, and differences and averages of replicates are paired.
    """
    ids, oods = _vector("id_scores", id_scores), _vector("ood_scores", ood_scores)
    levels, place = np.unique(np.concatenate([ids, oods]), return_inverse=True)
    id_place, ood_place = place[: len(ids)], place[len(ids) :]
    id_rng = np.random.default_rng(seeds.mix(stream, ID_STREAM))
    ood_rng = np.random.default_rng(seeds.mix(stream, OOD_STREAM, ood_stream))
    parts = []
    for start in range(0, resamples, ROWS):
        count = min(ROWS, resamples - start)
        parts.append(
            metrics_of_counts(
                _resampled(id_place, len(levels), count, id_rng), _resampled(ood_place, len(levels), count, ood_rng)
            )
        )
    return {metric: np.concatenate([part[metric] for part in parts]) for metric in METRICS}


def _vector(name: str, scores: Any) -> Array:
    vector = np.asarray(scores, dtype=np.float64)
    if vector.ndim != 1 or len(vector) == 0 or np.isnan(vector).any():
        raise ValueError(f"{name} must be one or more scores, one a sample, none NaN; its shape is {vector.shape}")
    return vector


def _resampled(place: Array, levels: int, rows: int, rng: np.random.Generator) -> Array:
    """How often each level occurs in `rows` samples with replacement: (rows, levels)."""
    drawn = place[rng.integers(0, len(place), size=(rows, len(place)))]
    drawn += np.arange(rows)[:, None] * levels
    return np.bincount(drawn.ravel(), minlength=rows * levels).reshape(rows, levels)


def metrics_of_counts(id_counts: Array, ood_counts: Array) -> dict[str, Array]:
    """The metrics of `farout.metrics`, for counts of ID and OOD samples at ascending scores, each (R, T)."""
    below = ood_counts.cumsum(axis=1)
    doubled = (id_counts * (2 * below - ood_counts)).sum(axis=1)  # a tied pair counts half
    pairs = id_counts.sum(axis=1) * below[:, -1]
    return {
        "fpr95_id": _closest_fpr(id_counts[:, ::-1].cumsum(axis=1), ood_counts[:, ::-1].cumsum(axis=1)),
        "fpr95_ood": _closest_fpr(below, id_counts.cumsum(axis=1)),
        "auroc": doubled / (2 * pairs),
    }


def _closest_fpr(positives: Array, negatives: Array) -> Array:
    """FPR where the TPR is closest to 95 %, the higher of two; of its points the one with the lowest FPR."""
    rows, total = np.arange(len(positives)), positives[:, -1]
    above = (20 * positives >= 19 * total[:, None]).argmax(axis=1)
    higher = positives[rows, above]
    lower = np.where(above > 0, positives[rows, np.maximum(above - 1, 0)], 0)
    nearer_below = (lower > 0) & (19 * total - 20 * lower < 20 * higher - 19 * total)
    closest = np.where(nearer_below, lower, higher)
    chosen = (positives >= closest[:, None]).argmax(axis=1)
    share: Array = negatives[rows, chosen] / negatives[:, -1]
    return share


def interval(value: float, draws: Array) -> Interval:
    """The bootstrap's 95 % percentile interval: 2.5 % of the replicates (R,) lie on either side."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def seeds_interval(values: Sequence[float], draws: Array) -> Interval:
    """The interval of the mean over seeds, for other seeds and other images; draws (S, R), one row a seed.

    se² = sd² / S over seeds + variance of the mean's replicates over images, with Satterthwaite's degrees of
    freedom, and never narrower than the t interval over seeds alone: without that, two or three seeds that happen to
    agree would pass for many (coverage 87 % instead of 95 % in the worst case simulated, 94 % with it).
    One seed: images alone, the percentile interval.
    """
    centre = float(np.mean(values))
    if len(values) == 1:
        return interval(centre, draws[0])
    reach = max(float(stats.t.ppf(0.975, freedom)) * error for error, freedom in _errors(values, draws))
    return Interval(centre, centre - reach, centre + reach)


def _errors(values: Sequence[float], draws: Array) -> list[tuple[float, float]]:
    """Standard error of the mean and degrees of freedom: over seeds and images, and over seeds alone."""
    between = float(np.var(values, ddof=1)) / len(values)
    total = between + float(np.var(draws.mean(axis=0), ddof=1))
    freedom = (len(values) - 1) * (total / between) ** 2 if between else math.inf
    return [(math.sqrt(total), freedom), (math.sqrt(between), len(values) - 1)]


def difference(
    first: Sequence[float],
    second: Sequence[float],
    first_draws: Array,
    second_draws: Array,
    p_images: float | None = None,
) -> Difference:
    """First minus second, paired by seed and image: values (S,) and their replicates (S, R) from the same streams.

    `p_images` replaces the bootstrap's p over images, e.g. by DeLong's.
    """
    if len(first) != len(second) or first_draws.shape != second_draws.shape:
        raise ValueError(f"paired tests need the same seeds and resamples, got {len(first)} and {len(second)} seeds")
    values = [a - b for a, b in zip(first, second, strict=True)]
    draws = first_draws - second_draws
    value, low, high = seeds_interval(values, draws)
    over_images = _bootstrap_p(draws.mean(axis=0)) if p_images is None else p_images
    return Difference(value, low, high, _p(values, draws, over_images), over_images, len(values))


def _bootstrap_p(draws: Array) -> float:
    """Twice the smaller share of replicates on one side of zero; never 0, for R resamples cannot show that."""
    below, above = int((draws <= 0).sum()), int((draws >= 0).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(draws) + 1))


def _p(values: Sequence[float], draws: Array, over_images: float) -> float:
    """The larger p of the two standard errors, as the interval takes the wider."""
    if len(values) == 1:
        return over_images
    centre = abs(float(np.mean(values)))
    if centre == 0:
        return 1.0
    return max(
        float(2 * stats.t.sf(centre / error, freedom)) if error else 0.0 for error, freedom in _errors(values, draws)
    )


def placements(*, id_scores: Any, ood_scores: Any) -> tuple[Array, Array]:
    """DeLong's components: for each ID score the share of OOD below it, for each OOD score the share of ID above it.

    A tie counts half. Both have the AUROC as their mean. By ranks: O(n log n).
    """
    ids, oods = _vector("id_scores", id_scores), _vector("ood_scores", ood_scores)
    together = stats.rankdata(np.concatenate([ids, oods]))
    of_id = (together[: len(ids)] - stats.rankdata(ids)) / len(oods)
    of_ood = 1 - (together[len(ids) :] - stats.rankdata(oods)) / len(ids)
    return of_id, of_ood


def delong(first: Sequence[tuple[Any, Any]], second: Sequence[tuple[Any, Any]]) -> Difference:
    """AUROC of first minus second on the same images, (id_scores, ood_scores) for each seed; images are chance.

    var = var(mean_s V_ID) / n + var(mean_s V_OOD) / m, V the differences of the placements.
    """
    sides = [
        np.mean([np.subtract(a, b) for a, b in zip(_sides(first, side), _sides(second, side), strict=True)], axis=0)
        for side in (0, 1)
    ]
    value = float(sides[0].mean())
    error = math.sqrt(sum(float(np.var(side, ddof=1)) / len(side) if len(side) > 1 else 0.0 for side in sides))
    p = float(2 * stats.norm.sf(abs(value) / error)) if error else float(value == 0)
    reach = float(stats.norm.ppf(0.975)) * error
    return Difference(value, value - reach, value + reach, p, p, len(first))


def _sides(scored: Sequence[tuple[Any, Any]], side: int) -> list[Array]:
    return [placements(id_scores=ids, ood_scores=oods)[side] for ids, oods in scored]


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction of several p values: what each would have to be for the family to err 5 % of the time."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, number in enumerate(np.argsort(ps, kind="stable")):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[number]))
        adjusted[number] = largest
    return adjusted


TITLES = {"fpr95_id": "FPR95", "fpr95_ood": "FPR95 (OOD+)", "auroc": "AUROC"}
FEW_SEEDS = 3


def verdict(first: str, second: str, metric: str, found: Difference) -> str:
    """One sentence, in points: "dal lowers FPR95 against oe by 1.4 [0.3, 2.6], p=0.01 (5 seeds)"."""
    low, high = 100 * found.low, 100 * found.high
    title, value = TITLES[metric], 100 * found.value
    if low <= 0 <= high:
        told = f"{first} and {second} are not told apart in {title}: {value:+.1f} [{low:.1f}, {high:.1f}]"
    elif value < 0:
        told = f"{first} lowers {title} against {second} by {-value:.1f} [{-high:.1f}, {-low:.1f}]"
    else:
        told = f"{first} raises {title} against {second} by {value:.1f} [{low:.1f}, {high:.1f}]"
    return f"{told}, {_p_words(found.p)} ({_seed_words(found.seeds)})"


def _p_words(p: float) -> str:
    return "p<0.001" if p < 0.001 else f"p={p:.3f}" if p < 0.0095 else f"p={p:.2f}"


def _seed_words(count: int) -> str:
    if count == 1:
        return "one seed: these two networks on other images, nothing about other trainings"
    return f"{count} seeds" + ("" if count >= FEW_SEEDS else ": too few to judge the training noise")
