"""The exact worst move of each sample within an l1 budget, for a linear head.

    max{ ℓ(z + p) : ‖p‖₁ <= r } = max_{j,±} ℓ(z ± r·e_j),    ℓ(z) = LSE(Wz + b) − mean_k(Wz + b)_k

ℓ is convex, and a convex function is largest at a vertex of the ball: 2D shifted logit rows a sample. No search
with the same budget finds more. The features may turn negative: p ranges over all of R^D.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

_CHUNK = 2**20  # shifted logits held at a time: 4 MB in float32
_RANGE = 600.0  # nats; exp(-600) is still far from float64's smallest number, about exp(-708)


@torch.no_grad()
def vertex(z: Tensor, weight: Tensor, bias: Tensor | None, budget: float | Tensor) -> tuple[Tensor, Tensor]:
    """The worst vertex p (M, D) of each sample and its risk ℓ(z + p) (M,); ‖p‖₁ = budget.

    z (M, D), weight (K, D), bias (K,) or None, budget in sum-norm units, one for all or (M,). O(MDK).

    >>> vertex(torch.zeros(1, 2), torch.tensor([[0.0, -30.0], [0.0, 0.0], [0.0, 0.0]]), None, budget=2.0)
    (tensor([[ 0., -2.]]), tensor([40.]))
    """
    logits, head = _centred(z, weight, bias)
    radius = _radius(budget, logits).expand(len(z))
    rows, features = max(1, _CHUNK // head.numel()), head.shape[1]
    values = logits.new_empty(len(z), 2 * features)
    for out, part, r in zip(*(x.split(rows) for x in (values, logits, radius)), strict=True):
        step = r[:, None, None] * head.T
        out[:, :features] = torch.logsumexp(part[:, None, :] + step, dim=2)
        out[:, features:] = torch.logsumexp(part[:, None, :] - step, dim=2)
    return _worst(values, radius, z.dtype)


@torch.no_grad()
def vertex_product(z: Tensor, weight: Tensor, bias: Tensor | None, budget: float | Tensor) -> tuple[Tensor, Tensor]:
    """`vertex` by two matrix products, for one budget: Σ_k exp(f_k ± r·D_kj) = exp(f) · exp(±rD), in float64.

    Exact while r·max_j(max_k D_kj − min_k D_kj) < 600 nats; beyond, where a product could underflow, everything
    comes back as NaN and not as a wrong maximum: use `vertex`.
    """
    logits, head = (x.double() for x in _centred(z, weight, bias))
    radius = _radius(budget, logits)
    if radius.ndim > 0:
        raise ValueError(f"vertex_product takes one budget for all, not {tuple(radius.shape)}: use vertex")
    steps = torch.cat([radius * head, -radius * head], dim=1)  # (K, 2D)
    top, largest = logits.amax(dim=1, keepdim=True), steps.amax(dim=0)
    values = ((logits - top).exp() @ (steps - largest).exp()).log() + top + largest
    in_range = (largest - steps.amin(dim=0)).amax() < _RANGE
    return _worst(values.where(in_range, torch.nan), radius.expand(len(z)), z.dtype)


def _centred(z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits (M, K) and head (K, D) less their means over classes, for which ℓ = LSE."""
    if z.ndim != 2 or weight.ndim != 2 or z.shape[1] != weight.shape[1]:
        raise ValueError(f"z must be (M, D) and weight (K, D), but they are {tuple(z.shape)}, {tuple(weight.shape)}")
    dtype = torch.promote_types(z.dtype, torch.float32)
    head = weight.to(dtype) - weight.to(dtype).mean(dim=0)
    shift = None if bias is None else bias.to(dtype) - bias.to(dtype).mean()
    return linear(z.to(dtype), head, shift), head


def _radius(budget: float | Tensor, like: Tensor) -> Tensor:
    # a budget on the device is not looked at, for that would stop the training step to wait for it
    if not isinstance(budget, Tensor) and not 0 <= budget < float("inf"):
        raise ValueError(f"budget must be finite and at least 0, but it is {budget}")
    if isinstance(budget, Tensor):
        return budget.to(like)
    return torch.full((), budget, dtype=like.dtype, device=like.device)  # made there: a CUDA graph cannot copy it over


def _worst(values: Tensor, radius: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """From ℓ at the vertices +e_1 … +e_D, −e_1 … −e_D (M, 2D) to the worst of them."""
    features = values.shape[1] // 2
    value, index = values.max(dim=1)
    signed = torch.where(index < features, radius, -radius)
    p = torch.zeros_like(values[:, :features]).scatter_(1, index[:, None] % features, signed[:, None])
    return p.to(dtype), value
