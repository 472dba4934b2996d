"""The dual variable γ: the price of moving, raised while the mean move is beyond the radius ρ."""

import torch
from torch import Tensor, nn

from farout import distributed


class DualVariable(nn.Module):
    """γ ← clip(γ − β (ρ − r), 0, γ_max), with r the mean cost over the batch and over all ranks.

    The paper prints min(max(γ, γ_max), 0), which is 0 for every γ; this is the clip it means.
    γ and the last radius r are tensors on the training device, so a step never waits for the host.
    """

    gamma: Tensor
    radius: Tensor

    def __init__(self, rho: float = 10.0, beta: float = 0.01, gamma0: float = 0.01, gamma_max: float = 10.0) -> None:
        super().__init__()
        self.rho, self.beta, self.gamma_max = rho, beta, gamma_max
        self.register_buffer("gamma", torch.tensor(float(gamma0)))
        self.register_buffer("radius", torch.tensor(0.0), persistent=False)

    @torch.no_grad()
    def update(self, cost: Tensor) -> None:
        """One step of the dual descent; `cost` (M,) is what each outlier's move costs."""
        self.radius.copy_(distributed.mean(cost.mean()))
        self.gamma.copy_((self.gamma - self.beta * (self.rho - self.radius)).clamp(0, self.gamma_max))
