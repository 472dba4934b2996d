# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The weight gradient of narrow 3x3 convolutions: dW[o, c, dy, dx] = Σ_bhw x[b, c, h+dy−1, w+dx−1] g[b, o, h, w].

With few channels a library's tiles are mostly empty, and it reads x nine times. Here the sum goes over places of x, in
blocks: the gradients of three kernel rows are g shifted by a row, those of three kernel columns are x shifted by a
place, and both are multiplied with each other, so that six reads serve nine taps. The three shifts of x are one slab of
3·C_in columns: in a channels-last batch, neighbours in a row are neighbours in memory.

Products are of bfloat16, sums are float32: one part a program, added in one order, so that two calls give the same
bits. Forward and the input's gradient are row_conv.py's where it has them, else cuDNN's, as is what is too wide for
this sum.
Functions up to `_add_parts` are Triton's language, as in fused_norm.py.
"""

from __future__ import annotations  # `tl.constexpr` before there is a tl

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from farout.nets.launches import import_triton, launch, multiprocessors, runs_on, wait_for_inputs, waiting
from farout.nets.row_conv import convolve, factors, fits, input_gradient

if TYPE_CHECKING:
    import triton.language as tl

LAUNCH = {
    8: {"block": 128, "slabs": 1, "programs": 2, "few": 1, "num_warps": 4, "num_stages": 3},
    16: {"block": 64, "slabs": 1, "programs": 3, "few": 2, "num_warps": 4, "num_stages": 3},
    32: {"block": 64, "slabs": 2, "programs": 2, "few": 1, "num_warps": 4, "num_stages": 3},
    64: {"block": 64, "slabs": 1, "programs": 2, "few": 2, "num_warps": 4, "num_stages": 3},
}
"""By C_in: places of a block, 64-column slabs that a program keeps sums of, programs to a multiprocessor, and how many
there are to be of these for a small batch: each leaves a part, and parts are bytes, too."""
SMALL = 12
"""Fewer blocks to a program than this are a small batch."""
OUT_CHANNELS = (16, 32, 64)
FEWEST = 8
"""Fewer input channels than this are filled up with zeros: 16 bytes a place, which tensor cores can read."""
SLAB = 64
"""Columns of a slab: the least that Hopper's matrix instruction takes."""
ADD = {"elements": 32, "parts": 64, "num_warps": 4}
"""Of the kernel that adds the parts: elements of a program, and parts at a time."""


# ---- Triton


def _x_slab(x, m, col, j, M, W: tl.constexpr, C: tl.constexpr, FACTORS: tl.constexpr):
    """(BLOCK, SLAB): columns j of [x(m − 1), x(m), x(m + 1)], 0 beyond the image's left and right."""
    tap = j // C
    w = col[:, None] + tap[None, :] - 1
    inside = (m < M)[:, None] & (w >= 0) & (w < W) & (tap < 3)[None, :]
    return tl.load(x + (m - 1)[:, None] * C + j[None, :], mask=inside, other=0.0).to(FACTORS)


def _g_rows(
    g, m, row, o, dy: tl.constexpr, M, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, FACTORS: tl.constexpr
):  # fmt: skip
    """(BLOCK, C): g at the places that see m through kernel row dy, 0 beyond the image's top and bottom."""
    h = row + 1 - dy
    inside = (m < M) & (h >= 0) & (h < H)
    at = g + (m + (1 - dy) * W)[:, None] * C + o[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0).to(FACTORS)


def _add_products(slab, g0, g1, g2, sum0, sum1, sum2):
    x = tl.trans(slab)
    return tl.dot(x, g0, sum0), tl.dot(x, g1, sum1), tl.dot(x, g2, sum2)


def _store_slab(part, j, o, sum0, sum1, sum2, C_IN: tl.constexpr, C_OUT: tl.constexpr):
    at, inside = part + j[:, None] * C_OUT + o[None, :], (j < 3 * C_IN)[:, None]
    tl.store(at, sum0, mask=inside)
    tl.store(at + 3 * C_IN * C_OUT, sum1, mask=inside)
    tl.store(at + 6 * C_IN * C_OUT, sum2, mask=inside)


