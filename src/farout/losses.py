"""Per-sample losses; every function returns one value a sample, so that the caller chooses the mean."""

import torch
from torch import Tensor


def ce_to_uniform(logits: Tensor) -> Tensor:
    """Cross-entropy from the uniform distribution to the prediction, the outlier-exposure loss.

    ℓ_OE(x) = LSE(f(x)) − mean_k f_k(x) = KL(uniform ‖ softmax f(x)) + log K, hence at least log K.

    logits (M, K) -> (M,). Lower is less confident.

    >>> ce_to_uniform(torch.zeros(1, 4)).exp()
    tensor([4.])
    """
    return torch.logsumexp(logits, dim=-1) - logits.mean(dim=-1)


def energy(logits: Tensor) -> Tensor:
    """The free energy E(x) = −LSE(f(x)): logits (B, K) -> (B,). Lower is more in-distribution.

    >>> energy(torch.zeros(1, 4)).neg().exp()
    tensor([4.])
    """
    return -torch.logsumexp(logits, dim=-1)


def energy_above(logits: Tensor, margin: float) -> Tensor:
    """max(0, E(x) − margin)², what ID data pay for lying above m_in: logits (B, K) -> (B,)."""
    return torch.relu(energy(logits) - margin).square()


def energy_below(logits: Tensor, margin: float) -> Tensor:
    """max(0, margin − E(x))², what outliers pay for lying below m_out: logits (M, K) -> (M,)."""
    return torch.relu(margin - energy(logits)).square()
