"""How far the outliers that are met lie from those that were trained on: Wasserstein-1 between two sets of embeddings.

    W1(P_a, P_b) = inf{ E c(x, y) : x ~ P_a, y ~ P_b, jointly },    c(x, y) = ‖x − y‖₁ (the paper's) or ‖x − y‖₂

P_a and P_b put the same weight on each row of a (N, D) and b (M, D). Distances are in sum-norm units, as the radii of
`certificate`: ‖·‖₁ adds up the features, it does not average them. 0 is "the same set", and there is no upper limit.

    wasserstein   exact, up to LARGEST rows a set
    estimate      larger sets: from above by subsamples, biased upwards, and from below, feature by feature
    sliced        larger sets, at once: a mean over one-dimensional projections, a smaller and another distance
    risk_bound    what the distance says of the risk: Theorem 3 of the paper, both sides measured
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import stdtrit
from torch import Tensor
from torch.nn.functional import linear

from farout.errors import FaroutError, MissingExtraError
from farout.losses import ce_to_uniform
from farout.seeds import generator
from farout.worst_case.certificate import Cost, head_constants, worst_risk

LARGEST = 5000
"""Rows a set that `wasserstein` takes; at that size POT needs 1 GB and, for 128 features, a minute on one core."""

_ORDER = {"l1": 1.0, "l2": 2.0}
_PIVOTS = 10**8  # of POT's network simplex; its default of 10^5 ends short of the optimum at 2000 rows
_CHUNK = 2**22  # elements of one temporary of `sliced`: 32 MB in float64


class Estimate(NamedTuple):
    """W1 between large sets, from both sides: least <= W1(P_a, P_b) always, W1(P_a, P_b) <= value in the mean.

    value       mean distance between subsamples of `size` rows; [low, high] is its t-interval over the draws
    floor       mean distance between disjoint subsamples of a alone: what no discrepancy looks like at this size
    least       ‖(W1 of feature 1, …, W1 of feature D)‖ over all rows, exact; no draw is in it

    The interval is for the mean at this size, not for W1: W1 is convex, so subsamples lie further apart than the sets
    they come from, in high dimension by far. If `value` is not well above `floor`, the sets cannot be told apart at
    this size: take a larger one, or go by `least`.
    """

    value: float
    low: float
    high: float
    floor: float
    least: float
    size: int
    draws: int
    confidence: float


class Bound(NamedTuple):
    """Both sides of Theorem 3, real <= bound = worst + transport, float64: `real` is 0-d, the rest of ρ's shape."""

    real: Tensor
    worst: Tensor
    transport: Tensor
    bound: Tensor


