"""The search for worst-case outliers: p that raises ℓ_OE(h(z + p)) − γ·c(p), one p for each outlier embedding z.

    φ_γ(z) = sup_p { ℓ_OE(h(z + p)) − γ c(p) }                                              (Theorem 1 of the paper)

The paper's Algorithm 1 and the released code are two different searches; both, and a third that behaves better,
are values of `SearchRule`. Every search has the signature of `autograd_search`, the oracle, and takes its start
`p0` from outside, so that all of them can be compared exactly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from farout.components import choose
from farout.losses import ce_to_uniform


class Worst(NamedTuple):
    """A search's result: perturbations `p` (M, D), and `cost` (M,), what each charges the dual variable."""

    p: Tensor
    cost: Tensor


class Cost(NamedTuple):
    """A transport cost c(p): its value (M, D) -> (M,), a subgradient, and its proximal map with threshold t."""

    value: Callable[[Tensor], Tensor]
    subgradient: Callable[[Tensor], Tensor]
    prox: Callable[[Tensor, Tensor], Tensor]


def _soft(p: Tensor, threshold: Tensor) -> Tensor:
    return p.sign() * (p.abs() - threshold).clamp_min(0)


def _over_norm(p: Tensor) -> Tensor:
    """p / ‖p‖₂ row by row, and 0 where the row is 0."""
    unit: Tensor = p / p.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
    return unit


COSTS: Mapping[str, Cost] = {
    # c(p) = Σ_j |p_j|, the paper's
    "l1": Cost(lambda p: p.abs().sum(-1), torch.sign, _soft),
    # c(p) = mean_j |p_j|, the released code's: D times smaller than l1, so are γ's effect and ρ's unit
    "mean-abs": Cost(
        lambda p: p.abs().mean(-1),
        lambda p: p.sign().div_(p.shape[-1]),
        lambda p, t: _soft(p, t / p.shape[-1]),
    ),
    # c(p) = ‖p‖₂, the paper's ablation "Other Norms"
    "l2": Cost(
        lambda p: p.norm(dim=-1),
        _over_norm,
        lambda p, t: _over_norm(p) * (p.norm(dim=-1, keepdim=True) - t).clamp_min(0),
    ),
}


def _gradient_step(p: Tensor, ascent: Tensor, gamma: Tensor, step_size: float, cost: Cost) -> Tensor:
    """p + ps·(∇ℓ − γ ∂c): the line of Algorithm 1."""
    return p + step_size * (ascent - gamma * cost.subgradient(p))


def _unit_step(p: Tensor, ascent: Tensor, gamma: Tensor, step_size: float, cost: Cost) -> Tensor:
    """p + ps·g/‖g‖₂ with g = ∇ℓ − γ ∂c; a zero gradient leaves p where it is (the released code divides 0 by 0)."""
    return p + step_size * _over_norm(ascent - gamma * cost.subgradient(p))


def _proximal_step(p: Tensor, ascent: Tensor, gamma: Tensor, step_size: float, cost: Cost) -> Tensor:
    """prox_{ps·γ·c}(p + ps·∇ℓ): the penalty is minimised exactly, so p does not chatter around zero."""
    return cost.prox(p + step_size * ascent, step_size * gamma)


STEPS = {"gradient": _gradient_step, "unit": _unit_step, "proximal": _proximal_step}


@dataclass(frozen=True)
class SearchRule:
    """Which search: how p starts, what moving costs, how a step is taken, and which p the dual variable is charged.

    start    "gaussian" N(0, start_scale²), "uniform" U[0, start_scale), "zero"
    cost     a name of COSTS;  step: a name of STEPS
    charge   "final": the cost of the last p;  "before-last": of the p that the last step started from
    """

    start: str = "gaussian"
    start_scale: float = 1e-3
    cost: str = "l1"
    step: str = "gradient"
    charge: str = "final"

    def draw(self, z: Tensor) -> Tensor:
        """The start p0 (M, D), from torch's global generator."""
        if self.start == "zero":
            return torch.zeros_like(z)
        noise = torch.randn_like(z) if self.start == "gaussian" else torch.rand_like(z)
        return noise * self.start_scale


REFERENCE = SearchRule(start="uniform", start_scale=1e-4, cost="mean-abs", step="unit", charge="before-last")
"""What the released code does."""
PAPER = SearchRule(start="gaussian", start_scale=1e-3, cost="l1", step="gradient", charge="final")
"""Algorithm 1, read literally."""
PROXIMAL = SearchRule(start="zero", start_scale=0.0, cost="l1", step="proximal", charge="final")
"""Raw gradient, soft-threshold for the penalty."""

RULES: Mapping[str, SearchRule] = {"reference": REFERENCE, "paper": PAPER, "proximal": PROXIMAL}


def rule_of(name: str, cost: str | None = None) -> SearchRule:
    """A rule by name, with another cost than its own if one is named."""
    rule = choose("rule", RULES, name)
    if cost is None:
        return rule
    choose("cost", COSTS, cost)
    return replace(rule, cost=cost)


class Search(Protocol):
    """The signature that all searches share."""

    def __call__(
        self,
        head: nn.Module,
        z: Tensor,
        p0: Tensor,
        gamma: Tensor,
        *,
        steps: int,
        step_size: float,
        rule: SearchRule,
    ) -> Worst: ...


def ascend(
    gradient: Callable[[Tensor], Tensor],
    p0: Tensor,
    gamma: Tensor,
    *,
    steps: int,
    step_size: float,
    rule: SearchRule,
) -> Worst:
    """Walk `steps` steps of the rule from p0, with `gradient(p)` the (M, D) gradients of ℓ_OE(h(z + p))."""
    cost, step = COSTS[rule.cost], STEPS[rule.step]
    p = charged = p0
    for _ in range(steps):
        charged, p = p, step(p, gradient(p), gamma, step_size, cost)
    return Worst(p, cost.value(charged if rule.charge == "before-last" else p))


@torch.no_grad()
def autograd_search(
    head: nn.Module, z: Tensor, p0: Tensor, gamma: Tensor, *, steps: int, step_size: float, rule: SearchRule
) -> Worst:
    """The oracle: gradients by autograd, for any head. z, p0 (M, D) -> p (M, D), cost (M,)."""

    def gradient(p: Tensor) -> Tensor:
        with torch.enable_grad():
            moved = p.detach().requires_grad_()
            risk = ce_to_uniform(head(z + moved)).sum()  # a sum: each row's gradient is its own
            return torch.autograd.grad(risk, moved)[0]

    return ascend(gradient, p0, gamma, steps=steps, step_size=step_size, rule=rule)


@torch.no_grad()
def closed_form_search(
    head: nn.Module, z: Tensor, p0: Tensor, gamma: Tensor, *, steps: int, step_size: float, rule: SearchRule
) -> Worst:
    """For a linear head h(z) = W z + b: ∇ℓ_OE = (softmax(h(z + p)) − 1/K) W, two small products, no autograd.

    A softmax sums to one, so that is softmax(h(z + p)) D with the centred head D = W − mean row.
    """
    if not isinstance(head, nn.Linear):
        raise TypeError(
            f"the closed-form search needs a linear head, this one is a {type(head).__name__}; use search='autograd'"
        )
    base, centred = head(z), head.weight - head.weight.mean(dim=0)
    turned = centred.T.contiguous()  # the softmax does not see what D leaves out

    def gradient(p: Tensor) -> Tensor:
        return torch.softmax(torch.addmm(base, p, turned), dim=-1) @ centred

    return ascend(gradient, p0, gamma, steps=steps, step_size=step_size, rule=rule)
