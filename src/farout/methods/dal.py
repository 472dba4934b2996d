"""DAL: outlier exposure on the worst case inside a Wasserstein ball around the auxiliary outliers."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from farout.components import choose
from farout.data.source import Source
from farout.losses import ce_to_uniform
from farout.methods.base import Method
from farout.nets.net import Net
from farout.types import Batch, Terms
from farout.worst_case import SEARCHES, DualVariable, rule_of
from farout.worst_case.certificate import efficiency, head_constants


class Found(NamedTuple):
    """A search's outcome: embeddings z, moves p (M, D), the mean loss after them, and the linear head that gave it."""

    z: Tensor
    p: Tensor
    risk: Tensor
    weight: Tensor
    bias: Tensor | None

    @torch.no_grad()
    def measures(self) -> tuple[Tensor, Tensor]:
        """What the search won, and which share of what its l1 length could have won at most."""
        gain = self.risk - ce_to_uniform(F.linear(self.z, self.weight, self.bias)).mean()
        return gain, efficiency(gain, self.p.abs().sum(dim=1).mean(), head_constants(self.weight).l)


class DAL(Method):
    """min_w R_I + α sup { E ℓ_OE : W_c(D', D̂_A) ≤ ρ }, by its dual: inf_γ γρ + mean φ_γ(e(x_A)).

    Each step (Algorithm 1): search p for every outlier's embedding, move γ, then descend with p held fixed.

    alpha       weight of the OOD term
    num_search  steps of the search;  ps: their size
    rho         radius of the ball, in the units of the cost;  beta: step of γ;  gamma0, gamma_max: its start, cap
    rule        "reference" (the released code), "paper" (Algorithm 1), "proximal"; `cost` overrides the rule's
    search      how the rule is walked: "closed-form" for a linear head, "autograd" for any
    warmup      epochs in which search and γ run but the outliers enter the loss unmoved

    The defaults are the released code's for CIFAR-10. There γ falls to 0 at the first update and stays (ρ = 10 in
    mean-abs units is out of the search's reach), so they amount to ten unit steps with no penalty.
    """

    paper = "Wang et al., Learning to Augment Distributions for Out-of-Distribution Detection, NeurIPS 2023"
    epoch: Tensor

    def __init__(
        self,
        alpha: float = 0.5,
        num_search: int = 10,
        ps: float = 1.0,
        rho: float = 10.0,
        beta: float = 0.01,
        gamma0: float = 0.01,
        gamma_max: float = 10.0,
        rule: str = "reference",
        cost: str | None = None,
        search: str = "closed-form",
        warmup: int = 0,
    ) -> None:
        super().__init__()
        self.rule, self.search = rule_of(rule, cost), choose("search", SEARCHES, search)
        self.alpha, self.num_search, self.ps, self.warmup = alpha, num_search, ps, warmup
        self.dual = DualVariable(rho, beta, gamma0, gamma_max)
        self.register_buffer("epoch", torch.tensor(0))
        self.found: Found | None = None

    def begin_epoch(self, net: Net, outliers: Source | None, epoch: int) -> None:
        self.epoch.fill_(epoch)

    def loss(self, net: Net, batch: Batch) -> Terms:
        assert batch.x_out is not None, "this method trains with auxiliary outliers and the batch has none"
        count = len(batch.x)
        features = net.embed(torch.cat([batch.x, batch.x_out]))
        start = features[count:].detach()
        worst = self.search(
            net.head,
            start,
            self.rule.draw(start),
            self.dual.gamma,
            steps=self.num_search,
            step_size=self.ps,
            rule=self.rule,
        )
        self.dual.update(worst.cost)
        p = worst.p * (self.epoch >= self.warmup) if self.warmup else worst.p
        # The head sees inliers and moved outliers at once: two products more than OE would cost more than the search.
        logits = net.head(torch.cat([features[:count], features[count:] + p]))
        risk = ce_to_uniform(logits[count:]).mean()
        self._keep(net.head, start, p, risk.detach())
        return {"ce": F.cross_entropy(logits[:count], batch.y), "oe": self.alpha * risk}

    def _keep(self, head: nn.Module, z: Tensor, p: Tensor, risk: Tensor) -> None:
        """For the log, which asks now and then: to measure the search at every step would cost more than to search."""
        if isinstance(head, nn.Linear):
            bias = None if head.bias is None else head.bias.detach().clone()
            self.found = Found(z, p, risk, head.weight.detach().clone(), bias)

    def stats(self) -> dict[str, Tensor]:
        """γ, the radius, and for a linear head what the search won in the last step (`Found.measures`)."""
        held = {"gamma": self.dual.gamma, "radius": self.dual.radius}
        if self.found is None:
            return held
        gain, share = self.found.measures()
        return {**held, "gain": gain, "efficiency": share}
