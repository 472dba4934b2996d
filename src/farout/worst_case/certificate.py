"""The exact worst-case risk of a linear head over a Wasserstein-1 ball, and what it says of a search.

    V(ρ) = sup{ E_Q ℓ : W1(Q, P) <= ρ, Q on the domain },    ℓ(z) = LSE(Wz + b) − mean_k(Wz + b)_k = LSE(Dz + b̃)

P is the empirical distribution of the features z (N, D); D = W − mean row, b̃ = b − mean b. Radii are in sum-norm
units: ‖p‖₁ adds up the features, it does not average them. A higher risk is a more confident head on outliers.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from farout.losses import ce_to_uniform

Cost: TypeAlias = Literal["l1", "l2"]
Domain: TypeAlias = Literal["reals", "nonnegative", "box"]

_T = TypeVar("_T")

_ORDER = {"l1": 1, "l2": 2}
_PRICES = 33  # prices γ tried in [L₊, L], and in [0, L₊] for a box; 8 times as many moved the mean gain by 0.2 %
_SAMPLE = 512  # rows that choose which prices are worth a pass over all rows
_CHUNK = 2**20  # elements of one temporary: 4 MB in float32


class HeadConstants(NamedTuple):
    """Slopes of ℓ, 0-d: L₊ = max D_kj, L₋ = max −D_kj, L = max(L₊, L₋) for the l1 cost, L₂ = max_k‖D_k‖₂ for l2."""

    l_plus: Tensor
    l_minus: Tensor
    l: Tensor  # noqa: E741 (the paper's letter)
    l2: Tensor


class Bounds(NamedTuple):
    """lower <= V(ρ) <= upper, of the shape of ρ."""

    lower: Tensor
    upper: Tensor


class Certificate(NamedTuple):
    """What a search found against what no search can exceed: moved <= bound, efficiency in [0, 1]; all 0-d."""

    risk: Tensor
    moved: Tensor
    cost: Tensor
    bound: Tensor
    efficiency: Tensor


def head_constants(weight: Tensor) -> HeadConstants:
    """The largest slopes of ℓ for a head `weight` (K, D); differentiable, so L can be a penalty.

    >>> head_constants(torch.tensor([[-3.0], [1.0], [1.0], [1.0]]))[:3]
    (tensor(1.), tensor(3.), tensor(3.))
    """
    centred = weight - weight.mean(dim=0)
    # the columns of D sum to zero, so neither extreme is negative but by rounding
    l_plus, l_minus = centred.amax().clamp(min=0), (-centred).amax().clamp(min=0)
    return HeadConstants(l_plus, l_minus, torch.maximum(l_plus, l_minus), centred.norm(dim=1).amax())


def efficiency(gain: Tensor | float, mean_cost: Tensor | float, constant: Tensor | float) -> Tensor:
    """The share of the possible gain that a search found: gain / (mean_cost·constant), in [0, 1].

    `constant` is L for the l1 cost and L₂ for the l2 cost. A search that lost, or did not move, scores 0.

    >>> efficiency(gain=1.0, mean_cost=2.0, constant=2.0)
    tensor(0.2500)
    """
    possible = torch.as_tensor(mean_cost) * constant
    return torch.where(possible > 0, gain / possible, torch.zeros_like(possible)).clamp(0, 1)


@torch.no_grad()
def certificate(z: Tensor, p: Tensor, weight: Tensor, bias: Tensor | None, cost: Cost = "l1") -> Certificate:
    """Holds a search against theory: mean ℓ(z + p) <= mean ℓ(z) + mean‖p‖·L, for any p.

    z, p (N, D), weight (K, D), bias (K,) or None.
    """
    order = _known("cost", cost, _ORDER)
    z, p, weight = z.double(), p.double(), weight.double()
    constant = head_constants(weight).l if cost == "l1" else head_constants(weight).l2
    shift = None if bias is None else bias.double()
    risk, moved = (ce_to_uniform(linear(x, weight, shift)).mean() for x in (z, z + p))
    length = p.norm(p=order, dim=1).mean()
    return Certificate(risk, moved, length, risk + length * constant, efficiency(moved - risk, length, constant))


@torch.no_grad()
def worst_risk(
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rho: float | Sequence[float] | Tensor,
    cost: Cost = "l1",
    domain: Domain = "reals",
    upper: Tensor | float | None = None,
) -> Bounds:
    """Bounds on the worst-case risk V(ρ) at one radius or several.

    domain="reals":       exact, lower = upper = mean ℓ + ρL (l1) or mean ℓ + ρL₂ (l2).
    domain="nonnegative": ReLU features, z >= 0. Exact where L₋ <= L₊ (l1) or max_k‖(D_k)₊‖₂ = L₂ (l2).
    domain="box":         0 <= z_j <= `upper`, by default the largest z_j observed.

    Where it is not exact, any price γ of a unit of cost gives both ends. Class k would ask for the move that is best
    for its own logit, with the value a_k(z) = max_p D_k(z + p) + b̃_k − γ‖p‖₁, a closed form, and

        max_k a_k(z) <= φ_γ(z) = sup_p ℓ(z + p) − γ‖p‖₁ <= LSE_k a_k(z)            (Jensen, on the right).

    upper: min_γ γρ + mean LSE_k a_k, weak duality, and mean ℓ + ρL. lower: making the move of the best class is a
    transport that really is in the ball; two of them are mixed so as to spend ρ, or the rest goes far out along
    the steepest direction that never ends (slope L₊, or max_k‖(D_k)₊‖₂; a box has none).
    For the l2 cost the same moves are paid in l2, and ‖p‖₁ <= √D‖p‖₂ carries the upper end over: sound, less tight.

    z (N, D), weight (K, D), bias (K,) or None, rho () or (R,) -> float64 of rho's shape.

    >>> z, weight = torch.ones(1, 1), torch.tensor([[-3.0], [1.0], [1.0], [1.0]])
    >>> worst_risk(z, weight, torch.tensor([20.0, 0.0, 0.0, 0.0]), [0.0, 1.0, 2.0], domain="nonnegative").upper
    tensor([12., 15., 16.], dtype=torch.float64)
    """
    radii = _radii(rho).to(z.device)
    problem = _problem(z, weight, bias, cost, domain, upper)
    if problem.ray >= problem.constant:
        exact = _sweep(z, problem, prices=[]).risk + radii * problem.constant
        return Bounds(exact, exact)
    lower, ceiling = _bounds(_cheap_sweep(z, problem, radii.flatten()), problem, radii.flatten())
    return Bounds(torch.minimum(lower, ceiling).view_as(radii), ceiling.view_as(radii))


class _Problem(NamedTuple):
    """The centred head and what the domain allows."""

    head: Tensor  # D (K, D)
    bias: Tensor  # b̃ (K,)
    order: int  # the norm of the cost
    constant: float  # the slope of ℓ, L or L₂
    ray: float  # its slope along the best direction without an end
    prices: Tensor  # the γ to try (G,), on the CPU
    top: Tensor | None  # the box's upper corner (D,)


class _Sweep(NamedTuple):
    """What each price γ gives, averaged over the samples: mean ℓ (), then (G,) each."""

    risk: Tensor
    prices: Tensor
    certified: Tensor  # mean LSE_k a_k >= mean φ_γ
    cost: Tensor  # of the transport
    gain: Tensor  # of the transport


def _problem(
    z: Tensor, weight: Tensor, bias: Tensor | None, cost: Cost, domain: Domain, upper: Tensor | float | None
) -> _Problem:
    order = _known("cost", cost, _ORDER)
    _check_shapes(z, weight, bias)
    # float32 features stay float32, three times as fast; every mean is taken in float64
    dtype = torch.promote_types(z.dtype, torch.float32)
    head = weight.to(dtype) - weight.to(dtype).mean(dim=0)
    shift = head.new_zeros(len(head)) if bias is None else bias.to(dtype) - bias.to(dtype).mean()
    constants = head_constants(head)
    slope = float(constants.l if cost == "l1" else constants.l2)
    endless = float(constants.l_plus if cost == "l1" else head.clamp(min=0).norm(dim=1).amax())
    ray = _known("domain", domain, {"reals": slope, "nonnegative": endless, "box": 0.0})
    return _Problem(head, shift, order, slope, ray, _prices(constants, domain), _top(z, domain, upper))


def _prices(constants: HeadConstants, domain: Domain) -> Tensor:
    """The prices to try: from L₊ on, below which a half-line pays without end; a box goes down to 0."""
    l_plus = float(constants.l_plus)
    prices = torch.linspace(l_plus, float(constants.l), _PRICES, dtype=torch.float64)
    if domain == "box":
        prices = torch.cat([torch.linspace(0, l_plus, _PRICES, dtype=torch.float64), prices])
    distinct: Tensor = prices.unique()
    return distinct


def _cheap_sweep(z: Tensor, problem: _Problem, radii: Tensor) -> _Sweep:
    """All prices on a few rows, then on all rows those that set a bound there: any price is sound, few are tight."""
    few = z[:: math.ceil(len(z) / _SAMPLE)]
    trial = _sweep(few, problem, problem.prices.tolist())
    if len(few) == len(z):
        return trial
    return _sweep(z, problem, problem.prices[_useful(trial, problem, radii).cpu()].tolist())


def _sweep(z: Tensor, problem: _Problem, prices: list[float]) -> _Sweep:
    head, rows = problem.head, max(1, _CHUNK // max(problem.head.shape))
    risk = torch.zeros((), dtype=torch.float64, device=z.device)
    sums = torch.zeros(3, len(prices), dtype=torch.float64, device=z.device)
    for part in z.split(rows):
        chunk = part.to(head.dtype)
        plain = torch.logsumexp(chunk @ head.T + problem.bias, dim=1)
        risk += plain.double().sum()
        for number, price in enumerate(prices):
            sums[:, number] += _move(chunk, plain, problem, price)
    certified, cost, gain = sums / len(z)
    paid = torch.tensor(prices, dtype=torch.float64, device=z.device)
    return _Sweep(risk / len(z), paid, certified, cost, gain)


def _move(z: Tensor, plain: Tensor, problem: _Problem, price: float) -> Tensor:
    """Sums over the rows: LSE_k a_k, then cost and gain of making the move of the best class where it pays."""
    head, top = problem.head, problem.top
    asked = z @ head.clamp(-price, price).T + problem.bias
    if top is not None:
        asked += (head - price).clamp(min=0) @ top
    best = asked.argmax(dim=1)
    target = z * (head >= -price)[best]  # features that pull by more than their price are switched off
    if top is not None:
        target = torch.where((head > price)[best], top, target)
    moved = torch.logsumexp(target @ head.T + problem.bias, dim=1)
    length = (target - z).norm(p=problem.order, dim=1)
    pays = moved - price * length > plain
    certified = torch.logsumexp(asked, dim=1)
    return torch.stack([certified, length * pays, (moved - plain) * pays]).double().sum(dim=1)


def _bounds(sweep: _Sweep, problem: _Problem, radii: Tensor) -> tuple[Tensor, Tensor]:
    gain, _ = _mix(sweep, problem.ray, radii)
    upper = torch.minimum(_dual(sweep, problem, radii).amin(dim=1), sweep.risk + radii * problem.constant)
    return sweep.risk + gain, upper


def _dual(sweep: _Sweep, problem: _Problem, radii: Tensor) -> Tensor:
    """γρ + mean φ_γ from above, (R, G); a ball of radius ρ in l2 lies in one of radius √D·ρ in l1."""
    unit = 1.0 if problem.order == 1 else math.sqrt(problem.head.shape[1])
    return radii[:, None] * unit * sweep.prices + sweep.certified


def _mix(sweep: _Sweep, ray: float, radii: Tensor) -> tuple[Tensor, Tensor]:
    """The best gain (R,) of a mixture that costs ρ, and the numbers (R, 2) of the two transports in it.

    Number 0 is to stand still; the last, without an end, is to go out along the ray. Balls are convex, so a
    mixture of a transport that costs less than ρ and one that costs more lies in the ball.
    """
    cost, gain = (torch.cat([x.new_zeros(1), x]) for x in (sweep.cost, sweep.gain))
    slopes = (gain - gain[:, None]) / (cost - cost[:, None])
    slopes = torch.cat([slopes, torch.full_like(slopes[:, :1], ray)], dim=1)
    left = radii[:, None] - cost
    beyond = torch.cat([left < 0, torch.ones_like(left[:, :1], dtype=torch.bool)], dim=1)
    mixed = gain[:, None] + slopes * left[:, :, None]
    mixed = mixed.where((left >= 0)[:, :, None] & beyond[:, None, :], -torch.inf)
    best = mixed.flatten(1).max(dim=1)
    ends = slopes.shape[1]
    return best.values, torch.stack([best.indices // ends, best.indices % ends], dim=1)


def _useful(sweep: _Sweep, problem: _Problem, radii: Tensor) -> Tensor:
    """The numbers of the prices that set a bound at some radius."""
    transports = _mix(sweep, problem.ray, radii)[1].flatten()
    paid = transports[(transports > 0) & (transports <= len(sweep.prices))] - 1
    numbers: Tensor = torch.cat([paid, _dual(sweep, problem, radii).argmin(dim=1)]).unique()
    return numbers


def _radii(rho: float | Sequence[float] | Tensor) -> Tensor:
    radii = torch.as_tensor(rho).detach().double()
    if radii.ndim > 1:
        raise ValueError(f"rho must be a number or have one dimension, but its shape is {tuple(radii.shape)}")
    if not bool(((radii >= 0) & radii.isfinite()).all()):
        raise ValueError(f"rho must be finite and at least 0, but it is {radii.tolist()}")
    return radii


def _top(z: Tensor, domain: Domain, upper: Tensor | float | None) -> Tensor | None:
    """The upper corner of the box (D,), None without one; refuses features outside the domain."""
    if upper is not None and domain != "box":
        raise ValueError(f"upper is the corner of domain='box', but the domain is {domain!r}: leave upper out")
    if domain == "reals":
        return None
    smallest = float(z.amin())
    if smallest < 0:
        raise ValueError(
            f"domain={domain!r} needs features of at least 0, but the smallest is {smallest:.6g}: "
            "pass features after a ReLU, or use domain='reals'"
        )
    return None if domain == "nonnegative" else _corner(z.amax(dim=0), upper)


def _corner(largest: Tensor, upper: Tensor | float | None) -> Tensor:
    top = largest if upper is None else torch.as_tensor(upper).to(largest).expand_as(largest)
    if not bool(top.isfinite().all()):
        raise ValueError(f"upper must be finite, but it is {upper}: for no limit use domain='nonnegative'")
    outside = (largest - top).argmax()
    if not bool(largest[outside] <= top[outside]):
        raise ValueError(
            f"upper is {float(top[outside]):.6g} for feature {int(outside)}, but one reaches "
            f"{float(largest[outside]):.6g}: raise upper, or leave it out for the largest observed"
        )
    return top.to(torch.promote_types(top.dtype, torch.float32))


def _check_shapes(z: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    fits = z.ndim == 2 and weight.ndim == 2 and z.shape[1] == weight.shape[1]
    if not fits or z.numel() == 0 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = ", ".join(str(tuple(x.shape)) if x is not None else "None" for x in (z, weight, bias))
        raise ValueError(f"z must be (N, D), weight (K, D) and bias (K,) or None, but they are {shapes}")
    if not bool(z.isfinite().all()):
        raise ValueError(f"z holds {int((~z.isfinite()).sum())} values that are not finite: no risk is finite there")


def _known(name: str, value: str, table: dict[str, _T]) -> _T:
    if value not in table:
        raise ValueError(f"unknown {name} {value!r}: it is one of {', '.join(map(repr, table))}")
    return table[value]
