# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""What stands between two convolutions, in few passes over memory: s = x + residual, y = dropout(ReLU(BN(s))).

A training step of WRN-40-2 spends half its time in these passes, and they are bound by bytes. `triton_norm` reads x
and the residual once for s and its statistics, and s once for y; backward reads (s, dy) twice and writes dx.

Sums are made of one part a program, added in one order: two calls give the same bits. Dropout's mask is a hash of an
element's place and the layer's seed, so backward makes it again and nothing is stored. One hash serves two elements,
16 bits each: those of row m and row m + half. Rates are therefore multiples of 2^-16, and what is kept is divided by
the rate so rounded. Matrices are (M, C), a channels-last batch with M = B·H·W rows.
Functions up to `_apply_gradient` are Triton's language and become kernels at the first call: farout works without
triton, and `tl` below is then never looked up.
"""

from __future__ import annotations  # `tl.constexpr` before there is a tl

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from farout.nets.launches import import_triton, launch, multiprocessors, runs_on, wait_for_inputs, waiting

if TYPE_CHECKING:
    import triton.language as tl

LAUNCH = {
    "statistics": {"elements": 4096, "num_warps": 4},
    "apply": {"elements": 1024, "num_warps": 4},
    "reduce_gradient": {"elements": 1024, "num_warps": 4},
    "apply_gradient": {"elements": 1024, "num_warps": 4},
}
"""Elements of a block (a program takes a block of each half at a time) and warps of a program, kernel by kernel."""
PROGRAMS = {"statistics": 8, "reduce_gradient": 4}
"""Programs to a multiprocessor in the kernels that sum: each leaves one part."""
LEVELS = 1 << 16
"""Steps of a dropout rate."""
MAX_CHANNELS = 1024


# ---- Triton


def _hash(index, key, other):
    """32 well-mixed bits of (index, key): a finaliser of two multiplications; `other` comes between them."""
    h = index.to(tl.uint32) ^ key
    h ^= h >> 16
    h *= 0x7FEB352D
    h ^= other
    h ^= h >> 15
    h *= 0x846CA68B
    h ^= h >> 16
    return h


def _bits(seed, row, c, C: tl.constexpr, DROPOUT: tl.constexpr):
    """The hashes of a block of the first half; their low bits are for that half, their high bits for the second.

    Seeds that differ at all differ in the key, so that their masks have nothing in common.
    """
    bits = (row[:, None] * C + c[None, :]).to(tl.uint32)
    if DROPOUT:
        other = _hash(tl.load(seed + 1), 0, 0)
        bits = _hash(bits, _hash(tl.load(seed), other, 0), other)
    return bits


def _read(matrix, row, c, inside, C: tl.constexpr):
    return tl.load(matrix + row[:, None] * C + c[None, :], mask=inside[:, None], other=0.0).to(tl.float32)


def _write(matrix, row, c, inside, value, C: tl.constexpr):
    at = matrix + row[:, None] * C + c[None, :]
    tl.store(at, value.to(matrix.dtype.element_ty), mask=inside[:, None])


def _deviation(x, residual, s, row, c, inside, origin, C: tl.constexpr, HAS_RESIDUAL: tl.constexpr):
    """s − origin for one block, 0 outside; writes s where it is not x. Statistics are of s as it is stored."""
    if HAS_RESIDUAL:
        at = row[:, None] * C + c[None, :]
        left = tl.load(x + at, mask=inside[:, None], other=0.0, eviction_policy="evict_first").to(tl.float32)
        right = tl.load(residual + at, mask=inside[:, None], other=0.0, eviction_policy="evict_first").to(tl.float32)
        rounded = (left + right).to(s.dtype.element_ty)
        tl.store(s + at, rounded, mask=inside[:, None])
        value = rounded.to(tl.float32)
    else:
        value = _read(x, row, c, inside, C)
    return tl.where(inside[:, None], value - origin[None, :], 0.0)


def _origin(x, residual, s, c, HAS_RESIDUAL: tl.constexpr):
    """The first row of s: sums of squares around it lose no digits to a large mean."""
    first = tl.load(x + c).to(tl.float32)
    if HAS_RESIDUAL:
        first = (first + tl.load(residual + c).to(tl.float32)).to(s.dtype.element_ty).to(tl.float32)
    return first


def _statistics(
    x, residual, s, parts, M, half, HAS_RESIDUAL: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """s ← x + residual; parts (2, C, programs) ← Σ(s − origin), Σ(s − origin)² of the rows this program took."""
    wait_for_inputs(EARLY)
    c, r = tl.arange(0, C), tl.arange(0, BLOCK)
    origin = _origin(x, residual, s, c, HAS_RESIDUAL)
    total, squares = tl.zeros((BLOCK, C), tl.float32), tl.zeros((BLOCK, C), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(half, BLOCK), tl.num_programs(0)):
        row = block * BLOCK + r
        one = _deviation(x, residual, s, row, c, row < half, origin, C, HAS_RESIDUAL)
        two = _deviation(x, residual, s, row + half, c, (row < half) & (row + half < M), origin, C, HAS_RESIDUAL)
        total += one + two
        squares += one * one + two * two
    at = c * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts + at, tl.sum(total, axis=0))
    tl.store(parts + C * tl.num_programs(0) + at, tl.sum(squares, axis=0))


def _part_sums(parts, programs, C: tl.constexpr, PARTS: tl.constexpr):
    """The two sums of this program's channel."""
    p = tl.arange(0, PARTS)
    at = tl.program_id(0) * programs + p
    first = tl.load(parts + at, mask=p < programs, other=0.0)
    second = tl.load(parts + C * programs + at, mask=p < programs, other=0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


def _moved(running, c, new, momentum):
    tl.store(running + c, (1.0 - momentum) * tl.load(running + c) + momentum * new)


def _finish_statistics(
    origin, parts, stats, running_mean, running_var, tracked, M, programs, momentum, eps,
    C: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """stats (2, C) ← mean, 1 / sqrt(var + eps); running statistics move as nn.BatchNorm2d's. A program a channel.

    The origin may be the running mean, which is read before it moves.
    """
    wait_for_inputs(EARLY)
    c = tl.program_id(0)
    total, squares = _part_sums(parts, programs, C, PARTS)
    shift = total / M
    spread = squares - total * shift
    spread = tl.where(spread < 0, 0.0, spread)  # not a maximum: a NaN stays one
    mean = tl.load(origin + c).to(tl.float32) + shift
    tl.store(stats + c, mean)
    tl.store(stats + C + c, 1.0 / tl.sqrt(spread / M + eps))
    _moved(running_mean, c, mean, momentum)
    _moved(running_var, c, spread / (M - 1), momentum)
    if c == 0:
        tl.store(tracked, tl.load(tracked) + 1)


def _through(value, z, bits, threshold, factor, DROPOUT: tl.constexpr):
    """`value` where ReLU and dropout let z through; a NaN in z is let through."""
    value = tl.where(z <= 0, 0.0, value)
    if DROPOUT:
        value = tl.where(bits < threshold, 0.0, value * factor)
    return value


def _apply_half(
    s, y, row, c, inside, mean, scale, shift, bits, threshold, factor, C: tl.constexpr, DROPOUT: tl.constexpr
):  # fmt: skip
    z = (_read(s, row, c, inside, C) - mean[None, :]) * scale[None, :] + shift[None, :]
    _write(y, row, c, inside, _through(z, z, bits, threshold, factor, DROPOUT), C)


def _apply(
    s, stats, weight, bias, seed, y, M, half, threshold, factor,
    C: tl.constexpr, BLOCK: tl.constexpr, DROPOUT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """y ← dropout(ReLU((s − mean)·weight/std + bias)). Last rows first: the cache still holds those."""
    wait_for_inputs(EARLY)
    c = tl.arange(0, C)
    row = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    mean, scale, shift = tl.load(stats + c), tl.load(weight + c) * tl.load(stats + C + c), tl.load(bias + c)
    inside, later = row < half, (row < half) & (row + half < M)
    bits = _bits(seed, row, c, C, DROPOUT)
    _apply_half(s, y, row, c, inside, mean, scale, shift, bits & 0xFFFF, threshold, factor, C, DROPOUT)
    _apply_half(s, y, row + half, c, later, mean, scale, shift, bits >> 16, threshold, factor, C, DROPOUT)


def _gradient_half(
    s, dy, row, c, inside, mean, scale, shift, bits, threshold, factor, C: tl.constexpr, DROPOUT: tl.constexpr
):  # fmt: skip
    """s − mean, and dz: the gradient of BN's output. Both 0 outside, or harmless there: dz is 0."""
    centred = _read(s, row, c, inside, C) - mean[None, :]
    z = centred * scale[None, :] + shift[None, :]
    return centred, _through(_read(dy, row, c, inside, C), z, bits, threshold, factor, DROPOUT)


def _reduce_gradient(
    s, dy, stats, weight, bias, seed, parts, M, half, threshold, factor,
    C: tl.constexpr, BLOCK: tl.constexpr, DROPOUT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """parts (2, C, programs) ← Σ dz, Σ dz·(s − mean) of the rows this program took."""
    wait_for_inputs(EARLY)
    c, r = tl.arange(0, C), tl.arange(0, BLOCK)
    mean, scale, shift = tl.load(stats + c), tl.load(weight + c) * tl.load(stats + C + c), tl.load(bias + c)
    total, products = tl.zeros((BLOCK, C), tl.float32), tl.zeros((BLOCK, C), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(half, BLOCK), tl.num_programs(0)):
        row = block * BLOCK + r
        inside, later = row < half, (row < half) & (row + half < M)
        bits = _bits(seed, row, c, C, DROPOUT)
        one, dz_one = _gradient_half(
            s, dy, row, c, inside, mean, scale, shift, bits & 0xFFFF, threshold, factor, C, DROPOUT
        )
        two, dz_two = _gradient_half(
            s, dy, row + half, c, later, mean, scale, shift, bits >> 16, threshold, factor, C, DROPOUT
        )
        total += dz_one + dz_two
        products += dz_one * one + dz_two * two
    at = c * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts + at, tl.sum(total, axis=0))
    tl.store(parts + C * tl.num_programs(0) + at, tl.sum(products, axis=0))


def _finish_gradient(parts, stats, gradients, programs, C: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr):
    """gradients (2, C) ← those of weight, Σ dz·x̂, and of bias, Σ dz. A program a channel."""
    wait_for_inputs(EARLY)
    c = tl.program_id(0)
    total, products = _part_sums(parts, programs, C, PARTS)
    tl.store(gradients + c, products * tl.load(stats + C + c))
    tl.store(gradients + C + c, total)


def _dx_half(
    s, dy, ds, dx, row, c, inside, mean, scale, shift, slope, level, bits, threshold, factor,
    HAS_DS: tl.constexpr, C: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    centred, dz = _gradient_half(s, dy, row, c, inside, mean, scale, shift, bits, threshold, factor, C, DROPOUT)
    value = scale[None, :] * dz - (slope[None, :] * centred + level[None, :])
    if HAS_DS:
        value += _read(ds, row, c, inside, C)
    _write(dx, row, c, inside, value, C)


def _apply_gradient(
    s, dy, ds, stats, weight, bias, seed, gradients, dx, M, half, threshold, factor,
    HAS_DS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, DROPOUT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """dx ← weight/std·(dz − mean dz − x̂·mean(dz·x̂)) + ds. Last rows first, as in `_apply`."""
    wait_for_inputs(EARLY)
    c = tl.arange(0, C)
    row = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    mean, inverse, shift = tl.load(stats + c), tl.load(stats + C + c), tl.load(bias + c)
    scale = tl.load(weight + c) * inverse
    slope = scale * inverse * tl.load(gradients + c) / M
    level = scale * tl.load(gradients + C + c) / M
    inside, later = row < half, (row < half) & (row + half < M)
    bits = _bits(seed, row, c, C, DROPOUT)
    _dx_half(
        s, dy, ds, dx, row, c, inside, mean, scale, shift, slope, level, bits & 0xFFFF, threshold, factor,
        HAS_DS, C, DROPOUT,
    )  # fmt: skip
    _dx_half(
        s, dy, ds, dx, row + half, c, later, mean, scale, shift, slope, level, bits >> 16, threshold, factor,
        HAS_DS, C, DROPOUT,
    )  # fmt: skip


# ---- Python again


@cache
def kernels() -> dict[str, Any]:
    """The six kernels by name, triton imported; their helpers are turned in place, where the kernels look them up."""
    triton, scope = import_triton(), globals()
    scope["tl"], scope["wait_for_inputs"] = triton.language, waiting()
    helpers = [_hash, _bits, _read, _write, _deviation, _origin, _part_sums, _moved, _through]
    for function in [*helpers, _apply_half, _gradient_half, _dx_half]:
        scope[function.__name__] = triton.jit(function)
    whole = [_statistics, _finish_statistics, _apply, _reduce_gradient, _finish_gradient, _apply_gradient]
    return {function.__name__[1:]: triton.jit(function) for function in whole}


class Layout(NamedTuple):
    """A channels-last batch as a matrix (M, C), cut into two halves of rows."""

    M: int
    C: int
    device: torch.device

    @property
    def half(self) -> int:
        return (self.M + 1) // 2

    def blocks(self, name: str) -> int:
        return -(-self.half // self.rows(name))

    def rows(self, name: str) -> int:
        """Rows of a block of kernel `name`."""
        return max(1, LAUNCH[name]["elements"] // self.C)

    def programs(self, name: str) -> int:
        """How many parts the sums of kernel `name` are made of."""
        return min(self.blocks(name), PROGRAMS[name] * multiprocessors(self.device))

    def options(self, name: str) -> dict[str, int]:
        return {"C": self.C, "BLOCK": self.rows(name), "num_warps": LAUNCH[name]["num_warps"]}


def layout(x: Tensor) -> Layout:
    return Layout(x.numel() // x.shape[1], x.shape[1], x.device)


def threshold(rate: float) -> int:
    """The 16-bit numbers below it are dropped."""
    return round(rate * LEVELS)


class Mask(NamedTuple):
    """Dropout as kernels take it; without a seed, none."""

    seed: Tensor | None
    threshold: int

    def arguments(self) -> tuple[int, float]:
        """The threshold, and what is kept is multiplied by: 1 / (1 − rate)."""
        return self.threshold, LEVELS / (LEVELS - self.threshold)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


class Moments(NamedTuple):
    """Sums of a batch that its maker left: parts (2, C, programs) of Σ(x − origin), Σ(x − origin)²; origin's first C
    numbers count."""

    parts: Tensor
    origin: Tensor


def forward_statistics(x: Tensor, residual: Tensor | None, bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """s and stats (2, C) = mean, 1/std; moves bn's running statistics."""
    at = layout(x)
    programs = at.programs("statistics")
    s = x if residual is None else torch.empty_like(x)
    parts = torch.empty(2, at.C, programs, dtype=torch.float32, device=x.device)
    launch(
        kernels()["statistics"],
        (programs,),
        *(x, residual, s, parts, at.M, at.half),
        HAS_RESIDUAL=residual is not None,
        **at.options("statistics"),
    )
    return s, finish_statistics(parts, s, bn, at.M)


def finish_statistics(parts: Tensor, origin: Tensor, bn: nn.BatchNorm2d, M: int) -> Tensor:
    """stats (2, C) = mean, 1/std from parts (2, C, programs) around the first C numbers of `origin`; moves bn's own."""
    _, C, programs = parts.shape
    stats = torch.empty(2, C, dtype=torch.float32, device=parts.device)
    launch(
        kernels()["finish_statistics"],
        (C,),
        *(origin, parts, stats, bn.running_mean, bn.running_var, bn.num_batches_tracked),
        *(M, programs, bn.momentum, bn.eps),
        C=C,
        PARTS=_power_of_two(programs),
        num_warps=1 if programs <= 256 else 4,
    )
    return stats


def sum_and_statistics(
    x: Tensor, residual: Tensor | None, bn: nn.BatchNorm2d, moments: Moments | None
) -> tuple[Tensor, Tensor]:
    """`forward_statistics`, or only its end where the sums of x are there already."""
    if moments is None:
        return forward_statistics(x, residual, bn)
    assert residual is None, "moments are of a sum that is done"
    return x, finish_statistics(*moments, bn, layout(x).M)


def forward_apply(s: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, mask: Mask) -> Tensor:
    """y = dropout(ReLU(BN(s)))."""
    at, y = layout(s), torch.empty_like(s)
    launch(
        kernels()["apply"],
        (at.blocks("apply"),),
        *(s, stats, weight, bias, mask.seed, y, at.M, at.half, *mask.arguments()),
        DROPOUT=mask.seed is not None,
        **at.options("apply"),
    )
    return y


def backward_sums(s: Tensor, dy: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, mask: Mask) -> Tensor:
    """(2, C): the gradients of weight and bias."""
    at = layout(s)
    programs = at.programs("reduce_gradient")
    parts = torch.empty(2, at.C, programs, dtype=torch.float32, device=s.device)
    gradients = torch.empty(2, at.C, dtype=torch.float32, device=s.device)
    launch(
        kernels()["reduce_gradient"],
        (programs,),
        *(s, dy, stats, weight, bias, mask.seed, parts, at.M, at.half, *mask.arguments()),
        DROPOUT=mask.seed is not None,
        **at.options("reduce_gradient"),
    )
    launch(
        kernels()["finish_gradient"],
        (at.C,),
        *(parts, stats, gradients, programs),
        C=at.C,
        PARTS=_power_of_two(programs),
        num_warps=1 if programs <= 256 else 4,
    )
    return gradients


def backward_apply(
    s: Tensor,
    dy: Tensor,
    ds: Tensor | None,
    stats: Tensor,
    weight: Tensor,
    bias: Tensor,
    gradients: Tensor,
    mask: Mask,
) -> Tensor:
    """The gradient of x, which is also that of the residual."""
    at, dx = layout(s), torch.empty_like(s)
    launch(
        kernels()["apply_gradient"],
        (at.blocks("apply_gradient"),),
        *(s, dy, ds, stats, weight, bias, mask.seed, gradients, dx, at.M, at.half, *mask.arguments()),
        HAS_DS=ds is not None,
        DROPOUT=mask.seed is not None,
        **at.options("apply_gradient"),
    )
    return dx


def rows_of_channels(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


class _FusedNorm(torch.autograd.Function):
    """(x, residual, weight, bias) -> (s, y) with gradients of all four; once differentiable."""

    @staticmethod
    def forward(ctx, x, residual, weight, bias, bn, moments, mask):
        ctx.set_materialize_grads(False)  # most s are not used again: no zeros for them
        with torch.cuda.device_of(x):
            s, stats = sum_and_statistics(x, residual, bn, moments)
            y = forward_apply(s, stats, weight, bias, mask)
        ctx.save_for_backward(s, stats, weight, bias, mask.seed)
        ctx.threshold, ctx.has_residual = mask.threshold, residual is not None
        return s, y

    @staticmethod
    @once_differentiable
    def backward(ctx, ds, dy):
        s, stats, weight, bias, seed = ctx.saved_tensors
        if dy is None:
            return ds, ds if ctx.has_residual else None, *[None] * 5
        dy, mask = rows_of_channels(dy), Mask(seed, ctx.threshold)
        ds = None if ds is None else rows_of_channels(ds)
        with torch.cuda.device_of(s):
            gradients = backward_sums(s, dy, stats, weight, bias, mask)
            dx = backward_apply(s, dy, ds, stats, weight, bias, gradients, mask)
        return dx, dx if ctx.has_residual else None, gradients[0], gradients[1], *[None] * 3


def usable(x: Tensor, residual: Tensor | None, bn: nn.BatchNorm2d, rate: float) -> bool:
    """Whether the kernels fit; if not, `triton_norm` is `plain_norm`.

    They are for training, float32 or bfloat16 channels-last batches of a power of two of channels, and an ordinary
    batch norm: affine in float32, with running statistics and a momentum.
    """
    C = x.shape[1]
    if isinstance(bn, nn.SyncBatchNorm):  # its statistics are those of all ranks
        return False
    if not bn.training or bn.momentum is None or bn.weight is None or bn.running_mean is None or not runs_on(x):
        return False
    fits = x.ndim == 4 and 8 <= C <= MAX_CHANNELS and C & (C - 1) == 0 and C < x.numel() < 2**31
    typed = x.dtype in (torch.float32, torch.bfloat16) and bn.weight.dtype == bn.running_mean.dtype == torch.float32
    laid = x.is_contiguous(memory_format=torch.channels_last)
    if residual is not None:
        laid &= residual.shape == x.shape and residual.is_contiguous(memory_format=torch.channels_last)
        typed &= residual.dtype == x.dtype
    return fits and typed and laid and threshold(rate) < LEVELS


def plain_norm(
    bn: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None = None,
    dropout: nn.Dropout | None = None,
    seed: Tensor | None = None,
    moments: Moments | None = None,
) -> tuple[Tensor, Tensor]:
    """s = x + residual and y = dropout(ReLU(bn(s))), op by op; (B, C, H, W) each. `seed`, `moments` are not used."""
    s = x if residual is None else residual + x
    y = F.relu(bn(s), inplace=True)
    return s, y if dropout is None else dropout(y)


def rate_of(dropout: nn.Dropout | None) -> float:
    return dropout.p if dropout is not None and dropout.training else 0.0


def make_mask(dropout: nn.Dropout | None, seed: Tensor | None, device: torch.device) -> Mask:
    """From `seed`, drawn here if there is none and dropout wants one."""
    level = threshold(rate_of(dropout))
    if not level:
        seed = None
    elif seed is None:
        seed = draw_seeds(1, device)[0]
    return Mask(seed, level)


def triton_norm(
    bn: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None = None,
    dropout: nn.Dropout | None = None,
    seed: Tensor | None = None,
    moments: Moments | None = None,
) -> tuple[Tensor, Tensor]:
    """`plain_norm` in three launches where `usable`, one less where x's moments are known; the mask comes of `seed`."""
    if not usable(x, residual, bn, rate_of(dropout)):
        return plain_norm(bn, x, residual, dropout)
    s, y = _FusedNorm.apply(x, residual, bn.weight, bn.bias, bn, moments, make_mask(dropout, seed, x.device))
    return s, y


def draw_seeds(layers: int, device: torch.device) -> Tensor:
    """(layers, 4) int32 from torch's generator of the device, so that a replayed CUDA graph draws new ones.

    Kernels read two words of a layer's four: a row of 16 bytes is aligned as Triton likes it.
    """
    return torch.randint(-(2**31), 2**31, (layers, 4), dtype=torch.int32, device=device)


def no_seeds(x: Tensor, layers: int) -> list[Tensor | None]:
    """Plain dropout draws for itself."""
    return [None] * layers


def layer_seeds(x: Tensor, layers: int) -> list[Tensor | None]:
    """All layers' seeds in one launch, where kernels will read them."""
    return list(draw_seeds(layers, x.device)) if runs_on(x) else no_seeds(x, layers)
