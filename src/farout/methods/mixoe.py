"""MixOE: between an ID image and an outlier, confidence should decay with the outlier's share."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Beta

from farout.components import choose
from farout.errors import ConfigError
from farout.methods.base import Method, forward_pair
from farout.nets.net import Net, pixels
from farout.types import Batch, Terms

Mix = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""ID images, outliers and λ () -> the mixed images, and the share () of them that is ID."""


def blend(x: Tensor, x_out: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """λ x + (1 − λ) x_out, sample by sample: (M, ...) -> (M, ...)."""
    return share * x + (1 - share) * x_out, share


def paste(x: Tensor, x_out: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """x with a box of x_out pasted in; λ becomes the share of pixels that are left: (M, C, H, W) -> (M, C, H, W).

    The box has sides √(1 − λ) of the image's and a uniform centre; what reaches over the edge is cut off.
    """
    if x.ndim != 4:
        raise ConfigError(f"MixOE mode 'cut' needs images (B, C, H, W), got {tuple(x.shape)}; use mode 'linear'")
    rows, columns = (_span(size, (1 - share).sqrt()) for size in x.shape[-2:])
    box = rows[:, None] & columns
    return torch.where(box, x_out, x), 1 - box.sum() / box.numel()


def _span(size: int, share: Tensor) -> Tensor:
    """Which of `size` places a span of ⌊share · size⌋ around a uniform centre covers: () -> (size,)."""
    place, centre = torch.arange(size, device=share.device), torch.randint(size, (), device=share.device)
    length = (size * share).long()
    start = centre - length // 2
    return (start <= place) & (place < start + length)


MIXES: Mapping[str, Mix] = {"linear": blend, "cut": paste}


class MixOE(Method):
    """mean CE(ID) + weight · mean CE( f(mix(x, x_out, λ)), λ onehot(y) + (1 − λ)/K ),  λ ~ Beta(alpha, alpha).

    mode    "linear" (mixup) or "cut" (CutMix: a patch of the outlier in the ID image)
    weight  the paper's β; the released runs take 5 for both modes, alpha 1 for linear and 2 for cut

    λ is drawn once a batch, as in the released code. Outlier i is mixed with ID sample i mod B. Departure: clean and
    mixed images share one forward, hence the batch statistics; the released code runs one after the other.
    """

    paper = "Zhang et al., Mixture Outlier Exposure, WACV 2023"

    def __init__(self, alpha: float = 1.0, weight: float = 5.0, mode: str = "linear") -> None:
        super().__init__()
        self.alpha, self.weight, self.mode = alpha, weight, mode
        self.mix = choose("mode", MIXES, mode)

    def prepare(self, net: Net) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"MixOE: alpha={self.alpha} gives no Beta(alpha, alpha); take one above 0")

    def loss(self, net: Net, batch: Batch) -> Terms:
        assert batch.x_out is not None, "MixOE trains with auxiliary outliers and the batch has none"
        x, x_out = pixels(batch.x), pixels(batch.x_out)
        partner = torch.arange(len(x_out), device=x.device) % len(x)
        # On the images' device, as is the box: what the host draws, a recorded step would repeat for ever.
        alpha = torch.full((), float(self.alpha), device=x.device)
        drawn = Beta(alpha, alpha, validate_args=False).sample()  # checking waits for the host
        mixed, share = self.mix(x[partner], x_out, drawn)
        inlier, between = forward_pair(net, Batch(x, batch.y, mixed))
        classes = between.logits.shape[1]
        onehot = torch.eye(classes, dtype=between.logits.dtype, device=x.device)[batch.y[partner]]
        target = share * onehot + (1 - share) / classes
        return {
            "ce": F.cross_entropy(inlier.logits, batch.y),
            "mix": self.weight * F.cross_entropy(between.logits, target),
        }
