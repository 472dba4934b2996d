"""DAL without a search: two worst cases of a linear head that have closed forms."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from farout.errors import ConfigError
from farout.losses import ce_to_uniform
from farout.methods.base import Method, forward_pair
from farout.nets.net import Net
from farout.types import Batch, Terms
from farout.worst_case.vertex import vertex_product


def _linear(net: Net, name: str) -> nn.Linear:
    if not isinstance(net.head, nn.Linear):
        raise ConfigError(f"{name} needs a linear head, this one is a {type(net.head).__name__}; use dal with autograd")
    return net.head


class DALVertex(Method):
    """mean CE(ID) + α mean max { ℓ_OE(h(z + p)) : ‖p‖₁ ≤ ρ }, the exact worst case of a budget for each sample.

    ℓ_OE is convex in z, so the maximum is at one of the 2D vertices ±ρ e_j: no step size, no dual variable. It is the
    W∞ ball in place of the paper's W1 ball: no outlier may spend what another one saves. Ours, not in the paper.

    `rho` is in sum-norm units.
    """

    paper = "ours; the exact form of Wang et al., NeurIPS 2023, for a budget per sample"
    gain: Tensor

    def __init__(self, alpha: float = 0.5, rho: float = 1.0) -> None:
        super().__init__()
        self.alpha, self.rho = alpha, rho
        self.register_buffer("gain", torch.tensor(0.0), persistent=False)

    def loss(self, net: Net, batch: Batch) -> Terms:
        head = _linear(net, "dal-vertex")
        inlier, outlier = forward_pair(net, batch)
        p, value = vertex_product(outlier.features.detach(), head.weight.detach(), head.bias.detach(), self.rho)
        p = p.where(~value.isnan()[:, None], torch.nan)  # out of the product's range: stop the run, do not guess
        risk = ce_to_uniform(head(outlier.features + p)).mean()
        self.gain.copy_((risk - ce_to_uniform(outlier.logits).mean()).detach())
        return {"ce": F.cross_entropy(inlier.logits, batch.y), "oe": self.alpha * risk}

    def stats(self) -> dict[str, Tensor]:
        return {"gain": self.gain}


class DALExact(Method):
    """mean CE(ID) + α (mean ℓ_OE(x_out) + ρ L̃), the exact worst case over the W1 ball on R^D.

    For a linear head sup { E ℓ_OE : W1 ≤ ρ } = mean ℓ_OE + ρ L with L = max_kj |W_kj − mean_k W_kj|, and γ* = L. So
    exact DAL is outlier exposure with a max-norm penalty on the centred head, and its gradient to the features is that
    of plain OE. The subgradient of L touches a single entry; training uses the smooth maximum
    L̃ = (1/t) log Σ exp(t |D_kj|), which is above L by at most log(KD)/t.

    `rho` is in sum-norm units: 0.1 to 1 is much already. `sharpness` is t.
    """

    paper = "ours; the closed form of the objective of Wang et al., NeurIPS 2023"
    constant: Tensor

    def __init__(self, alpha: float = 0.5, rho: float = 0.1, sharpness: float = 50.0) -> None:
        super().__init__()
        self.alpha, self.rho, self.sharpness = alpha, rho, sharpness
        self.register_buffer("constant", torch.tensor(0.0), persistent=False)

    def loss(self, net: Net, batch: Batch) -> Terms:
        weight = _linear(net, "dal-exact").weight
        inlier, outlier = forward_pair(net, batch)
        entries = (weight - weight.mean(dim=0)).abs().flatten()
        self.constant.copy_(entries.detach().amax())
        slope = torch.logsumexp(self.sharpness * entries, dim=0) / self.sharpness
        return {
            "ce": F.cross_entropy(inlier.logits, batch.y),
            "oe": self.alpha * ce_to_uniform(outlier.logits).mean(),
            "ball": self.alpha * self.rho * slope,
        }

    def stats(self) -> dict[str, Tensor]:
        return {"lipschitz": self.constant}
