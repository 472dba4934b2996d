"""From a raw image of any size to the pixels that the network takes; part of the detector, hence of its exports."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from farout.errors import DataError

LUMINANCE = (0.299, 0.587, 0.114)  # what Pillow takes of R, G and B for grey


class Preprocess(nn.Module):
    """Shorter side to `resize` (bilinear, antialiased), then the centre: (B, C, H, W) -> (B, C', crop, crop).

    uint8 stays uint8, rounded, within two grey levels of what Pillow gives (`farout.data.image_files.decode`, by
    which training images were read); float in [0, 1] stays float. An image that already is crop x crop is taken as
    it is. With `channels` 1 colours become luminance, with 3 grey is repeated; None leaves them alone.
    """

    def __init__(self, resize: int, crop: int, channels: int | None = None) -> None:
        super().__init__()
        if not 0 < crop <= resize:
            raise ValueError(f"the crop must lie inside the resized image, got resize={resize} and crop={crop}")
        self.resize, self.crop, self.channels = resize, crop, channels

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or not (x.dtype == torch.uint8 or x.is_floating_point()):
            raise DataError(
                f"the detector takes images (B, C, H, W), uint8 or float in [0, 1]; got {tuple(x.shape)} of {x.dtype}"
            )
        return self._coloured(self._cropped(self._resized(x)))

    def _resized(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        target = resized(height, width, self.resize)
        if (height, width) in (target, (self.crop, self.crop)):
            return x
        out = F.interpolate(x.float(), size=target, mode="bilinear", antialias=True)
        return out.round().clamp(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else out.to(x.dtype)

    def _cropped(self, x: Tensor) -> Tensor:
        top, left = (round((side - self.crop) / 2) for side in x.shape[-2:])
        return x[..., top : top + self.crop, left : left + self.crop]

    def _coloured(self, x: Tensor) -> Tensor:
        if self.channels in (None, x.shape[1]):
            return x
        if (x.shape[1], self.channels) == (1, 3):
            return x.expand(-1, 3, -1, -1)
        if (x.shape[1], self.channels) == (3, 1):
            grey = (x * x.new_tensor(LUMINANCE, dtype=torch.float32).view(3, 1, 1)).sum(dim=1, keepdim=True)
            return grey.round().to(torch.uint8) if x.dtype == torch.uint8 else grey.to(x.dtype)
        raise DataError(f"the detector takes {self.channels} channel(s), the images have {x.shape[1]}")


def resized(height: int, width: int, shorter: int) -> tuple[int, int]:
    """Height and width once the shorter side is `shorter`, the longer one rounded down.

    >>> resized(480, 640, 256)
    (256, 341)
    """
    longer = int(shorter * max(height, width) / min(height, width))
    return (shorter, longer) if width > height else (longer, shorter)
