"""The detector's resize for a graph whose height and width are free: what no operator of a fixed size can say."""

import torch
from torch import Tensor, nn

from farout.preprocess import Preprocess

TIE = 1e-6


class AnySize(nn.Module):
    """`Preprocess` as two matrix products: uint8 (B, C, H, W) of any H and W -> (B, C', crop, crop).

    R x Cᵀ with R (crop, H) and C (crop, W), each row the triangle that antialiased bilinear resizing lays over its
    side. Within one grey level of `Preprocess`, which rounds ties to even: here they go up, by a hair's breadth, so
    that every runtime agrees. In float64, hence 8 bytes a pixel and (H + crop)·W·crop multiplications a channel.
    """

    def __init__(self, like: Preprocess) -> None:
        super().__init__()
        self.like = like

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (torch.arange(side, dtype=torch.float64, device=x.device) for side in x.shape[-2:])
        height, width = rows[-1] + 1, columns[-1] + 1
        shorter, crop = torch.minimum(height, width), self.like.crop
        whole = (height == crop) & (width == crop)  # taken as it is
        down, across = (self._weights(pixels, shorter, whole) for pixels in (rows, columns))
        out = (down @ x.double() @ across.T + 0.5 + TIE).floor()
        return self.like._coloured(out.clamp(0, 255).to(torch.uint8))

    def _weights(self, pixels: Tensor, shorter: Tensor, whole: Tensor) -> Tensor:
        """How much of each pixel (n,) of a side goes into each of the crop's: (crop, n), rows sum to 1."""
        side, crop = pixels[-1] + 1, self.like.crop
        target = (self.like.resize * side / shorter).floor()
        scale = torch.where(whole, torch.ones_like(side), side / target)
        first = torch.where(whole, torch.zeros_like(side), ((target - crop) / 2).round())
        centres = scale * (torch.arange(crop, dtype=torch.float64, device=pixels.device) + first + 0.5)
        apart = (pixels + 0.5 - centres.unsqueeze(1)).abs() / scale.clamp(min=1)
        weights = (1 - apart).clamp(min=0)
        return weights / weights.sum(dim=1, keepdim=True)
