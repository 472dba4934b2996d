"""A linear probe and its gradients in closed form: what autograd would give for a linear head, at half its price.

    min_W mean CE(x W + b, y) + α mean ℓ_OE((z + p) W + b) + (λ/2)‖W‖²

Weights are (D, K) here, the transpose of nn.Linear's: float32 products of a batch with them are up to twice as fast.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from farout.estimators.rows import Rows
from farout.estimators.span_search import span_search
from farout.worst_case import COSTS, DualVariable, SearchRule, closed_form_search


class Probe(NamedTuple):
    """f(x) = x W + b: `weight` (D, K), `bias` (K,). Also its gradient, and the optimiser's moments."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def zeros(cls, features: int, classes: int) -> "Probe":
        return cls(torch.zeros(features, classes), torch.zeros(classes))


class OutlierRisk(Protocol):
    """The gradient of α mean ℓ_OE over the outliers `z`, wherever they are moved to."""

    def __call__(self, probe: Probe, z: Rows) -> Probe: ...


def inlier_gradient(probe: Probe, x: Rows, y: Tensor) -> Probe:
    """Of mean CE: g = (softmax(f) − onehot(y))/B, then xᵀ g and the sum of g."""
    g = torch.softmax(x.times(probe.weight).add_(probe.bias), dim=1)
    g[torch.arange(len(y)), y] -= 1
    g /= len(y)
    return Probe(x.gradient(g), g.sum(dim=0))


def _to_uniform(logits: Tensor, alpha: float) -> Tensor:
    """The gradient of α mean ℓ_OE to the logits, α (softmax(f) − 1/K)/M: (M, K) -> (M, K)."""
    return torch.softmax(logits, dim=1).sub_(1 / logits.shape[1]).mul_(alpha / len(logits))


class PlainRisk:
    """Outlier exposure: the outliers as they are."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def __call__(self, probe: Probe, z: Rows) -> Probe:
        g = _to_uniform(z.times(probe.weight).add_(probe.bias), self.alpha)
        return Probe(z.gradient(g), g.sum(dim=0))


class WorstRisk:
    """DAL: the outliers moved to where the probe is most confident, at the price γ of the dual variable.

    While γ = 0 the search stays in the span of the weights; with a price it is `closed_form_search`. Both start from
    p = 0: a linear probe needs no noise to leave it, and no random number is drawn.
    """

    def __init__(self, alpha: float, rule: SearchRule, num_search: int, ps: float, dual: DualVariable) -> None:
        self.alpha, self.rule, self.num_search, self.ps, self.dual = alpha, rule, num_search, ps, dual

    def __call__(self, probe: Probe, z: Rows) -> Probe:
        return self._free(probe, z) if float(self.dual.gamma) == 0 else self._priced(probe, z)

    def _free(self, probe: Probe, z: Rows) -> Probe:
        centred = probe.weight - probe.weight.mean(dim=1, keepdim=True)
        gram = centred.T @ centred
        logits = z.times(probe.weight).add_(probe.bias)
        span = span_search(logits, gram, steps=self.num_search, step_size=self.ps, unit=self.rule.step == "unit")
        if self._dearest(gram, len(centred)) > self.dual.rho:  # else γ stays 0, whatever p is
            charged = span.charged if self.rule.charge == "before-last" else span.coefficients
            self.dual.update(COSTS[self.rule.cost].value(charged @ centred.T))
        g = _to_uniform(span.logits, self.alpha)
        return Probe(z.gradient(g).addmm_(centred, span.coefficients.T @ g), g.sum(dim=0))

    def _dearest(self, gram: Tensor, features: int) -> float:
        """An upper bound on c(p): a step is at most ps·max_k‖W̃_k‖₂ long, or ps if it has unit length."""
        step = 1.0 if self.rule.step == "unit" else math.sqrt(float(gram.diagonal().amax()))
        of_norm = {"l1": math.sqrt(features), "mean-abs": 1 / math.sqrt(features), "l2": 1.0}
        return self.num_search * self.ps * step * of_norm[self.rule.cost]

    def _priced(self, probe: Probe, z: Rows) -> Probe:
        x = z.dense()
        head = nn.Linear(1, 1, device="meta")  # a shell for the weights: nothing to initialise, nothing drawn
        head.weight = nn.Parameter(probe.weight.T, requires_grad=False)
        head.bias = nn.Parameter(probe.bias, requires_grad=False)
        options = {"steps": self.num_search, "step_size": self.ps, "rule": self.rule}
        worst = closed_form_search(head, x, torch.zeros_like(x), self.dual.gamma, **options)  # type: ignore[arg-type]
        self.dual.update(worst.cost)
        moved = x + worst.p
        g = _to_uniform(moved @ probe.weight + probe.bias, self.alpha)
        return Probe(moved.T @ g, g.sum(dim=0))


Moments = tuple[list[npt.NDArray[np.float32]], list[npt.NDArray[np.float32]], int]
"""First moments, second moments, steps taken: plain arrays, since estimators are pickled."""


class Adam:
    """Adam (Kingma and Ba, 2015) on a probe."""

    def __init__(self, first: Probe, second: Probe, steps: int) -> None:
        self.first, self.second, self.steps = first, second, steps

    @classmethod
    def at_rest(cls, probe: Probe) -> Self:
        return cls(Probe(*map(torch.zeros_like, probe)), Probe(*map(torch.zeros_like, probe)), 0)

    @classmethod
    def resumed(cls, moments: Moments) -> Self:
        first, second = (Probe(*(torch.from_numpy(m.copy()) for m in part)) for part in moments[:2])
        return cls(first, second, moments[2])

    def arrays(self) -> Moments:
        return [m.numpy() for m in self.first], [m.numpy() for m in self.second], self.steps

    def step(self, probe: Probe, gradient: Probe, lr: float) -> None:
        """One step, in place."""
        self.steps += 1
        rate = lr * math.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for value, g, m, v in zip(probe, gradient, self.first, self.second, strict=True):
            m.lerp_(g, 0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            value.addcdiv_(m, v.sqrt().add_(1e-8), value=-rate)


def one_epoch(
    probe: Probe,
    adam: Adam,
    batches: Iterator[tuple[Rows, Tensor, Rows | None]],
    risk: OutlierRisk,
    l2: float,
    lr: Callable[[int], float],
) -> None:
    """Descend on every batch of ID rows, labels and outliers; `lr` maps the optimiser's step to its rate."""
    for x, y, z in batches:
        gradient = inlier_gradient(probe, x, y)
        if z is not None:
            outer = risk(probe, z)
            gradient = Probe(gradient.weight.add_(outer.weight), gradient.bias.add_(outer.bias))
        if l2:
            gradient.weight.add_(probe.weight, alpha=l2)
        adam.step(probe, gradient, lr(adam.steps))


def shuffled(
    x: Rows, y: Tensor, z: Rows | None, size: int, size_out: int | None, generator: torch.Generator
) -> Iterator[tuple[Rows, Tensor, Rows | None]]:
    """The batches of one epoch: every ID row once, in random order, each with `size_out` outliers.

    By default one pass over the outliers, but not more of them in a batch than ID rows.
    """
    batches = torch.randperm(len(x), generator=generator).split(size)
    if z is None:
        yield from ((x.take(index), y[index], None) for index in batches)
        return
    many = size_out or min(size, math.ceil(len(z) / len(batches)))
    passes = math.ceil(many * len(batches) / len(z))
    order = torch.cat([torch.randperm(len(z), generator=generator) for _ in range(passes)])
    for index, index_out in zip(batches, order.split(many), strict=False):
        yield x.take(index), y[index], z.take(index_out)
