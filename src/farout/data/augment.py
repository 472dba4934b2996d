"""Random crops, flips and colours of a whole batch at once, on uint8, on any device."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from farout.errors import DataError


class Augment(Protocol):
    """Draws the chances of a whole epoch at once, then applies those of a batch: no step waits for the host."""

    def draw(self, steps: int, count: int, generator: torch.Generator) -> Tensor:
        """The chances (steps, count, ...) of every sample of every batch."""
        ...

    def __call__(self, x: Tensor, chances: Tensor) -> Tensor:
        """The batch (B, C, H, W), each sample changed by its own chances (B, ...)."""
        ...


class CropFlip:
    """Pad by `padding` zeros, crop at random to the old size, flip left-right with probability `flip`.

    x (B, C, H, W) -> (B, C, H, W). Output row i is input row i + dy, column j is j + dx, or W − 1 − j + dx flipped:
    both are index arithmetic, so crop and flip are one gather.
    """

    def __init__(self, padding: int = 4, flip: float = 0.5) -> None:
        self.padding, self.flip = padding, flip

    def draw(self, steps: int, count: int, generator: torch.Generator) -> Tensor:
        """dy, dx in [0, 2·padding] and flipped in {0, 1}: (steps, count, 3)."""
        shift = torch.randint(2 * self.padding + 1, (steps, count, 2), generator=generator)
        flipped = torch.rand(steps, count, 1, generator=generator) < self.flip
        return torch.cat([shift, flipped.long()], dim=2)

    def __call__(self, x: Tensor, chances: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        down, right, flipped = chances.unbind(dim=1)
        row = torch.arange(height, device=x.device) + down[:, None]
        column = torch.arange(width, device=x.device).expand(len(x), -1)
        column = torch.where(flipped[:, None] == 1, width - 1 - column, column) + right[:, None]
        padded = F.pad(x, [self.padding] * 4)
        sample = torch.arange(len(x), device=x.device)[:, None, None]
        return padded.permute(0, 2, 3, 1)[sample, row[:, :, None], column[:, None, :]].permute(0, 3, 1, 2)


class Wide(CropFlip):
    """CropFlip, then a photo lab of its own for a `share` of the images: x' = g·(x + t·(x − blur x)) + o, in [0, 1].

    gain       g = exp(gain·ε), ε ~ N(0, 1), a channel;  offset: o = offset·ε
    sharpness  t is uniform in [−sharpness, sharpness]: below 0 blurs, above 0 sharpens; blur is the mean of 3x3

    For auxiliary outliers (`data.outlier_augment: wide`): what is met later was not developed as they were. What it
    gained, and over what, is in docs/results.md.
    """

    def __init__(
        self,
        padding: int = 4,
        flip: float = 0.5,
        share: float = 0.5,
        gain: float = 0.3,
        offset: float = 0.1,
        sharpness: float = 1.0,
    ) -> None:
        super().__init__(padding, flip)
        self.share, self.gain, self.offset, self.sharpness = share, gain, offset, sharpness

    def draw(self, steps: int, count: int, generator: torch.Generator) -> Tensor:
        """CropFlip's three, whether the image is changed, t, log g and o of three channels: (steps, count, 11)."""
        placed = super().draw(steps, count, generator).float()
        chosen = (torch.rand(steps, count, 1, generator=generator) < self.share).float()
        t = self.sharpness * (2 * torch.rand(steps, count, 1, generator=generator) - 1)
        normal = torch.randn(steps, count, 6, generator=generator)
        return torch.cat([placed, chosen, t, self.gain * normal[..., :3], self.offset * normal[..., 3:]], dim=2)

    def __call__(self, x: Tensor, chances: Tensor) -> Tensor:
        x = super().__call__(x, chances[:, :3].long())
        if x.shape[1] not in (1, 3):
            raise DataError(f"augment wide changes colours of 1 or 3 channels, got images {tuple(x.shape)}")
        chosen, t, log_gain, offset = chances[:, 3:, None, None].split([1, 1, 3, 3], dim=1)
        top = 255.0 if x.dtype == torch.uint8 else 1.0
        y = x / top
        blurred = F.avg_pool2d(F.pad(y, [1] * 4, mode="replicate"), 3, stride=1)
        y = log_gain[:, : x.shape[1]].exp() * (y + t * (y - blurred)) + offset[:, : x.shape[1]]
        y = y.clamp(0, 1) * top
        return torch.where(chosen == 1, y.round().to(x.dtype) if top > 1 else y, x)


class NoAugment:
    """The samples as they are."""

    def draw(self, steps: int, count: int, generator: torch.Generator) -> Tensor:
        return torch.empty(steps, count, 0)

    def __call__(self, x: Tensor, chances: Tensor) -> Tensor:
        return x


AUGMENTS: Mapping[str, Callable[..., Augment]] = {"crop-flip": CropFlip, "wide": Wide, "none": NoAugment}
