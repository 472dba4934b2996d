"""Random crops and flips of a whole batch in one gather, on uint8, on any device."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Augment(Protocol):
    """Draws for `total` samples, keeps those of `rows`: each rank of several sees what one process would."""

    def __call__(self, x: Tensor, generator: torch.Generator, total: int, rows: slice) -> Tensor: ...


class CropFlip:
    """Pad by `padding` zeros, crop at random to the old size, flip left-right with probability `flip`.

    x (B, C, H, W) -> (B, C, H, W). Output row i is input row i + dy, column j is j + dx, or W − 1 − j + dx flipped:
    both are index arithmetic, so crop and flip are one gather.
    """

    def __init__(self, padding: int = 4, flip: float = 0.5) -> None:
        self.padding, self.flip = padding, flip

    def __call__(self, x: Tensor, generator: torch.Generator, total: int, rows: slice) -> Tensor:
        height, width = x.shape[-2:]
        shift = torch.randint(2 * self.padding + 1, (total, 2), generator=generator)[rows].to(x.device)
        flipped = (torch.rand(total, generator=generator) < self.flip)[rows].to(x.device)
        row = torch.arange(height, device=x.device) + shift[:, :1]
        column = torch.arange(width, device=x.device).expand(len(x), -1)
        column = torch.where(flipped[:, None], width - 1 - column, column) + shift[:, 1:]
        padded = F.pad(x, [self.padding] * 4)
        sample = torch.arange(len(x), device=x.device)[:, None, None]
        return padded.permute(0, 2, 3, 1)[sample, row[:, :, None], column[:, None, :]].permute(0, 3, 1, 2)


class NoAugment:
    """The samples as they are."""

    def __call__(self, x: Tensor, generator: torch.Generator, total: int, rows: slice) -> Tensor:
        return x


AUGMENTS: Mapping[str, Callable[..., Augment]] = {"crop-flip": CropFlip, "none": NoAugment}
