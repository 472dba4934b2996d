"""DAL with the ball around the images themselves, which the paper discusses and rejects; for comparison."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from farout.losses import ce_to_uniform
from farout.methods.base import Method, forward_pair
from farout.nets.net import Net, pixels
from farout.types import Batch, Terms
from farout.worst_case import DualVariable, autograd_search, rule_of


class _FromPixels(nn.Module):
    """Flat pixels (M, C·H·W) to logits: the whole network as the head of a search, its pixels kept in [0, 1]."""

    def __init__(self, net: Net, shape: torch.Size) -> None:
        super().__init__()
        self.net, self.shape = net, shape

    def forward(self, flat: Tensor) -> Tensor:
        logits: Tensor = self.net(flat.view(-1, *self.shape).clamp(0, 1)).logits
        return logits


class DALInput(Method):
    """mean CE(ID) + α mean ℓ_OE(f(x_out + p)), p from the same search as DAL's, over pixels in [0, 1].

    Every step of the search is a forward and a backward of the whole network (in evaluation mode, so that moved images
    do not enter the batch statistics twice): about 2 · num_search times the cost of OE, against a few percent for DAL.
    """

    paper = "discussed in Wang et al., NeurIPS 2023, Section 4.2"

    def __init__(
        self,
        alpha: float = 0.5,
        num_search: int = 3,
        ps: float = 0.1,
        rho: float = 10.0,
        beta: float = 0.01,
        gamma0: float = 0.0,
        gamma_max: float = 10.0,
        rule: str = "reference",
        cost: str | None = None,
    ) -> None:
        super().__init__()
        self.rule, self.alpha, self.num_search, self.ps = rule_of(rule, cost), alpha, num_search, ps
        self.dual = DualVariable(rho, beta, gamma0, gamma_max)

    def loss(self, net: Net, batch: Batch) -> Terms:
        assert batch.x_out is not None
        x_out = pixels(batch.x_out)
        flat, training = x_out.flatten(1), net.training
        net.eval()
        worst = autograd_search(
            _FromPixels(net, x_out.shape[1:]),
            flat,
            self.rule.draw(flat),
            self.dual.gamma,
            steps=self.num_search,
            step_size=self.ps,
            rule=self.rule,
        )
        net.train(training)
        self.dual.update(worst.cost)
        moved = (flat + worst.p).view_as(x_out).clamp(0, 1)
        inlier, outlier = forward_pair(net, Batch(pixels(batch.x), batch.y, moved))
        return {
            "ce": F.cross_entropy(inlier.logits, batch.y),
            "oe": self.alpha * ce_to_uniform(outlier.logits).mean(),
        }

    def stats(self) -> dict[str, Tensor]:
        return {"gamma": self.dual.gamma, "radius": self.dual.radius}
