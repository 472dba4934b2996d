"""Outlier exposure: be certain on ID data and uniform on auxiliary outliers."""

import torch.nn.functional as F

from farout.losses import ce_to_uniform
from farout.methods.base import Method, forward_pair
from farout.nets.net import Net
from farout.types import Batch, Terms


class OE(Method):
    """mean CE(ID) + α · mean [LSE(f(x_out)) − mean_k f_k(x_out)].

    `alpha` is the paper's α (λ in the OE paper, 0.5 there and in its released code).
    """

    paper = "Hendrycks, Mazeika and Dietterich, Deep Anomaly Detection with Outlier Exposure, ICLR 2019"

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = alpha

    def loss(self, net: Net, batch: Batch) -> Terms:
        inlier, outlier = forward_pair(net, batch)
        return {
            "ce": F.cross_entropy(inlier.logits, batch.y),
            "oe": self.alpha * ce_to_uniform(outlier.logits).mean(),
        }
