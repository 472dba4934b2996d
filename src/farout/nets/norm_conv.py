# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""A norm and the convolution after it as one step: y = dropout(ReLU(BN(s))), out = conv(y) + add.

Half a pre-activation block. Taken together, the convolution adds the shortcut and sums `out` for the norm that comes
next: a pass over the batch that has no launch of its own. s comes back beside `out`, so that the shortcut's gradient is
added where the norm's is written.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from farout.nets import fused_conv, fused_norm
from farout.nets.fused_conv import FusedConv2d, gradient_of_input, gradient_of_weight
from farout.nets.fused_norm import Mask, Moments, backward_apply, backward_sums, forward_apply, rows_of_channels
from farout.nets.row_conv import convolve_with_sums, fits


class Summands(NamedTuple):
    """s = x + residual, not yet added: the next norm does that in its own pass. `moments`: of s, where they are known
    and s is x."""

    x: Tensor
    residual: Tensor | None = None
    moments: Moments | None = None

    def total(self) -> Tensor:
        return self.x if self.residual is None else self.residual + self.x


class _NormConv(torch.autograd.Function):
    """(x, residual, bn's weight and bias, conv's weight, add) -> (s, out, parts of out's sums); once differentiable."""

    @staticmethod
    def forward(ctx, x, residual, gamma, beta, weight, add, bn, moments, mask, origin):
        ctx.set_materialize_grads(False)  # a shortcut that is not used needs no zeros
        with torch.cuda.device_of(x):
            s, stats = fused_norm.sum_and_statistics(x, residual, bn, moments)
            y = forward_apply(s, stats, gamma, beta, mask)
            out, parts = convolve_with_sums(y, weight, add, origin)
        ctx.save_for_backward(s, stats, gamma, beta, mask.seed, y, weight)
        ctx.threshold, ctx.has_residual, ctx.has_add = mask.threshold, residual is not None, add is not None
        ctx.mark_non_differentiable(parts)
        return s, out, parts

    @staticmethod
    @once_differentiable
    def backward(ctx, ds, g, _):
        s, stats, gamma, beta, seed, y, weight = ctx.saved_tensors
        if g is None:
            return ds, ds if ctx.has_residual else None, *[None] * 8
        g, mask = rows_of_channels(g), Mask(seed, ctx.threshold)
        ds = None if ds is None else rows_of_channels(ds)
        with torch.cuda.device_of(s):
            dw = gradient_of_weight(y, g, weight) if ctx.needs_input_grad[4] else None
            dy = gradient_of_input(y, g, weight)
            gradients = backward_sums(s, dy, stats, gamma, beta, mask)
            dx = backward_apply(s, dy, ds, stats, gamma, beta, gradients, mask)
        shared = dx if ctx.has_residual else None
        return dx, shared, gradients[0], gradients[1], dw, g if ctx.has_add else None, *[None] * 4


def usable(bn: nn.BatchNorm2d, conv: nn.Conv2d, x: Summands, add: Tensor | None, rate: float) -> bool:
    """Whether the kernels fit; if not, `triton_norm_conv` is a norm and a convolution, each as it can."""
    if not isinstance(conv, FusedConv2d) or not conv.is_plain_3x3() or not fused_norm.usable(*x[:2], bn, rate):
        return False
    c_out, c_in = conv.weight.shape[:2]
    has = fits(c_in, c_out, x.x.shape[3], sums=True)
    if add is not None:
        has &= add.dtype == x.x.dtype and add.is_contiguous(memory_format=torch.channels_last)
        has &= add.shape == (x.x.shape[0], c_out, *x.x.shape[2:])
    return has and fused_conv.trains(x.x, conv.weight)


def plain_norm_conv(
    bn: nn.BatchNorm2d,
    conv: nn.Conv2d,
    x: Summands,
    add: Tensor | None = None,
    dropout: nn.Dropout | None = None,
    seed: Tensor | None = None,
    origin: Tensor | None = None,
) -> tuple[Tensor, Summands]:
    """s and (conv(dropout(ReLU(bn(s)))), add), op by op; `seed` and `origin` are not used."""
    s, y = fused_norm.plain_norm(bn, *x[:2], dropout)
    return s, Summands(conv(y), add)


def triton_norm_conv(
    bn: nn.BatchNorm2d,
    conv: nn.Conv2d,
    x: Summands,
    add: Tensor | None = None,
    dropout: nn.Dropout | None = None,
    seed: Tensor | None = None,
    origin: Tensor | None = None,
) -> tuple[Tensor, Summands]:
    """`plain_norm_conv` with the sum done and its moments known, where `usable`.

    Squares are summed around `origin`, C_out numbers near the mean of what comes out; by default `add`'s first place.
    """
    origin = add if origin is None else origin
    if origin is None or not usable(bn, conv, x, add, fused_norm.rate_of(dropout)):
        s, y = fused_norm.triton_norm(bn, *x[:2], dropout, seed, x.moments)
        return s, Summands(conv(y), add)
    mask = fused_norm.make_mask(dropout, seed, x.x.device)
    given = (*x[:2], bn.weight, bn.bias, conv.weight, add, bn, x.moments, mask, origin.detach())
    s, out, parts = _NormConv.apply(*given)
    return s, Summands(out, None, Moments(parts, origin.detach()))
