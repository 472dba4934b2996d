"""How far a set lies from the auxiliary outliers in a detector's embedding space, and what that means for its risk.

It answers an engineer's question: is my auxiliary set close enough to what I meet?
"""

from collections.abc import Sequence

import torch

from farout import seeds
from farout.certify import linear_head
from farout.data.arrays import Subset
from farout.data.source import ImageSet
from farout.detector import Detector
from farout.scores.embed import embed
from farout.types import Row
from farout.worst_case.certificate import Cost
from farout.worst_case.discrepancy import estimate, risk_bound, sliced

SUBSET_STREAM = 10


def discrepancy(
    detector: Detector,
    auxiliary: ImageSet,
    met: ImageSet,
    rho: Sequence[float] = (0.0,),
    cost: Cost = "l1",
    *,
    size: int = 1000,
    seed: int = 0,
) -> Row:
    """W1 between two sets of embeddings with its interval, its floor and the risk bound of Theorem 3.

    `w1` is estimated from samples of `size`, which in many dimensions lie far apart even where the sets are the same:
    `floor` is the value between two samples of the auxiliary set itself. `least` <= W1 holds exactly. `bounds` has a
    row for each ρ: the risk measured on the met set, and R <= V(ρ) + L·max(W1 − ρ, 0).
    """
    head = linear_head(detector)
    a, b = (embed(detector.net, _few(samples, 10 * size, seed)).outputs.features for samples in (auxiliary, met))
    measured = estimate(a, b, cost, size=size, seed=seed)
    bound = risk_bound(b, a, head.weight.detach(), head.bias.detach(), list(rho), cost, w1=measured.value)
    bounds = zip(rho, bound.worst.tolist(), bound.bound.tolist(), strict=True)
    return {
        "auxiliary": auxiliary.name,
        "met": met.name,
        "cost": cost,
        "w1": measured.value,
        "low": measured.low,
        "high": measured.high,
        "floor": measured.floor,
        "least": measured.least,
        "size": measured.size,
        "sliced": sliced(a, b, seed=seed),
        "risk": bound.real.item(),
        "bounds": [{"rho": r, "worst": worst, "bound": top} for r, worst, top in bounds],
    }


def _few(samples: ImageSet, count: int, seed: int) -> ImageSet:
    """At most `count` samples, drawn at random: embeddings of more would not be looked at."""
    if len(samples) <= count:
        return samples
    return Subset(samples, torch.randperm(len(samples), generator=seeds.generator(seed, SUBSET_STREAM))[:count])
