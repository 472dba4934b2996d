"""The supervised contrastive loss: views of one label attract, all others repel."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SELF_PROBABILITY = 1e-8
"""What CSI's released code takes as a view's probability of being its own positive."""


def contrastive(projections: Tensor, labels: Tensor, temperature: float = 0.1, self_pair: bool = False) -> Tensor:
    """How badly each view finds the others of its label, the SupCon loss; NT-Xent where a label is one image.

    ℓ_i = −1/|P(i)| Σ_{p∈P(i)} log [ exp(u_i·u_p/τ) / Σ_{a≠i} exp(u_i·u_a/τ) ],   u = g/‖g‖,
    P(i) = the other views of i's label: the view itself is in neither sum. A view with no positive has loss 0.

    `self_pair` counts the view among its own positives, as CSI's released code does: a constant −log 1e-8 joins
    the sum and the divisor is |P(i)| + 1, so that the gradient shrinks by |P|/(|P| + 1).

    projections (N, P), labels (N,) -> (N,). Lower is better.

    >>> contrastive(torch.eye(3), torch.tensor([0, 0, 1])).exp()
    tensor([2., 2., 1.])
    """
    u = F.normalize(projections, dim=1)
    similarity = u @ u.T / temperature
    itself = torch.eye(len(u), dtype=torch.bool, device=u.device)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    partition = similarity.masked_fill(itself, -math.inf).logsumexp(dim=1)
    count = positive.sum(dim=1)
    total = torch.where(positive, partition[:, None] - similarity, 0.0).sum(dim=1)
    if self_pair:
        return (total - math.log(SELF_PROBABILITY)) / (count + 1)
    return total / count.clamp_min(1)