def _weight_gradient(
    x, g, parts, M, blocks_each,
    H: tl.constexpr, W: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr,
    BLOCK: tl.constexpr, SLABS: tl.constexpr, SLAB: tl.constexpr, FACTORS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """parts (programs, 3, 3·C_in, C_out) ← the sums over `blocks_each` blocks, of SLABS slabs; an axis for the rest."""
    wait_for_inputs(EARLY)
    k, o, j = tl.arange(0, BLOCK), tl.arange(0, C_OUT), tl.program_id(1) * (SLABS * SLAB) + tl.arange(0, SLAB)
    zero = tl.zeros((SLAB, C_OUT), tl.float32)
    a0, a1, a2 = zero, zero, zero
    b0, b1, b2 = zero, zero, zero
    c0, c1, c2 = zero, zero, zero
    first = tl.program_id(0) * blocks_each
    for block in range(first, tl.minimum(first + blocks_each, tl.cdiv(M, BLOCK))):
        m = block * BLOCK + k
        row, col = m // W % H, m % W
        g0 = _g_rows(g, m, row, o, 0, M, H, W, C_OUT, FACTORS)
        g1 = _g_rows(g, m, row, o, 1, M, H, W, C_OUT, FACTORS)
        g2 = _g_rows(g, m, row, o, 2, M, H, W, C_OUT, FACTORS)
        a0, a1, a2 = _add_products(_x_slab(x, m, col, j, M, W, C_IN, FACTORS), g0, g1, g2, a0, a1, a2)
        if SLABS > 1:
            b0, b1, b2 = _add_products(_x_slab(x, m, col, j + SLAB, M, W, C_IN, FACTORS), g0, g1, g2, b0, b1, b2)
        if SLABS > 2:
            c0, c1, c2 = _add_products(_x_slab(x, m, col, j + 2 * SLAB, M, W, C_IN, FACTORS), g0, g1, g2, c0, c1, c2)
    part = parts + tl.program_id(0) * (9 * C_IN * C_OUT)
    _store_slab(part, j, o, a0, a1, a2, C_IN, C_OUT)
    if SLABS > 1:
        _store_slab(part, j + SLAB, o, b0, b1, b2, C_IN, C_OUT)
    if SLABS > 2:
        _store_slab(part, j + 2 * SLAB, o, c0, c1, c2, C_IN, C_OUT)


def _add_parts(
    parts, dw, programs, to_o, to_c, to_dy, to_dx,
    C_IN: tl.constexpr, C_OUT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """dw ← Σ parts, rounded once; dw has the strides of the weight."""
    wait_for_inputs(EARLY)
    size: tl.constexpr = 9 * C_IN * C_OUT
    e, p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PARTS)
    total = tl.zeros((PARTS, BLOCK), tl.float32)
    for start in range(0, programs, PARTS):
        inside = (start + p < programs)[:, None] & (e < size)[None, :]
        total += tl.load(parts + (start + p)[:, None] * size + e[None, :], mask=inside, other=0.0)
    o, c, tap = e % C_OUT, e // C_OUT % C_IN, e // (C_OUT * C_IN)
    at = dw + o * to_o + c * to_c + tap // 3 * to_dy + tap % 3 * to_dx
    tl.store(at, tl.sum(total, axis=0).to(dw.dtype.element_ty), mask=e < size)


# ---- Python again


@cache
def kernels() -> dict[str, Any]:
    """The two kernels by name; their helpers are turned in place, where the kernels look them up."""
    triton, scope = import_triton(), globals()
    scope["tl"], scope["wait_for_inputs"] = triton.language, waiting()
    for function in (_x_slab, _g_rows, _add_products, _store_slab):
        scope[function.__name__] = triton.jit(function)
    return {function.__name__[1:]: triton.jit(function) for function in (_weight_gradient, _add_parts)}


def weight_gradient(x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
    """dW (C_out, C_in, 3, 3), in the type and the strides of weight, from channels-last x and g."""
    (_, c_in, H, W), c_out, how = x.shape, g.shape[1], LAUNCH[x.shape[1]]
    M, axis = x.numel() // c_in, -(-3 * c_in // (SLAB * how["slabs"]))
    blocks, places = -(-M // how["block"]), multiprocessors(x.device)
    each = how["programs"] if blocks * axis >= SMALL * how["programs"] * places else how["few"]
    blocks_each = -(-blocks * axis // (each * places))
    programs = -(-blocks // blocks_each)
    parts = torch.empty(programs * 9 * c_in * c_out, dtype=torch.float32, device=x.device)
    dw = torch.empty_like(weight)
    launch(
        kernels()["weight_gradient"],
        (programs, axis),
        *(x, g, parts, M, blocks_each, H, W, c_in, c_out, how["block"], how["slabs"], SLAB, factors()),
        num_warps=how["num_warps"],
        num_stages=how["num_stages"],
    )
    launch(
        kernels()["add_parts"],
        (-(-9 * c_in * c_out // ADD["elements"]),),
        *(parts, dw, programs, *dw.stride(), c_in, c_out, ADD["parts"], ADD["elements"]),
        num_warps=ADD["num_warps"],
    )
    return dw


STRIDE_1_PADDING_1 = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def is_narrow(weight: Tensor) -> bool:
    """Whether `weight_gradient` has these widths."""
    return weight.shape[1] in LAUNCH and weight.shape[0] in OUT_CHANNELS


def gradient_of_weight(x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
    """dW by our kernels or cuDNN's."""
    if is_narrow(weight):
        return weight_gradient(x, g, weight)
    only_weight = [False, True, False]
    dw: Tensor = torch.ops.aten.convolution_backward(g, x, weight, None, *STRIDE_1_PADDING_1, only_weight)[1]
    return dw


def gradient_of_input(x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
    """dx by our kernels or cuDNN's."""
    c_out, c_in = weight.shape[:2]
    if fits(c_out, c_in, g.shape[3]):
        return input_gradient(g, weight)
    only_x = [True, False, False]
    dx: Tensor = torch.ops.aten.convolution_backward(g, x, weight, None, *STRIDE_1_PADDING_1, only_x)[0]
    return dx


class _FusedConv(torch.autograd.Function):
    """(x, weight) -> conv(x, weight) with gradients of both; once differentiable."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        if not fits(x.shape[1], weight.shape[0], x.shape[3]):
            return torch.ops.aten.convolution(x, weight, None, *STRIDE_1_PADDING_1)
        with torch.cuda.device_of(x):
            return convolve(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x, weight), dx, dw = ctx.saved_tensors, None, None
        g = g.contiguous(memory_format=torch.channels_last)
        with torch.cuda.device_of(x):
            if ctx.needs_input_grad[1]:
                dw = gradient_of_weight(x, g, weight)
            if ctx.needs_input_grad[0]:
                dx = gradient_of_input(x, g, weight)
        return dx, dw


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels fit: a weight's gradient will be wanted, of channels-last bfloat16 and widths we have."""
    return is_narrow(weight) and trains(x, weight)


def trains(x: Tensor, weight: Tensor) -> bool:
    """Whether a convolution of x could be ours, whatever its width: it is to learn, in channels-last bfloat16."""
    if not (weight.requires_grad and torch.is_grad_enabled() and x.ndim == 4 and runs_on(x)):
        return False
    meant = x.shape[1] == weight.shape[1] and x.numel() > 0
    small = x.numel() // x.shape[1] * max(weight.shape[:2]) < 2**31
    laid = x.is_contiguous(memory_format=torch.channels_last)
    return meant and small and laid and x.dtype == weight.dtype == torch.bfloat16


def widened(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both with zero channels up to FEWEST, in the weight's type; the convolution of them is the same."""
    x = x.to(weight.dtype, memory_format=torch.channels_last)
    more = (0, 0, 0, 0, 0, FEWEST - x.shape[1])
    return F.pad(x, more), F.pad(weight, more)


class FusedConv2d(nn.Conv2d):
    """nn.Conv2d; with a 3x3 kernel and a weight cast to bfloat16 (cast_weights.py), by our kernels where `usable`."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if not self.is_plain_3x3() or weight.dtype != torch.bfloat16:
            return super().forward(x)
        if x.ndim == 4 and x.shape[1] == self.in_channels < FEWEST and runs_on(x):
            x, weight = widened(x, weight)
        if usable(x, weight):
            out: Tensor = _FusedConv.apply(x, weight)
            return out
        return F.conv2d(x, weight, padding=1)

    def is_plain_3x3(self) -> bool:
        ones = (1, 1)
        same = self.stride == self.padding == self.dilation == ones and self.groups == 1
        return same and self.kernel_size == (3, 3) and self.bias is None and self.padding_mode == "zeros"
