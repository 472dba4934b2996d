"""3x3 convolutions as one matrix product: y = P(x) Wᵀ, where a row of P(x) is the 3x3 patch that an output place sees.

torch's backward of a strided convolution on small images is slow on some CPUs: the demo's steps take half the time as
products (docs/performance.md). Autograd of the product is two products more, dW = gᵀP and Pᵀ(gW), and Pᵀ adds patches
where they came from. F.unfold and F.fold would say the same, more slowly.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_PLACES = 256
"""Output places of an image up to which the product is taken; the fewer, the more it gains."""


class Patches(torch.autograd.Function):
    """P: (B, C, H, W) -> (B, Ho, Wo, 9·C), zeros around the image. Linear, hence its backward has a backward too."""

    @staticmethod
    def forward(x: Tensor, stride: int) -> Tensor:
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
        return padded.unfold(1, 3, stride).unfold(2, 3, stride).permute(0, 1, 2, 4, 5, 3).flatten(3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.size, ctx.stride = inputs[0].shape[2:], inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        height, width = ctx.size
        return add_patches(g, height, width, ctx.stride), None


def add_patches(g: Tensor, height: int, width: int, stride: int) -> Tensor:
    """Pᵀ: (B, Ho, Wo, 9·C) -> (B, C, H, W), patches added where they overlap; the border's part is dropped."""
    batch, rows, columns, _ = g.shape
    g = g.unflatten(3, (3, 3, -1)).transpose(2, 3)
    more = 2 // stride
    # In blocks of the stride's size neighbouring taps are neighbours in memory: four additions at stride 2, not nine.
    blocks = g.new_zeros(batch, rows + more, stride, columns + more, stride, g.shape[-1])
    for i in range(more + 1):
        for j in range(more + 1):
            part = g[:, :, i * stride : (i + 1) * stride, :, j * stride : (j + 1) * stride]
            blocks[:, i : i + rows, : part.shape[2], j : j + columns, : part.shape[4]] += part
    return blocks.flatten(3, 4).flatten(1, 2)[:, 1 : height + 1, 1 : width + 1].permute(0, 3, 1, 2)


def gemm_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """F.conv2d(x, weight, stride=stride, padding=1), 3x3, stride 1 or 2: (B, C_in, H, W) -> (B, C_out, Ho, Wo)."""
    patches: Tensor = Patches.apply(x, stride)  # type: ignore[no-untyped-call]
    return (patches @ weight.permute(0, 2, 3, 1).flatten(1).t()).permute(0, 3, 1, 2)


class GemmConv2d(nn.Conv2d):
    """nn.Conv2d, its parameters and names; trained on a CPU it is `gemm_conv` where that is faster, else as it was."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.is_strided_3x3() and self.is_small(x):
            return gemm_conv(x, self.weight, self.stride[0])
        return super().forward(x)

    def is_strided_3x3(self) -> bool:
        """At stride 1 there are as many places to take patches of as to begin with, and little is gained."""
        ones = (1, 1)
        same = self.padding == self.dilation == ones and self.groups == 1 and self.padding_mode == "zeros"
        return same and self.kernel_size == (3, 3) and self.stride == (2, 2) and self.bias is None

    def is_small(self, x: Tensor) -> bool:
        """Whether x is a batch of small images on a CPU; one that does not fit is left to nn.Conv2d to refuse."""
        fits = x.ndim == 4 and x.shape[1] == self.in_channels and x.dtype == self.weight.dtype
        if not fits or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return False
        return -(-x.shape[2] // 2) * -(-x.shape[3] // 2) <= MOST_PLACES


CONVOLUTIONS = {"gemm": GemmConv2d, "plain": nn.Conv2d}
