# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""3x3 convolutions of stride 1, out = conv(x) + add, the sums of out that a batch norm needs, and the input's gradient.

With few channels a convolution is bound by how often x is read. `row_conv` walks down the rows of a few images: a row,
read at its three shifts, meets all nine taps at once, and adds to the three rows of the output that see it; x comes
three times instead of nine, and the weights stay where they are. `tap_conv` is for wide layers, whose weights do not
fit beside the images: an ordinary product, tap by tap.

While a tile of the output is at hand, it can be summed up for the batch norm that comes next, channel by channel:
Σ(out − origin), Σ(out − origin)², one part a program, so that two calls give the same bits. The input's gradient is the
same convolution with the weight turned over, which is a matter of strides. Products are of bfloat16, sums float32; what
is stored is rounded once, and summed as stored.
Functions up to `_tap_conv` are Triton's language, as in fused_norm.py.
"""

from __future__ import annotations  # `tl.constexpr` before there is a tl

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from farout.nets.launches import import_triton, interpreted, launch, multiprocessors, wait_for_inputs, waiting

if TYPE_CHECKING:
    import triton.language as tl


class Launch(NamedTuple):
    """Places and output channels of a program; `split` is how many programs a multiprocessor holds (`row_conv`: they
    share an image's rows), or how many input channels come at a time (`tap_conv`)."""

    kernel: str
    block: int
    width: int
    split: int
    num_warps: int
    num_stages: int


LAUNCH = {
    (8, 16, False): Launch("row_conv", 64, 16, 4, 4, 3),
    (16, 32, False): Launch("row_conv", 64, 32, 4, 4, 3),
    (32, 16, False): Launch("row_conv", 64, 16, 4, 4, 3),
    (32, 32, False): Launch("row_conv", 64, 32, 3, 4, 3),
    (32, 32, True): Launch("row_conv", 64, 32, 3, 4, 3),
    (64, 64, False): Launch("tap_conv", 128, 64, 64, 4, 3),
    (64, 64, True): Launch("tap_conv", 128, 64, 64, 4, 3),
    (128, 128, True): Launch("tap_conv", 128, 64, 64, 4, 3),
}
"""By channels in, channels out, and whether the output is summed: the fastest that benchmarks/bench_fused.py found on
an H200, where they beat what they replace."""


# ---- Triton


def _added(add, m, o, inside, otherwise, C: tl.constexpr, ADD: tl.constexpr):
    """(BLOCK, WIDTH) of what is added to the output, read before it is needed."""
    value = otherwise
    if ADD:
        value = tl.load(add + m[:, None] * C + o[None, :], mask=inside[:, None], other=0.0)
    return value


def _write_tile(
    acc, added, out, origin, m, o, inside, C: tl.constexpr, ADD: tl.constexpr, SUMS: tl.constexpr
):  # fmt: skip
    """Writes a tile of the output, rounded, and gives what is summed: out − origin, 0 outside."""
    if ADD:
        acc += added.to(tl.float32)
    rounded = acc.to(out.dtype.element_ty)
    tl.store(out + m[:, None] * C + o[None, :], rounded, mask=inside[:, None])
    off = acc
    if SUMS:
        level = tl.load(origin + o).to(tl.float32)  # only now: it fills registers
        off = tl.where(inside[:, None], rounded.to(tl.float32) - level[None, :], 0.0)
    return off


def _store_sums(parts, o, total, squares, C: tl.constexpr):
    """Into parts (2, C, programs)."""
    programs = tl.num_programs(0)
    at = parts + o * programs + tl.program_id(0)
    tl.store(at, tl.sum(total, axis=0))
    tl.store(at + C * programs, tl.sum(squares, axis=0))


def _tap(weight, c, o, to_in, to_out, C_IN: tl.constexpr, FACTORS: tl.constexpr):
    at = weight + c[:, None] * to_in + o[None, :] * to_out
    if C_IN < 16:
        value = tl.load(at, mask=(c < C_IN)[:, None], other=0.0)
    else:
        value = tl.load(at)
    return value.to(FACTORS)


def _places(at, inside, c, C_IN: tl.constexpr, FACTORS: tl.constexpr):
    """x at some places, 0 outside, and in the channels that fill 8 up to the 16 of a product."""
    mask = inside[:, None]
    if C_IN < 16:
        mask &= (c < C_IN)[None, :]
    return tl.load(at, mask=mask, other=0.0).to(FACTORS)


def _row_conv(
    x, weight, out, add, origin, parts, images, ranges, rows_each, to_in, to_out, to_dy, to_dx,
    H: tl.constexpr, W: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr, SUMS: tl.constexpr, FACTORS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A program: BLOCK // W images, `rows_each` rows of them, WIDTH output channels."""
    wait_for_inputs(EARLY)
    DEPTH: tl.constexpr = 16 if C_IN < 16 else C_IN
    k, c, o = tl.arange(0, BLOCK), tl.arange(0, DEPTH), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    group = tl.program_id(0) // ranges
    image, col = group * (BLOCK // W) + k // W, k % W
    here = (k < BLOCK // W * W) & (image < images)
    first = (tl.program_id(0) - group * ranges) * rows_each
    last = tl.minimum(first + rows_each, H)
    place = image * (H * W) + col
    w00 = _tap(weight, c, o, to_in, to_out, C_IN, FACTORS)
    w01 = _tap(weight + to_dx, c, o, to_in, to_out, C_IN, FACTORS)
    w02 = _tap(weight + 2 * to_dx, c, o, to_in, to_out, C_IN, FACTORS)
    w10 = _tap(weight + to_dy, c, o, to_in, to_out, C_IN, FACTORS)
    w11 = _tap(weight + to_dy + to_dx, c, o, to_in, to_out, C_IN, FACTORS)
    w12 = _tap(weight + to_dy + 2 * to_dx, c, o, to_in, to_out, C_IN, FACTORS)
    w20 = _tap(weight + 2 * to_dy, c, o, to_in, to_out, C_IN, FACTORS)
    w21 = _tap(weight + 2 * to_dy + to_dx, c, o, to_in, to_out, C_IN, FACTORS)
    w22 = _tap(weight + 2 * to_dy + 2 * to_dx, c, o, to_in, to_out, C_IN, FACTORS)
    zero, none = tl.zeros((BLOCK, WIDTH), tl.float32), tl.zeros_like(k)
    above, level = zero, zero  # the output's rows above x's row and level with it, as far as they have come
    total, squares = zero, zero
    ahead = _added(add, place, o, here & (none > 0), zero.to(out.dtype.element_ty), C_OUT, ADD)
    for row in range(tl.maximum(first - 1, 0), last + 1):
        now = ahead
        m, at_row = place + row * W, none + row
        inside = here & (at_row < H)
        ahead = _added(add, m, o, here & (at_row >= first) & (at_row < last), now, C_OUT, ADD)
        at = x + m[:, None] * C_IN + c[None, :]
        left = _places(at - C_IN, inside & (col > 0), c, C_IN, FACTORS)
        middle = _places(at, inside, c, C_IN, FACTORS)
        right = _places(at + C_IN, inside & (col < W - 1), c, C_IN, FACTORS)
        done = tl.dot(right, w22, tl.dot(middle, w21, tl.dot(left, w20, above)))
        above = tl.dot(right, w12, tl.dot(middle, w11, tl.dot(left, w10, level)))
        level = tl.dot(right, w02, tl.dot(middle, w01, tl.dot(left, w00, zero)))
        off = _write_tile(done, now, out, origin, m - W, o, here & (at_row > first), C_OUT, ADD, SUMS)
        if SUMS:
            total += off
            squares += off * off
    if SUMS:
        _store_sums(parts, o, total, squares, C_OUT)


def _tap_conv(
    x, weight, out, add, origin, parts, M, to_in, to_out, to_dy, to_dx,
    H: tl.constexpr, W: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr, SUMS: tl.constexpr, FACTORS: tl.constexpr,
    DEPTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program: BLOCK places, WIDTH output channels; DEPTH input channels of one tap at a time."""
    wait_for_inputs(EARLY)
    CHUNKS: tl.constexpr = C_IN // DEPTH
    c, o = tl.arange(0, DEPTH), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, col, here = m // W % H, m % W, m < M
    acc = tl.zeros((BLOCK, WIDTH), tl.float32)
    added = _added(add, m, o, here, acc, C_OUT, ADD)
    for step in range(9 * CHUNKS):
        tap, chunk = step // CHUNKS, step % CHUNKS * DEPTH
        dy, dx = tap // 3, tap % 3
        h, w = row + dy - 1, col + dx - 1
        inside = here & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        at = x + (m + (dy - 1) * W + dx - 1)[:, None] * C_IN + (chunk + c)[None, :]
        part = tl.load(at, mask=inside[:, None], other=0.0).to(FACTORS)
        acc = tl.dot(part, _tap(weight + dy * to_dy + dx * to_dx, chunk + c, o, to_in, to_out, C_IN, FACTORS), acc)
    off = _write_tile(acc, added, out, origin, m, o, here, C_OUT, ADD, SUMS)
    if SUMS:
        _store_sums(parts, o, off, off * off, C_OUT)


# ---- Python again


@cache
def kernels() -> dict[str, Any]:
    """The two kernels by name; their helpers are turned in place, where the kernels look them up."""
    triton, scope = import_triton(), globals()
    scope["tl"], scope["wait_for_inputs"] = triton.language, waiting()
    for function in (_added, _write_tile, _store_sums, _tap, _places):
        scope[function.__name__] = triton.jit(function)
    return {function.__name__[1:]: triton.jit(function) for function in (_row_conv, _tap_conv)}


def factors() -> Any:
    """The type that is multiplied: bfloat16, whose bits the interpreter would multiply as integers."""
    language = import_triton().language
    return language.float32 if interpreted() else language.bfloat16


class Grid(NamedTuple):
    """How a launch covers a batch: programs, and the arguments that say which places are whose."""

    programs: int
    arguments: tuple[int, ...]


def _row_grid(how: Launch, x: Tensor, c_out: int) -> Grid:
    (images, _, H, W), wanted = x.shape, how.split * multiprocessors(x.device)
    groups = -(-images // (how.block // W))
    rows_each = -(-H // max(1, min(H, wanted // (groups * (c_out // how.width)))))
    ranges = -(-H // rows_each)
    return Grid(groups * ranges, (images, ranges, rows_each))


def _tap_grid(how: Launch, x: Tensor, c_out: int) -> Grid:
    M = x.numel() // x.shape[1]
    return Grid(-(-M // how.block), (M,))


GRIDS = {"row_conv": _row_grid, "tap_conv": _tap_grid}


def fits(c_in: int, c_out: int, width: int, sums: bool = False) -> bool:
    """Whether there is a launch for these channels and images of that width."""
    how = LAUNCH.get((c_in, c_out, sums))
    return how is not None and (how.kernel != "row_conv" or width <= how.block)


def _convolve(
    x: Tensor, weight: Tensor, turned: bool = False, add: Tensor | None = None, origin: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """(out, parts), these only if there is an origin.

    `turned`: with the weight's channels exchanged and its taps in reverse, from the last one on.
    """
    (B, c_in, H, W), c_out, sums = x.shape, weight.shape[1 if turned else 0], origin is not None
    how, (to_o, to_c, to_dy, to_dx) = LAUNCH[c_in, c_out, sums], weight.stride()
    grid = GRIDS[how.kernel](how, x, c_out)
    out = torch.empty((B, c_out, H, W), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    parts = torch.empty(2, c_out, grid.programs, dtype=torch.float32, device=x.device) if sums else None
    steps = (to_o, to_c, -to_dy, -to_dx) if turned else (to_c, to_o, to_dy, to_dx)
    launch(
        kernels()[how.kernel],
        (grid.programs, c_out // how.width),
        *(x, weight[:, :, 2, 2] if turned else weight, out, add, origin, parts, *grid.arguments, *steps),
        *(H, W, c_in, c_out, how.block, how.width, add is not None, sums, factors()),
        **({"DEPTH": how.split} if how.kernel == "tap_conv" else {}),
        num_warps=how.num_warps,
        num_stages=how.num_stages,
    )
    return out, parts


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """conv(x, weight): (B, C_in, H, W) -> (B, C_out, H, W), channels-last."""
    return _convolve(x, weight)[0]


def convolve_with_sums(x: Tensor, weight: Tensor, add: Tensor | None, origin: Tensor) -> tuple[Tensor, Tensor]:
    """s = conv(x, weight) + add, and the parts (2, C_out, programs) of Σ(s − origin), Σ(s − origin)².

    origin: the first C_out numbers of a tensor.
    """
    s, parts = _convolve(x, weight, add=add, origin=origin)
    assert parts is not None
    return s, parts


def input_gradient(g: Tensor, weight: Tensor) -> Tensor:
    """The gradient of conv's input x from that of its output."""
    return _convolve(g, weight, turned=True)[0]
