"""ViM: the energy less a virtual logit, the part of the feature that training data does not use."""

from typing import Self

import torch
from torch import Tensor

from farout.errors import ConfigError
from farout.nets.net import Net
from farout.scores.base import Embedded, Score
from farout.types import Outputs

ROWS = 8192  # training features taken to float64 at once


class ViM(Score):
    """s = LSE(f(x)) − α‖Rᵀ(e(x) − u)‖₂, the log-odds against a virtual class whose logit is the scaled residual.

    u = −W⁺b is where the head says nothing. R spans what is orthogonal to the `dim` principal directions of
    e(x) − u over ID training data (uncentred). α makes the virtual logit as large as the largest one there:
    α = Σ_i max_k f_k(x_i) / Σ_i ‖Rᵀ(e(x_i) − u)‖₂. Higher = more in-distribution; (B, D), (B, K) -> (B,), float64.

    Cross-entropy fixes logits up to a shift only: where max_k f_k is negative on average, so is α, and ViM is no use.

    The paper's score is the virtual class's probability, which ranks as −s does. dim = None follows the released
    code, 1000 for D >= 2048, else 512; below D = 768, where it has no rule, half of D (as OpenOOD for ResNet-18).
    """

    needs_fit = True
    paper = "Wang et al., ViM: Out-Of-Distribution with Virtual-logit Matching, CVPR 2022"
    origin: Tensor  # (D,) u
    residual: Tensor  # (D, D − dim) R
    alpha: Tensor  # ()

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        for name in ("origin", "residual", "alpha"):
            self.register_buffer(name, torch.empty(0))

    @torch.no_grad()
    def fit(self, net: Net, train: Embedded) -> Self:
        features, logits = train.outputs
        dim = principal_dim(features.shape[1]) if self.dim is None else self.dim
        if not 0 < dim < features.shape[1]:
            raise ConfigError(f"ViM takes dim between 1 and D − 1 = {features.shape[1] - 1}, got {dim}")
        self.origin = _origin(net)
        _, directions = torch.linalg.eigh(_second_moment(features, self.origin))  # eigenvalues rise
        self.residual = directions[:, : features.shape[1] - dim].contiguous()
        self.alpha = logits.double().amax(dim=1).mean() / self._mean_residual(features, dim)
        return self

    def forward(self, out: Outputs) -> Tensor:
        self.require_fit()
        virtual = self.alpha * self._norm(out.features)
        return torch.logsumexp(out.logits.double(), dim=1) - virtual

    def _norm(self, features: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm((features.double() - self.origin) @ self.residual, dim=1)
        return norm

    def _mean_residual(self, features: Tensor, dim: int) -> Tensor:
        """The mean residual norm of training data, refused where it is mere rounding and α would be noise."""
        mean = torch.cat([self._norm(z) for z in features.split(ROWS)]).mean()
        size = torch.linalg.vector_norm(features, dim=1).double().mean()
        if not mean > 1e-6 * size:
            raise ConfigError(
                f"the training features lie in {dim} dimensions, so ViM has no residual; set a smaller dim"
            )
        return mean


def principal_dim(features: int) -> int:
    """How many principal directions to take of D features.

    >>> principal_dim(2048), principal_dim(768), principal_dim(128)
    (1000, 512, 64)
    """
    if features >= 2048:
        return 1000
    return 512 if features >= 768 else features // 2


def _origin(net: Net) -> Tensor:
    """u = −W⁺b (D,): the least-norm feature of the least logits; 0 for a head without bias."""
    weight, bias = net.head.weight, net.head.bias
    assert isinstance(weight, Tensor)
    if not isinstance(bias, Tensor):
        return weight.new_zeros(weight.shape[1], dtype=torch.float64)
    pinv: Tensor = torch.linalg.pinv(weight.double())
    return -pinv @ bias.double()


def _second_moment(features: Tensor, origin: Tensor) -> Tensor:
    """(1/n) Σ_i (z_i − u)(z_i − u)ᵀ: (N, D), (D,) -> (D, D) in float64."""
    total = torch.zeros(len(origin), len(origin), dtype=origin.dtype, device=origin.device)
    for z in features.split(ROWS):
        apart = z.double() - origin
        total.addmm_(apart.T, apart)
    return total / len(features)
