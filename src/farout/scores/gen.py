"""GEN: a generalised entropy that also sees the small probabilities."""

import torch
from torch import Tensor

from farout.errors import ConfigError
from farout.scores.base import Score
from farout.types import Outputs


class GEN(Score):
    """s = −Σ_{k ≤ M} p_k^γ (1 − p_k)^γ over the M = `top` largest softmax probabilities of f(x).

    Higher = more in-distribution; (B, K) -> (B,), at most 0. With K < M all K count, as in the released code.
    γ = 0.1 and M = 100 are the paper's for ImageNet, a tenth of its classes.

    Computed from log p_k, with log(1 − p_1) = LSE_{k > 1} log p_k: a γ this small makes 1 − p_1 = 1e-10 count as
    0.1, where the released float32 softmax has already rounded it to 0.
    """

    paper = "Liu et al., GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, CVPR 2023"

    def __init__(self, gamma: float = 0.1, top: int = 100) -> None:
        super().__init__()
        if gamma <= 0 or top < 1:
            raise ConfigError(f"GEN takes gamma > 0 and top >= 1, got {gamma} and {top}")
        self.gamma, self.top = gamma, top

    def forward(self, out: Outputs) -> Tensor:
        log_p = torch.log_softmax(out.logits, dim=1).sort(dim=1, descending=True).values
        first = torch.logsumexp(log_p[:, 1:], dim=1, keepdim=True)
        log_rest = torch.cat((first, torch.log1p(-log_p[:, 1:].exp())), dim=1)  # log(1 − p_k); p_k <= 1/2 for k > 1
        return -(self.gamma * (log_p + log_rest))[:, : self.top].exp().sum(dim=1)
