"""Energy-OE: push the energy of ID data below one margin and that of auxiliary outliers above another."""

import torch.nn.functional as F

from farout.errors import ConfigError
from farout.losses import energy_above, energy_below
from farout.methods.base import Method, forward_pair
from farout.nets.net import Net
from farout.types import Batch, Terms


class EnergyOE(Method):
    """mean CE(ID) + weight · { mean_ID max(0, E − m_in)² + mean_OOD max(0, m_out − E)² },  E = −LSE(f).

    m_in, m_out  CIFAR-10 −23, −5 (the defaults); CIFAR-100 −27, −5; ImageNet −25, −7

    The values are those of the published runs: the released code's own defaults, −25 and −7, are not what its CIFAR
    results were made with, and the paper's text swaps the two names. A classifier starts near E = −10, so the hinges
    outweigh the cross-entropy at first: watch the ID accuracy over the first hundred steps.
    """

    score = "energy"
    paper = "Liu et al., Energy-based Out-of-Distribution Detection, NeurIPS 2020"

    def __init__(self, weight: float = 0.1, m_in: float = -23.0, m_out: float = -5.0) -> None:
        super().__init__()
        self.weight, self.m_in, self.m_out = weight, m_in, m_out

    def prepare(self, net: Net) -> None:
        if self.m_in > self.m_out:
            raise ConfigError(
                f"EnergyOE: m_in={self.m_in} is above m_out={self.m_out}; ID data have the lower energy, swap the two"
            )

    def loss(self, net: Net, batch: Batch) -> Terms:
        inlier, outlier = forward_pair(net, batch)
        hinges = energy_above(inlier.logits, self.m_in).mean() + energy_below(outlier.logits, self.m_out).mean()
        return {"ce": F.cross_entropy(inlier.logits, batch.y), "energy": self.weight * hinges}