@torch.no_grad()
def wasserstein(a: Tensor, b: Tensor, cost: Cost = "l1") -> float:
    """The exact W1 between a (N, D) and b (M, D), N and M at most LARGEST; lower is closer.

    By POT's network simplex; without POT, sets of equal size are solved as an assignment, which is exact as well.

    >>> wasserstein(torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.tensor([[5.0, 6.0], [3.0, 0.0]]))
    2.0
    """
    order = _order(cost)
    _check_sets(a, b)
    if max(len(a), len(b)) > LARGEST:
        raise ValueError(
            f"the exact distance is for at most {LARGEST} rows a set, but a has {len(a)} and b {len(b)}: "
            "use estimate or sliced, or pass fewer rows"
        )
    transport = _pot()
    if transport is None and len(a) != len(b):
        raise MissingExtraError("POT", "transport", f"the distance between sets of {len(a)} and {len(b)} rows")
    # without a product, |x|² + |y|² − 2xy, whose rounding leaves equal points some 1e-7 apart; no (N, M, D) is made
    costs = torch.cdist(a.double(), b.double(), p=order, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()
    if transport is None:
        return float(costs[linear_sum_assignment(costs)].mean())
    return _simplex(transport, costs)


@torch.no_grad()
def estimate(
    a: Tensor,
    b: Tensor,
    cost: Cost = "l1",
    size: int = 1000,
    draws: int = 10,
    seed: int = 0,
    confidence: float = 0.95,
) -> Estimate:
    """W1 between a (N, D) and b (M, D) from `draws` subsamples without replacement; read `Estimate` on its bias.

    At most half of the smaller set is drawn at a time, so that a can be held against itself at the same size;
    `size` in the result says how many rows it was. Two exact distances a draw: N and M hardly matter.
    """
    order = _order(cost)
    _check_sets(a, b)
    _check_draws(size, draws, confidence)
    rows = min(size, len(a) // 2, len(b) // 2)
    if rows < 1:
        raise ValueError(f"estimate needs at least 2 rows a set, but a has {len(a)} and b {len(b)}")
    values = torch.empty(2, draws, dtype=torch.float64)
    for draw in range(draws):
        stream = generator(seed, draw)
        drawn = torch.randperm(len(a), generator=stream).to(a.device)
        first, rest = a[drawn[:rows]], a[drawn[rows : 2 * rows]]
        other = b[torch.randperm(len(b), generator=stream)[:rows].to(b.device)]
        values[:, draw] = torch.tensor([wasserstein(first, other, cost), wasserstein(first, rest, cost)])
    value, floor = values.mean(dim=1).tolist()
    half = float(stdtrit(draws - 1, (1 + confidence) / 2)) * float(values[0].std()) / draws**0.5
    least = float(_on_lines(a, b).norm(p=order))
    return Estimate(value, value - half, value + half, floor, least, rows, draws, confidence)


@torch.no_grad()
def sliced(a: Tensor, b: Tensor, projections: int = 256, seed: int = 0) -> float:
    """The mean of W1(a·θ, b·θ) over random unit vectors θ, for sets of any size; lower is closer.

    At most W1 with the l2 cost, and about √(2/πD) of it for a plain shift: hold it against other sliced distances
    only. Each projection is exact, for sets of equal size or not.
    """
    _check_sets(a, b)
    if projections < 1:
        raise ValueError(f"projections must be at least 1, but it is {projections}")
    theta = torch.randn(projections, a.shape[1], generator=generator(seed), dtype=torch.float64)
    return float(_on_lines(a, b, torch.nn.functional.normalize(theta)).mean())


@torch.no_grad()
def risk_bound(
    z_out: Tensor,
    z_aux: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rho: float | Sequence[float] | Tensor,
    cost: Cost = "l1",
    w1: float | None = None,
) -> Bound:
    """The risk on outliers that were not trained on against what Theorem 3 promises, in the space of embeddings:

        R_O = mean ℓ(z_out) <= V(ρ) + L·max(W1(P_out, P_aux) − ρ, 0),    ℓ = `losses.ce_to_uniform` of the head

    with V(ρ) the worst-case risk around z_aux and L the slope of ℓ (L₂ for the l2 cost), at one radius or several. A
    linear head on R^D has V(ρ) = R_A + ρL, hence the bound is R_A + L·max(W1, ρ): the same at every ρ up to W1.

    z_out (N, D), z_aux (M, D), weight (K, D), bias (K,) or None. `w1` is their distance, by default the exact one;
    for sets too large, `estimate(...).high` errs on the safe side, `sliced` does not.
    """
    z_out, z_aux, weight = z_out.double(), z_aux.double(), weight.double()
    shift = None if bias is None else bias.double()
    worst = worst_risk(z_aux, weight, shift, rho, cost=cost).upper
    distance = wasserstein(z_out, z_aux, cost) if w1 is None else w1
    if not 0 <= distance < float("inf"):
        raise ValueError(f"w1 must be finite and at least 0, but it is {w1}")
    constants = head_constants(weight)
    slope = constants.l if cost == "l1" else constants.l2
    radii = torch.as_tensor(rho, dtype=torch.float64, device=worst.device)
    transport = slope * (distance - radii).clamp(min=0)
    return Bound(ce_to_uniform(linear(z_out, weight, shift)).mean(), worst, transport, worst + transport)


def _pot() -> Any | None:
    """POT's module, None without it; imported late, for it takes seconds."""
    try:
        import ot
    except ImportError:
        return None
    return ot


def _simplex(transport: Any, costs: Any) -> float:
    value, log = transport.emd2([], [], costs, numItermax=_PIVOTS, log=True)
    if log["warning"]:
        raise FaroutError(f"POT found no exact distance between sets of {costs.shape} rows: {log['warning']}")
    return float(value)


def _on_lines(a: Tensor, b: Tensor, directions: Tensor | None = None) -> Tensor:
    """W1 between the projections on each row of `directions` (P, D) -> (P,); None: on each feature -> (D,)."""
    at_a, at_b, width = _quantile_steps(len(a), len(b), a.device)
    lines = torch.arange(a.shape[1] if directions is None else len(directions))
    distances = []
    for part in lines.split(max(1, _CHUNK // (len(a) + len(b)))):
        if directions is None:
            on_a, on_b = a.T[part].double(), b.T[part].double()
        else:
            onto = directions[part].to(a.device)
            on_a, on_b = onto @ a.T.double(), onto @ b.T.double()
        # the area between the two quantile functions
        distances.append((on_a.sort().values[:, at_a] - on_b.sort().values[:, at_b]).abs() @ width)
    return torch.cat(distances)


def _quantile_steps(n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Where two sorted samples of n and m are constant together: (S,) indices into each, and the steps' widths.

    In integers, levels of i/n and j/m being i·m and j·n of n·m: the widths add up to 1 and no index is off by one.
    """
    ends = torch.cat([torch.arange(1, n + 1) * m, torch.arange(1, m + 1) * n]).unique()
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    width = (ends - starts).double() / (n * m)
    return (starts // m).to(device), (starts // n).to(device), width.to(device)


def _order(cost: str) -> float:
    if cost not in _ORDER:
        raise ValueError(f"unknown cost {cost!r}: it is one of {', '.join(map(repr, _ORDER))}")
    return _ORDER[cost]


def _check_sets(a: Tensor, b: Tensor) -> None:
    fits = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[1]
    if not fits or a.numel() == 0 or b.numel() == 0:
        raise ValueError(
            f"the sets must be (N, D) and (M, D), not empty, but they are {tuple(a.shape)}, {tuple(b.shape)}"
        )
    for name, x in (("a", a), ("b", b)):
        if not bool(x.isfinite().all()):
            raise ValueError(f"set {name} holds {int((~x.isfinite()).sum())} values that are not finite")


def _check_draws(size: int, draws: int, confidence: float) -> None:
    if not 1 <= size <= LARGEST:
        raise ValueError(f"size must be between 1 and {LARGEST}, but it is {size}")
    if draws < 2:
        raise ValueError(f"draws must be at least 2, an interval needs a spread, but it is {draws}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, but it is {confidence}")
