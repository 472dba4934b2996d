"""Random crops and flips of a whole batch in one gather, on uint8, on any device."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


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


class NoAugment:
    """The samples as they are."""

    def draw(self, steps: int, count: int, generator: torch.Generator) -> Tensor:
        return torch.empty(steps, count, 0)

    def __call__(self, x: Tensor, chances: Tensor) -> Tensor:
        return x


AUGMENTS: Mapping[str, Callable[..., Augment]] = {"crop-flip": CropFlip, "none": NoAugment}
