"""DOE: moving the weights moves the outliers implicitly; train on the worst of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from farout import distributed
from farout.data.source import Source
from farout.errors import ConfigError, TrainingError
from farout.losses import ce_to_uniform
from farout.methods.base import Descend, Method, forward_pair
from farout.nets.net import Net
from farout.types import Batch, Terms

Shifts = list[tuple[nn.Parameter, Tensor]]
"""Each weight w of the network with its Δ."""


def scale_regret(logits: Tensor) -> Tensor:
    """R = ( ∂/∂σ mean ℓ_OE(σ f) at σ = 1 )², how much could be gained by scaling the logits: (M, K) -> ().

    The derivative is mean_i [Σ_k p_ik f_ik − mean_k f_ik] with p the softmax, so one backward gives the gradient of R;
    it is 0 where the prediction is uniform.
    """
    slope = (logits.softmax(dim=-1) * logits).sum(dim=-1) - logits.mean(dim=-1)
    return slope.mean().square()


class DOE(Method):
    """OE at weights moved by γΔ, then CE at the weights themselves: two steps of the optimiser for each batch.

    Per weight tensor w of two or more dimensions, with g = ∇_w R (see `scale_regret`) over the batch's outliers,
    Δ ← ema · Δ + (1 − ema) · sign · ‖w‖ g / ‖g‖, and γ is one of `strengths` at random. For the first `warmup` epochs
    it is plain OE.

    alpha  weight of the OE term
    sign   −1 moves the weights to lower R, as the released code does and hence the default; +1 raises it, which is
           the worst case that the paper's text asks for
    clip   largest gradient norm in every step

    R is taken without dropout, with batch statistics of ID data and outliers together, and leaves the running ones
    alone. Both steps share one momentum buffer and each decays the weights, as released; the released code trains
    one epoch less than its schedule is long.
    """

    score = "max-logit"
    paper = "Wang et al., Out-of-distribution Detection with Implicit Outlier Transformation, ICLR 2023"
    epoch: Tensor
    searches: Tensor
    regret: Tensor
    strength: Tensor

    def __init__(
        self,
        warmup: int = 5,
        alpha: float = 1.0,
        strengths: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4),
        ema: float = 0.6,
        sign: int = -1,
        clip: float | None = 1.0,
    ) -> None:
        super().__init__()
        self.warmup, self.alpha, self.ema, self.sign, self.clip = warmup, alpha, ema, sign, clip
        self.strengths = tuple(strengths)
        self.register_buffer("epoch", torch.tensor(0))
        self.register_buffer("searches", torch.tensor(0))
        self.register_buffer("regret", torch.tensor(0.0), persistent=False)
        self.register_buffer("strength", torch.tensor(0.0), persistent=False)

    def prepare(self, net: Net) -> None:
        if self.sign not in (-1, 1):
            raise ConfigError(f"DOE: sign={self.sign}; take -1 (the released code) or 1 (the paper's text)")
        if not self.strengths:
            raise ConfigError("DOE: strengths is empty; give at least one, e.g. [0.1, 0.01]")
        for name, weight in _weights(net):
            self.register_buffer(_key(name), torch.zeros_like(weight))

    def begin_epoch(self, net: Net, outliers: Source | None, epoch: int) -> None:
        self.epoch.fill_(epoch)

    def update(self, net: Net, batch: Batch, descend: Descend) -> Terms:
        if int(self.epoch) < self.warmup:
            return descend(self.loss)
        shifts = self._shifts(net)
        self._search(net, batch, shifts)
        self._draw_strength()
        with _moved(shifts, self.strength):
            outlier = descend(self.outlier_loss)
        return {**descend(self.id_loss), **outlier}

    def loss(self, net: Net, batch: Batch) -> Terms:
        inlier, outlier = forward_pair(net, batch)
        return {
            "ce": F.cross_entropy(inlier.logits, batch.y),
            "oe": self.alpha * ce_to_uniform(outlier.logits).mean(),
        }

    def outlier_loss(self, net: Net, batch: Batch) -> Terms:
        """The OE term alone, for the step at the moved weights."""
        return {"oe": self.loss(net, batch)["oe"]}

    def id_loss(self, net: Net, batch: Batch) -> Terms:
        """The ID term alone, for the step at the weights themselves; outliers still shape the batch statistics."""
        return {"ce": self.loss(net, batch)["ce"]}

    def stats(self) -> dict[str, Tensor]:
        return {"regret": self.regret, "strength": self.strength}

    def _search(self, net: Net, batch: Batch, shifts: Shifts) -> None:
        """Renew Δ; the first one is taken as it is. Ranks average their gradients."""
        found = self._regret(net, batch)
        gradients = torch.autograd.grad(found, [w for w, _ in shifts], allow_unused=True, materialize_grads=True)
        keep = self.ema * (self.searches > 0)
        with torch.no_grad():
            for (weight, shift), local in zip(shifts, gradients, strict=True):
                gradient = distributed.mean(local)
                new = self.sign * weight.norm() / (gradient.norm() + 1e-20) * gradient
                shift.copy_(keep * shift + (1 - keep) * new)
        self.searches += 1
        self.regret.copy_(found.detach())

    def _regret(self, net: Net, batch: Batch) -> Tensor:
        assert batch.x_out is not None, "DOE trains with auxiliary outliers and the batch has none"
        copies = {name: buffer.clone() for name, buffer in net.named_buffers()}
        with _without_dropout(net):
            out = functional_call(net, copies, (torch.cat([batch.x, batch.x_out]),))
        return scale_regret(out.logits[len(batch.x) :])

    def _draw_strength(self) -> None:
        drawn = torch.tensor(self.strengths)[torch.randint(len(self.strengths), ())]
        self.strength.copy_(distributed.same(drawn.to(self.strength.device)))

    def _shifts(self, net: Net) -> Shifts:
        kept = dict(self.named_buffers())
        pairs = []
        for name, weight in _weights(net):
            if _key(name) not in kept:
                raise TrainingError(f"DOE keeps no perturbation for {name!r}; call prepare(net) before training")
            pairs.append((weight, kept[_key(name)]))
        return pairs


def _weights(net: Net) -> list[tuple[str, nn.Parameter]]:
    """The trained tensors of two or more dimensions: convolutions and linear maps, not biases or BatchNorm."""
    return [(name, p) for name, p in net.named_parameters() if p.ndim >= 2 and p.requires_grad]


def _key(name: str) -> str:
    return "shift/" + name.replace(".", "/")  # a buffer's name may not hold a dot


@contextmanager
def _moved(shifts: Shifts, strength: Tensor) -> Iterator[None]:
    """w + γΔ inside the block; γΔ is taken off again after it, whatever the optimiser did in between."""
    with torch.no_grad():
        for weight, shift in shifts:
            weight.add_(strength * shift)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, shift in shifts:
                weight.sub_(strength * shift)


@contextmanager
def _without_dropout(net: Net) -> Iterator[None]:
    """Dropout layers in evaluation mode inside the block, all else as it is."""
    active = [module for module in net.modules() if isinstance(module, _DropoutNd) and module.training]
    for module in active:
        module.eval()
    try:
        yield
    finally:
        for module in active:
            module.train()
