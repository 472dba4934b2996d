"""Scores of the logits alone: nothing to fit. Higher = more in-distribution."""

import torch
from torch import Tensor

from farout.scores.base import Score
from farout.types import Outputs


class MSP(Score):
    """s = log max_k softmax_k(f(x)), the logarithm of the maximum softmax probability.

    The logarithm ranks as the probability does, but does not saturate: with m = max_k f_k it is computed as
    −log(1 + Σ_{k ≠ argmax} exp(f_k − m)), exact where a float32 softmax is already 1.0.
    """

    paper = "Hendrycks and Gimpel, A Baseline for Detecting Misclassified and OOD Examples, ICLR 2017"

    def forward(self, out: Outputs) -> Tensor:
        top, index = out.logits.max(dim=-1, keepdim=True)
        others = (out.logits - top).scatter(-1, index, -torch.inf)
        return -torch.log1p(others.exp().sum(dim=-1))


class MaxLogit(Score):
    """s = max_k f_k(x)."""

    paper = "Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022"

    def forward(self, out: Outputs) -> Tensor:
        return out.logits.amax(dim=-1)


class Energy(Score):
    """s = T · log Σ_k exp(f_k(x) / T), the negative free energy."""

    paper = "Liu et al., Energy-based Out-of-Distribution Detection, NeurIPS 2020"

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, out: Outputs) -> Tensor:
        return self.temperature * torch.logsumexp(out.logits / self.temperature, dim=-1)
