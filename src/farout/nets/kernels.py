"""`net.kernels`: how a network computes while it trains; "triton" is for GPUs, and "plain" wherever it does not fit."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from torch import Tensor, nn

from farout.nets.cast_weights import cast_weights, own_weights
from farout.nets.fused_conv import FusedConv2d
from farout.nets.fused_norm import layer_seeds, no_seeds, plain_norm, triton_norm
from farout.nets.norm_conv import Summands, plain_norm_conv, triton_norm_conv


class Kernels(NamedTuple):
    """The norms, alone and with a convolution after them, the seeds of their dropout, the convolutions, and the weights
    these see in a forward pass."""

    norm: Callable[..., tuple[Tensor, Tensor]]
    norm_conv: Callable[..., tuple[Tensor, Summands]]
    seeds: Callable[[Tensor, int], list[Tensor | None]]
    conv: type[nn.Conv2d]
    weights: Callable[[nn.Module, Tensor], AbstractContextManager[None]]


KERNELS = {
    "plain": Kernels(plain_norm, plain_norm_conv, no_seeds, nn.Conv2d, own_weights),
    "triton": Kernels(triton_norm, triton_norm_conv, layer_seeds, FusedConv2d, cast_weights),
}
