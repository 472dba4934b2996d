"""DAL inside the network: the ball lies around an inner layer's activations, where the rest of the network is curved.

At the last layer the head is linear, so the worst case of a ball is outlier exposure plus a penalty on the head's
weights (docs/worst-case.md): it says nothing to the features. The duality holds in any space; further down, the worst
case is another outlier for the layers above it to learn from. Ours, not in the paper.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from farout.components import choose
from farout.errors import ConfigError
from farout.losses import ce_to_uniform
from farout.methods.base import Method, forward_pair
from farout.nets.net import Net
from farout.types import Batch, Terms


def _channels(gradient: Tensor) -> Tensor:
    """The same move at every place of a channel's map: a change of style, not of content."""
    if gradient.ndim == 2:
        return gradient
    return gradient.flatten(2).mean(2).view(*gradient.shape[:2], *[1] * (gradient.ndim - 2)).expand_as(gradient)


DIRECTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "worst": lambda gradient: gradient,
    "channels": _channels,
    "noise": torch.randn_like,  # what the search is worth: a move as long, anywhere
}


class DALDeep(Method):
    """mean CE(ID) + α mean ℓ_OE(f(x_out with h + p)),  p = argmax { ⟨∇_h ℓ_OE, p⟩ : ‖p‖₂ ≤ ρ ‖h‖₂ },  h at `layer`.

    alpha       weight of the OOD term
    rho         radius of each outlier's ball, as a share of the length of its activations
    layer       the body's layer whose output is moved, e.g. "block2"; by default the one in the middle
    share       of the outliers that are moved; the rest enter as they are
    direction   "worst", "channels" (one move for each channel) or "noise"
    num_search  how often the loss is linearised: at h, then at the moved h; each is a forward and half a backward

    The search runs in evaluation mode, so that moved activations do not enter the batch statistics twice.
    """

    paper = "ours; after Wang et al., NeurIPS 2023"
    gain: Tensor

    def __init__(
        self,
        alpha: float = 0.5,
        rho: float = 0.1,
        layer: str | None = None,
        share: float = 0.5,
        direction: str = "worst",
        num_search: int = 1,
    ) -> None:
        super().__init__()
        if not 0 <= share <= 1:
            raise ConfigError(f"dal-deep: share must lie in [0, 1], got {share}")
        if num_search < 1:
            raise ConfigError(f"dal-deep: num_search must be at least 1, got {num_search}")
        self.alpha, self.rho, self.layer, self.share, self.num_search = alpha, rho, layer, share, num_search
        self.direction = choose("direction", DIRECTIONS, direction)
        self.register_buffer("gain", torch.tensor(0.0), persistent=False)

    def prepare(self, net: Net) -> None:
        inner_layer(net.body, self.layer)  # a wrong name is told before the first step

    def loss(self, net: Net, batch: Batch) -> Terms:
        assert batch.x_out is not None
        layer = inner_layer(net.body, self.layer)
        moved = round(self.share * len(batch.x_out))
        p = self._search(net, layer, batch.x_out[:moved])
        rows = slice(len(batch.x), len(batch.x) + moved)
        with adding(layer, lambda h: _add_rows(h, p, rows)):
            inlier, outlier = forward_pair(net, batch)
        risk = ce_to_uniform(outlier.logits).mean()
        return {"ce": F.cross_entropy(inlier.logits, batch.y), "oe": self.alpha * risk}

    def _search(self, net: Net, layer: nn.Module, x: Tensor) -> Tensor:
        """The moves p, shaped as the layer's output; notes what they gain to first order, mean ⟨∇_h ℓ_OE, p⟩."""
        training, p = net.training, torch.zeros((), device=x.device)
        net.eval()
        for _ in range(self.num_search if len(x) else 0):
            seen: list[Tensor] = []

            def start_here(h: Tensor, p: Tensor = p, seen: list[Tensor] = seen) -> Tensor:
                seen.extend((h.detach(), (h.detach() + p).requires_grad_()))
                return seen[1].clone()  # a layer that works in place must not overwrite the leaf

            with torch.enable_grad(), adding(layer, start_here):
                risk = ce_to_uniform(net(x).logits).sum()  # a sum: each row's gradient is its own
                [gradient] = torch.autograd.grad(risk, seen[1])
            p = self._move(seen[0], gradient)
            self.gain.copy_((gradient.float() * p.float()).sum() / len(x))
        net.train(training)
        return p

    def _move(self, h: Tensor, gradient: Tensor) -> Tensor:
        """ρ‖h‖₂ along the direction, row by row; a zero gradient moves nothing."""
        wide = torch.promote_types(h.dtype, torch.float32)
        towards = self.direction(gradient).to(wide)
        unit = towards / _lengths(towards).clamp_min(torch.finfo(wide).tiny)
        p: Tensor = self.rho * _lengths(h.to(wide)) * unit
        return p.to(h.dtype)

    def stats(self) -> dict[str, Tensor]:
        return {"gain": self.gain}


def _lengths(h: Tensor) -> Tensor:
    """‖h‖₂ of each row, shaped to be multiplied with it."""
    lengths: Tensor = torch.linalg.vector_norm(h, dim=tuple(range(1, h.ndim)), keepdim=True)
    return lengths


def inner_layer(body: nn.Module, name: str | None) -> nn.Module:
    """The body's layer of that name; without one, the middle of its children."""
    children: dict[str, nn.Module] = dict(body.named_children())
    if name is None and children:
        return list(children.values())[(len(children) - 1) // 2]
    found: nn.Module | None = dict(body.named_modules()).get(name or "")
    if not name or found is None:
        raise ConfigError(f"dal-deep: the body has no layer {name!r}; its layers are {', '.join(children) or 'none'}")
    return found


@contextmanager
def adding(layer: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, `layer` gives change(h) for its output h, or for the sum of its two summands (nets/wrn.py)."""

    def hook(module: nn.Module, inputs: object, out: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, None]:
        return change(out) if isinstance(out, Tensor) else (change(out[0] + out[1]), None)

    handle = layer.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _add_rows(h: Tensor, p: Tensor, rows: slice) -> Tensor:
    """h with p added to some of its rows."""
    return torch.cat((h[: rows.start], h[rows] + p.to(h.dtype), h[rows.stop :]))
