"""Random views for contrastive learning: crops, flips and colours of a whole batch at once, on any device.

All draws come from torch's global generator of the batch's device. Each image has its own draws; only the order of
the four colour changes is drawn once a batch. Saturation, hue and grey leave images of one channel as they are.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from farout.errors import DataError
from farout.nets.net import pixels

LUMA = (0.299, 0.587, 0.114)
"""How bright red, green and blue are (ITU-R BT.601)."""
TRIES = 10
"""Boxes drawn for each image before the whole image is taken, as is common."""


@dataclass(frozen=True)
class Views:
    """A random view of each image: flip, resized crop, colour jitter, grey; as SimCLR's, without its blur.

    crop        smallest share of the image's area in a crop, which is scaled back to the image's size
    flip        probability of a left-right flip
    brightness, contrast, saturation   the factor is uniform in [1 − value, 1 + value]
    hue         the turn of the colour wheel is uniform in [−hue, hue], 1 being a full turn
    jitter      probability that an image's colours are changed;  gray: that it loses them

    x (B, C, H, W) uint8 or float in [0, 1] -> (B, C, H, W) float in [0, 1].
    """

    crop: float = 0.2
    flip: float = 0.5
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    jitter: float = 0.8
    gray: float = 0.2

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        x = pixels(random_flip(x, self.flip))
        x = resized_crop(x, random_boxes(x, self.crop))
        x = torch.where(_chance(x, self.jitter), self.recolour(x), x)
        return torch.where(_chance(x, self.gray), luma(x).expand_as(x), x) if x.shape[1] == 3 else x

    def recolour(self, x: Tensor) -> Tensor:
        """Brightness, contrast, saturation and hue of every image, in a random order."""
        factors = [_around(x, 1.0, width) for width in (self.brightness, self.contrast, self.saturation)]
        turns = _around(x, 0.0, self.hue)
        for change in torch.randperm(4).tolist():
            if change == 3:
                x = shift_hue(x, turns)
            else:
                x = (change_brightness, change_contrast, change_saturation)[change](x, factors[change])
        return x


def random_flip(x: Tensor, probability: float) -> Tensor:
    """Each image mirrored left to right with `probability`."""
    return torch.where(_chance(_images(x), probability), x.flip(-1), x)


def rotations(x: Tensor) -> Tensor:
    """Every image turned by 0, 90, 180 and 270 degrees counter-clockwise: (B, C, H, W) -> (4B, C, H, W).

    Rotation-major: rows rB .. (r+1)B − 1 are all images turned by r · 90 degrees.
    """
    height, width = _images(x).shape[-2:]
    if height != width:
        raise DataError(f"only square images can be turned by 90 degrees, got {height}x{width}; set data.size")
    return torch.cat([x.rot90(quarter, (2, 3)) for quarter in range(4)])


def random_boxes(x: Tensor, smallest: float) -> Tensor:
    """A crop for each image: (B, 4) centre x, centre y, width, height, as shares of the image, inside it.

    Area uniform in [smallest, 1] of the image's, the aspect's logarithm uniform in ±log(4/3); a box that sticks out
    is drawn again, and after ten of them the whole image is taken.
    """
    count, (height, width) = len(x), x.shape[-2:]
    area = torch.empty(count, TRIES, device=x.device).uniform_(smallest, 1)
    aspect = torch.empty_like(area).uniform_(-math.log(4 / 3), math.log(4 / 3)).exp() * height / width
    sizes = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()], dim=-1)
    fits = (sizes <= 1).all(dim=-1)
    first = sizes[torch.arange(count, device=x.device), fits.int().argmax(dim=1)]  # argmax takes the first of equals
    size = torch.where(fits.any(dim=1, keepdim=True), first, 1.0)
    centre = size / 2 + torch.rand_like(size) * (1 - size)
    return torch.cat([centre, size], dim=1)


def resized_crop(x: Tensor, boxes: Tensor) -> Tensor:
    """What lies in each image's box, scaled bilinearly to the image's own size.

    x (B, C, H, W) float, boxes (B, 4) as `random_boxes` gives them; the box (½, ½, 1, 1) is the identity.
    """
    centre, size = boxes[:, :2], boxes[:, 2:]
    affine = torch.cat([torch.diag_embed(size), (2 * centre - 1)[:, :, None]], dim=2).to(x.dtype)
    grid = F.affine_grid(affine, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def luma(x: Tensor) -> Tensor:
    """The grey value of each pixel, 0.299 R + 0.587 G + 0.114 B: (B, 3, H, W) -> (B, 1, H, W)."""
    if x.shape[1] != 3:
        return x
    weights = torch.tensor(LUMA, dtype=x.dtype, device=x.device).view(3, 1, 1)
    return (x * weights).sum(dim=1, keepdim=True)


def change_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """factor · x; factor (B, 1, 1, 1)."""
    return (factor * x).clamp(0, 1)


def change_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the image's mean grey: factor · x + (1 − factor) · mean."""
    return torch.lerp(luma(x).mean(dim=(1, 2, 3), keepdim=True), x, factor).clamp(0, 1)


def change_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards each pixel's grey: factor · x + (1 − factor) · grey."""
    return torch.lerp(luma(x), x, factor).clamp(0, 1) if x.shape[1] == 3 else x


def shift_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Turn the colour wheel by `turns` (B, 1, 1, 1): 1/3 makes red green, green blue and blue red.

    With value V = max, chroma C = max − min and hue H in [0, 6), channel n ∈ {5, 3, 1} for R, G, B is
    V − C · clip(min(k, 4 − k), 0, 1), k = (n + H) mod 6.
    """
    if x.shape[1] != 3:
        return x
    red, green, blue = x.unbind(dim=1)
    value = x.amax(dim=1)
    chroma = value - x.amin(dim=1)
    safe = torch.where(chroma > 0, chroma, 1.0)  # a grey pixel has no hue: its chroma of 0 keeps it grey
    hue = torch.where(green == value, (blue - red) / safe + 2, (red - green) / safe + 4)
    hue = torch.where(red == value, (green - blue) / safe, hue) + 6 * turns.squeeze(1)
    wheel = [(n + hue).remainder(6) for n in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in wheel], dim=1)


def _images(x: Tensor) -> Tensor:
    if x.ndim != 4:
        raise DataError(
            f"views are made of images (B, C, H, W), got a batch of shape {tuple(x.shape)}; "
            "embeddings (train.only_head) cannot be cropped, flipped or turned"
        )
    return x


def _chance(x: Tensor, probability: float) -> Tensor:
    return torch.rand(len(x), 1, 1, 1, device=x.device) < probability


def _around(x: Tensor, centre: float, width: float) -> Tensor:
    return torch.empty(len(x), 1, 1, 1, device=x.device, dtype=x.dtype).uniform_(centre - width, centre + width)
