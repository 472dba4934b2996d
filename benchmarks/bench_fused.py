"""Check and time what `net.kernels: triton` brings, at WRN-40-2's shapes: 384 images of 32x32.

    python benchmarks/bench_fused.py --check                        # on a GPU: against float64, exit code 1 on failure
    python benchmarks/bench_fused.py --out benchmarks/results       # check, candidates of launches, times
    python benchmarks/bench_fused.py --only conv                    # convolutions and casts of weights; or: norm, block
    TRITON_INTERPRET=1 python benchmarks/bench_fused.py --check     # on a CPU: tiny shapes in Triton's interpreter

norm: s = x + residual, y = dropout(ReLU(BN(s))). conv: 3x3 convolutions, their input's and their weight's gradient
against cuDNN's, the first convolution with its channels filled up, all weights cast at once.
block: convolutions that sum for the norm after them, and blocks made of these, against the same apart.
Candidates that do not run or give wrong numbers are named and left out; the best of each kind are printed as constants.
A time is the median of replays of a CUDA graph, over calls on buffers that together exceed the L2 cache, divided by
the calls. The floor is the bytes that the passes must move at the rate of a plain copy.
"""

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from farout.nets import WideResNet, row_conv
from farout.nets import fused_conv as conv
from farout.nets import fused_norm as fused
from farout.nets.cast_weights import cast_all
from farout.nets.kernels import KERNELS
from farout.nets.launches import interpreted
from farout.nets.norm_conv import Summands
from farout.nets.wrn import PreActBlock

SHAPES = [(384, 16, 32, 32), (384, 32, 32, 32), (384, 64, 16, 16), (384, 128, 8, 8)]
TINY = [(2, 16, 3, 5), (3, 32, 4, 4)]
CALLS = {16: (1, 0), 32: (6, 6), 64: (6, 6), 128: (6, 6)}
"""How often a WRN-40-2 step meets a width: norms before a block or the pooling, and inside a block."""
CANDIDATES = [(1024, 4), (2048, 4), (4096, 4), (4096, 8)]
PROGRAMS = [4, 8, 16]
CONV_SHAPES = [(384, 8, 16, 32), (384, 16, 32, 32), (384, 32, 32, 32), (384, 64, 64, 16)]
"""Images, C_in, C_out, side."""
CONV_TINY = [(2, 8, 16, 4), (2, 16, 32, 4), (2, 32, 32, 4)]
CONV_CALLS = {8: 1, 16: 1, 32: 11, 64: 11}
"""How often a WRN-40-2 step meets a C_in; 8 is the first convolution's 3, filled up."""
CONV_CANDIDATES = {  # block, slabs, programs, warps, stages
    8: [(128, 1, 2, 4, 3), (64, 1, 4, 4, 3)],
    16: [(64, 1, 3, 4, 3), (128, 1, 2, 4, 2)],
    32: [(64, 2, 2, 4, 3), (64, 2, 3, 4, 2), (64, 1, 4, 4, 3)],
    64: [(64, 3, 1, 8, 3), (64, 1, 2, 4, 3), (64, 1, 3, 4, 2)],
}
ADD_CANDIDATES = [(64, 32, 4), (32, 64, 4)]
"""Elements, parts and warps of the kernel that adds parts."""
ROW_SHAPES = {(16, 32): 32, (32, 16): 32, (32, 32): 32, (64, 64): 16, (128, 128): 8}
"""Side of the images, by channels in and out of our forward convolutions and input gradients."""
ROW_TINY = {(16, 32): 4, (32, 32): 4}
ROW_CALLS = {(16, 32): (1, 0), (32, 16): (0, 1), (32, 32): (11, 11), (64, 64): (11, 11), (128, 128): (11, 11)}
"""How often a WRN-40-2 step meets them forward and backward."""
ROW_CANDIDATES = {  # channels in and out, whether the output is summed
    (16, 32, False): [("row_conv", 64, 32, 4, 4, 3), ("row_conv", 128, 32, 2, 4, 3)],
    (32, 16, False): [("row_conv", 64, 16, 4, 4, 3), ("row_conv", 128, 16, 2, 4, 3)],
    (32, 32, False): [
        *[("row_conv", 64, 32, 3, 4, 3), ("row_conv", 64, 32, 6, 4, 3), ("row_conv", 64, 32, 6, 4, 2)],
        *[("row_conv", 128, 32, 2, 4, 3)],
        *[("row_conv", 128, 32, 2, 8, 3), ("tap_conv", 128, 32, 32, 4, 4)],
    ],
    (64, 64, False): [
        *[("row_conv", 64, 64, 1, 8, 3), ("row_conv", 64, 32, 2, 4, 2), ("row_conv", 128, 64, 1, 8, 2)],
        *[("tap_conv", 128, 64, 64, 4, 3), ("tap_conv", 128, 64, 64, 8, 3)],
    ],
    (128, 128, False): [
        *[("tap_conv", 128, 64, 64, 4, 3), ("tap_conv", 128, 128, 64, 8, 3), ("tap_conv", 128, 128, 64, 8, 4)],
    ],
}
"""Launches of row_conv.py."""
SUM_CANDIDATES = {
    (32, 32, True): [
        *[("row_conv", 64, 32, 3, 4, 3), ("row_conv", 64, 32, 6, 4, 3), ("row_conv", 64, 32, 6, 8, 3)],
        *[("row_conv", 64, 16, 4, 4, 3), ("tap_conv", 128, 32, 32, 4, 4)],
    ],
    (64, 64, True): [
        *[("tap_conv", 128, 64, 64, 4, 3), ("tap_conv", 128, 64, 64, 8, 3)],
        *[("row_conv", 64, 64, 1, 8, 2), ("row_conv", 64, 32, 2, 4, 2)],
    ],
    (128, 128, True): [
        *[("tap_conv", 128, 64, 64, 4, 3), ("tap_conv", 128, 64, 64, 8, 3), ("tap_conv", 128, 128, 64, 8, 3)],
    ],
}
"""The same where a convolution also sums for the norm after it."""
RATE = 0.3
COLD = 200e6
"""Bytes of buffers to go through before one comes again."""


# ---- exactness


def reference_hash(index: Tensor, key: Tensor | int, other: Tensor | int) -> Tensor:
    """The kernels' hash in int64."""
    h = (index & 0xFFFFFFFF) ^ key
    h = (((h ^ (h >> 16)) * 0x7FEB352D) & 0xFFFFFFFF) ^ other
    h = ((h ^ (h >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return h ^ (h >> 16)


def reference_mask(M: int, C: int, seed: Tensor, threshold: int) -> Tensor:
    """The mask (M, C) of kept elements."""
    half, (first, second) = (M + 1) // 2, seed[:2].long()
    other = reference_hash(second, 0, 0)
    h = reference_hash(torch.arange(half * C, device=seed.device), reference_hash(first, other, 0), other)
    return torch.cat([h & 0xFFFF, h >> 16]).view(2 * half, C)[:M] >= threshold


def images(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    made = torch.randn(shape, device=device) * 1.5 + 0.5
    return made.to(dtype).to(memory_format=torch.channels_last)


def batch_norm(C: int, device: torch.device) -> nn.BatchNorm2d:
    bn = nn.BatchNorm2d(C).to(device)
    with torch.no_grad():
        bn.weight.uniform_(0.5, 1.5)
        bn.bias.normal_(0, 0.5)
        bn.running_mean.normal_()
    return bn


def as_matrix(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def truth(s: Tensor, ds: Tensor | None, dy: Tensor, bn: nn.BatchNorm2d, kept: Tensor | float) -> dict[str, Tensor]:
    """All results in float64, from s as it is stored; dy is changed to 0 where ReLU's side hangs on a rounding."""
    s, weight, bias = (t.detach().double() for t in (as_matrix(s), bn.weight, bn.bias))
    mean, var = s.mean(0), s.var(0, correction=0)
    inverse = (var + bn.eps).rsqrt()
    hat = (s - mean) * inverse
    z = hat * weight + bias
    as_matrix_view = dy.permute(0, 2, 3, 1)
    as_matrix_view.masked_fill_((z.abs() < 1e-4).view(as_matrix_view.shape), 0)
    dz = as_matrix(dy).double() * kept * (z > 0)
    dx = weight * inverse * (dz - dz.mean(0) - hat * (dz * hat).mean(0))
    m = bn.momentum
    return {
        "y": z.clamp(min=0) * kept,
        "dx": dx if ds is None else dx + as_matrix(ds).double(),
        "dweight": (dz * hat).sum(0),
        "dbias": dz.sum(0),
        "running mean": (1 - m) * bn.running_mean.double() + m * mean,
        "running var": (1 - m) * bn.running_var.double() + m * s.var(0),
    }


def error(got: Tensor, want: Tensor, rounds: bool) -> float:
    """The largest error, in units of what is allowed: 1e-5 of the largest value, and half an ulp where bf16 rounds."""
    half_ulp = 2**-7 if interpreted() else 2**-8  # the interpreter cuts instead of rounding
    allowed = 1e-5 * want.abs().max() + (half_ulp * want.abs() if rounds else 0)
    return float(((got.detach().double() - want).abs() / allowed).max())


def check(shape: tuple[int, ...], dtype: torch.dtype, residual: bool, rate: float, device: torch.device) -> dict:
    """One forward and backward against float64; a second one must give the same bits."""
    torch.manual_seed(0)
    x = images(shape, dtype, device)
    other, ds = (images(shape, dtype, device) if residual else None for _ in range(2))
    dy, bn = images(shape, dtype, device) - 0.5, batch_norm(shape[1], device)
    seed = fused.draw_seeds(1, device)[0]
    M, threshold = x.numel() // shape[1], fused.threshold(rate)
    kept = reference_mask(M, shape[1], seed, threshold) * (65536 / (65536 - threshold)) if rate else 1.0
    state = {name: value.clone() for name, value in bn.state_dict().items()}
    with torch.no_grad():
        stored = fused.triton_norm(bn, x, other)[0]
    bn.load_state_dict(state)
    want = truth(stored, ds, dy, bn, kept)
    s_true = stored if interpreted() or other is None else x + other

    def call() -> dict[str, Tensor]:
        bn.load_state_dict(state)
        inputs = [t.detach().requires_grad_() for t in (x, other) if t is not None]
        s, y = fused.triton_norm(bn, inputs[0], *inputs[1:], dropout=nn.Dropout(rate), seed=seed)
        assert "FusedNorm" in type(y.grad_fn).__name__, "the kernels were not used"
        out, given = ([s, y], [ds, dy]) if ds is not None else ([y], [dy])
        got = torch.autograd.grad(out, [*inputs, bn.weight, bn.bias], given)
        assert all(torch.equal(g, got[0]) for g in got[1:-2])
        results = {"s": s, "y": y, "dx": got[0], "dweight": got[-2], "dbias": got[-1]}
        return {**results, "running mean": bn.running_mean.clone(), "running var": bn.running_var.clone()}

    first, second = call(), call()
    errors = {}
    for name, true in want.items():
        got = as_matrix(first[name]) if first[name].ndim == 4 else first[name]
        errors[name] = error(got, true, dtype == torch.bfloat16 and first[name].ndim == 4)
    return {
        "shape": list(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "residual": residual,
        "rate": rate,
        "errors": errors,
        "s equal": torch.equal(first["s"], s_true),
        "same bits": all(torch.equal(first[name], second[name]) for name in first),
    }


def passed(row: dict) -> bool:
    return row["s equal"] and row["same bits"] and all(value <= 1 for value in row["errors"].values())  # NaN fails


def check_all(device: torch.device) -> list[dict]:
    """Every shape, type and variant; prints the largest error of each in units of what is allowed."""
    rows = []
    for shape in SHAPES if device.type == "cuda" else TINY:
        for dtype in (torch.bfloat16, torch.float32) if shape[1] == 32 else (torch.bfloat16,):
            for residual, rate in ((True, 0.0), (False, RATE)):
                row = check(shape, dtype, residual, rate, device)
                rows.append(row)
                errors = " ".join(f"{name} {value:.2g}" for name, value in row["errors"].items())
                verdict = "ok  " if passed(row) else "FAIL"
                kind = f"{'x + residual' if residual else 'x'}, dropout {rate}"
                print(f"{verdict} {shape} {row['dtype']:9s} {kind:26s} same bits {row['same bits']}, {errors}")
    return rows


# ---- time


def graph_ms(calls: list[Callable[[], object]], replays: int = 50) -> float:
    """Median milliseconds of one call, all captured in one graph."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _results = [call() for call in calls]  # kept: memory used again would still be in the cache
    times = []
    for _ in range(replays + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / len(calls))
    return statistics.median(times[3:])


def copy_rate(device: torch.device) -> float:
    """Bytes per second, read and written, of a copy of 400 MB."""
    a = torch.empty(100_000_000, device=device)
    b = torch.empty_like(a)
    return 2 * a.nbytes / (1e-3 * graph_ms([lambda: b.copy_(a)] * 5))


class Case:
    """Buffers of one call: the norm before a block (residual, no dropout) or inside it (dropout, no residual)."""

    def __init__(self, shape: tuple[int, ...], inside: bool, device: torch.device) -> None:
        make = lambda: images(shape, torch.bfloat16, device)  # noqa: E731
        self.inside, self.bn, self.x, self.dy = inside, batch_norm(shape[1], device), make(), make()
        self.residual, self.ds = (None, None) if inside else (make(), make())
        self.mask = fused.Mask(fused.draw_seeds(1, device)[0] if inside else None, fused.threshold(RATE))
        self.s, self.stats = fused.forward_statistics(self.x, self.residual, self.bn)
        self.gradients = self.sums()

    def statistics(self):
        return fused.forward_statistics(self.x, self.residual, self.bn)

    def apply(self):
        return fused.forward_apply(self.s, self.stats, self.bn.weight, self.bn.bias, self.mask)

    def sums(self):
        return fused.backward_sums(self.s, self.dy, self.stats, self.bn.weight, self.bn.bias, self.mask)

    def gradient(self):
        at = (self.s, self.dy, self.ds, self.stats, self.bn.weight, self.bn.bias, self.gradients, self.mask)
        return fused.backward_apply(*at)

    def forward(self):
        s, stats = self.statistics()
        return fused.forward_apply(s, stats, self.bn.weight, self.bn.bias, self.mask)

    def backward(self):
        self.gradients = self.sums()
        return self.gradient()

    def plain_forward(self):
        return fused.plain_norm(self.bn, self.x, self.residual, nn.Dropout(RATE) if self.inside else None)

    def plain_both(self):
        inputs = [t.detach().requires_grad_() for t in (self.x, self.residual) if t is not None]
        s, y = fused.plain_norm(self.bn, *inputs, dropout=nn.Dropout(RATE) if self.inside else None)
        out, given = ([y], [self.dy]) if self.inside else ([s, y], [self.ds, self.dy])
        return torch.autograd.grad(out, [*inputs, self.bn.weight, self.bn.bias], given)

    def passes(self) -> tuple[int, int]:
        """Tensors that forward and backward read or write."""
        return (3, 5) if self.inside else (5, 6)


def cases(shape: tuple[int, ...], inside: bool, device: torch.device) -> list[Case]:
    size = 2 * torch.Size(shape).numel()
    return [Case(shape, inside, device) for _ in range(max(3, min(12, round(COLD / (3 * size)))))]


def time_kernel(name: str, sets: list[Case]) -> float:
    """Microseconds of one of the four heavy kernels with its finish."""
    part = {"statistics": "statistics", "apply": "apply", "reduce_gradient": "sums", "apply_gradient": "gradient"}[name]
    return 1e3 * graph_ms([getattr(case, part) for case in sets], replays=20)


def tune(device: torch.device) -> list[dict]:
    """Each kernel with each candidate launch at each width, the heavier of its variants; sets LAUNCH to the best."""
    rows = []
    for name in fused.LAUNCH:
        inside = name in ("apply", "reduce_gradient")  # dropout is what costs there, the residual in the others
        sets = {shape[1]: cases(shape, inside, device) for shape in SHAPES[1:]}
        for elements, warps in CANDIDATES:
            fused.LAUNCH[name] = {"elements": elements, "num_warps": warps}
            for programs in PROGRAMS if name in fused.PROGRAMS else [0]:
                if programs:
                    fused.PROGRAMS[name] = programs
                times = {C: time_kernel(name, made) for C, made in sets.items()}
                rows.append({"kernel": name, "elements": elements, "warps": warps, "programs": programs, "us": times})
        best = min((row for row in rows if row["kernel"] == name), key=lambda row: sum(row["us"].values()))
        fused.LAUNCH[name] = {"elements": best["elements"], "num_warps": best["warps"]}
        if best["programs"]:
            fused.PROGRAMS[name] = best["programs"]
        print_candidates([row for row in rows if row["kernel"] == name], best)
    print(f"best: LAUNCH = {fused.LAUNCH}, PROGRAMS = {fused.PROGRAMS}", flush=True)
    return rows


def print_candidates(rows: list[dict], best: dict) -> None:
    for row in rows:
        times = "  ".join(f"C={C} {us:6.1f}" for C, us in row["us"].items())
        mark = "  <- best" if row is best else ""
        print(
            f"{row['kernel']:16s} elements {row['elements']:5d} warps {row['warps']:2d} programs {row['programs']:2d}"
            f"  us: {times}{mark}",
            flush=True,
        )


def measure(device: torch.device, rate: float) -> list[dict]:
    """Forward and backward of both norms at each shape: fused, plain eager, and the floor."""
    rows = []
    for shape in SHAPES:
        for inside in (False, True):
            sets = cases(shape, inside, device)
            moved = 2 * torch.Size(shape).numel()
            with torch.no_grad():
                forward, backward = (graph_ms([getattr(c, n) for c in sets]) for n in ("forward", "backward"))
                plain = graph_ms([c.plain_forward for c in sets])
            both = graph_ms([c.plain_both for c in sets])
            floors = [1e6 * n * moved / rate for n in sets[0].passes()]
            rows.append(
                {
                    "shape": list(shape),
                    "norm": "inside a block: dropout" if inside else "before a block: residual",
                    "forward_us": 1e3 * forward,
                    "backward_us": 1e3 * backward,
                    "plain_forward_us": 1e3 * plain,
                    "plain_backward_us": 1e3 * (both - plain),
                    "floor_forward_us": floors[0],
                    "floor_backward_us": floors[1],
                }
            )
    return rows


def print_table(rows: list[dict]) -> None:
    print(
        f"\n{'us a call (bf16)':44s} {'forward':>8s} {'plain':>8s} {'floor':>8s} {'backward':>9s} {'plain':>8s} floor"
    )
    total = 0.0
    for row in rows:
        before, inside = CALLS[row["shape"][1]]
        total += (inside if "inside" in row["norm"] else before) * (row["forward_us"] + row["backward_us"])
        print(
            f"{row['shape']!s:20s} {row['norm']:24s}"
            f"{row['forward_us']:8.1f} {row['plain_forward_us']:8.1f} {row['floor_forward_us']:8.1f}"
            f" {row['backward_us']:9.1f} {row['plain_backward_us']:8.1f} {row['floor_backward_us']:6.1f}"
        )
    print(f"all norms of a WRN-40-2 step: about {total / 1e3:.2f} ms")


# ---- convolutions


def conv_truth(x: Tensor, g: Tensor) -> Tensor:
    """The weight gradient in float64, tap by tap."""
    (_, _, H, W), x, g = x.shape, F.pad(x.double(), (1, 1, 1, 1)), as_matrix(g).double()
    taps = [as_matrix(x[:, :, i : i + H, j : j + W]) for i in range(3) for j in range(3)]
    return torch.stack([g.T @ tap for tap in taps], 2).unflatten(2, (3, 3))


def forward_truth(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution in float64, tap by tap: a matrix of places and channels."""
    (_, _, H, W), x, weight = x.shape, F.pad(x, (1, 1, 1, 1)), weight.double()
    taps = ((i, j) for i in range(3) for j in range(3))
    return sum(as_matrix(x[:, :, i : i + H, j : j + W]).double() @ weight[:, :, i, j].T for i, j in taps)


def turned(weight: Tensor) -> Tensor:
    """The weight of the convolution that is the input's gradient."""
    return weight.transpose(0, 1).flip(2, 3)


def conv_images(batch: int, channels: int, side: int, device: torch.device) -> Tensor:
    """About as large as in training: a mean of many of these sums is near 0, as it is there."""
    made = torch.randn(batch, channels, side, side, device=device)
    return made.to(torch.bfloat16).to(memory_format=torch.channels_last)


def conv_weight(c_out: int, c_in: int, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    made = 0.05 * torch.randn(c_out, c_in, 3, 3, device=device)
    return made.to(dtype).to(memory_format=torch.channels_last)


def check_conv(batch: int, c_in: int, c_out: int, side: int, device: torch.device) -> dict:
    """Forward and both gradients against float64, the weight's also before it is rounded; twice the same bits."""
    torch.manual_seed(0)
    x, g = conv_images(batch, c_in, side, device), conv_images(batch, c_out, side, device)
    want = conv_truth(x, g)
    layer = conv.FusedConv2d(c_in, c_out, 3, padding=1, bias=False).to(device, torch.bfloat16)
    layer = layer.to(memory_format=torch.channels_last)
    x.requires_grad_()
    results = []
    for _ in range(2):
        y = layer(x)
        assert "FusedConv" in type(y.grad_fn).__name__, "the kernels were not used"
        results.append((y, *torch.autograd.grad(y, [x, layer.weight], g)))
    y = F.conv2d(x, layer.weight, padding=1)
    plain = (y, *torch.autograd.grad(y, [x, layer.weight], g))
    sums = conv.weight_gradient(x.detach(), g, layer.weight.detach().float())
    scale, weight, others = want.abs().max(), layer.weight.detach(), {}
    if row_conv.fits(c_in, c_out, side):
        others["y"] = error(as_matrix(results[0][0]), forward_truth(x.detach(), weight), True)
    if row_conv.fits(c_out, c_in, side):
        others["dx"] = error(as_matrix(results[0][1]), forward_truth(g, turned(weight)), True)
    return {
        "shape": [batch, c_in, c_out, side],
        "errors": {
            "sums": float((sums.double() - want).abs().max() / (1e-5 * scale)),
            "dweight": error(results[0][2], want, True),
            **others,
        },
        "torch": error(plain[2], want, True),
        "same bits": all(map(torch.equal, *results)),
        "s equal": True,
    }


class RowCase:
    """Buffers of one convolution of row_conv.py, forward or backward, with nothing summed."""

    def __init__(self, key: tuple[int, int, bool], backward: bool, batch: int, side: int, device: torch.device) -> None:
        (c_in, c_out, _), self.backward = key, backward
        self.x = conv_images(batch, c_in, side, device)
        self.weight = conv_weight(*((c_in, c_out) if backward else (c_out, c_in)), device)
        self.like = torch.empty_like(self.x, memory_format=torch.channels_last)
        if c_in != c_out:
            self.like = conv_images(batch, c_out, side, device)

    def ours(self) -> tuple[Tensor, ...]:
        return ((row_conv.input_gradient if self.backward else row_conv.convolve)(self.x, self.weight),)

    def other(self) -> tuple[Tensor, ...]:
        if not self.backward:
            return (torch.ops.aten.convolution(self.x, self.weight, None, *conv.STRIDE_1_PADDING_1),)
        only_x = [True, False, False]
        given = (self.x, self.like, self.weight, None, *conv.STRIDE_1_PADDING_1, only_x)
        return (torch.ops.aten.convolution_backward(*given)[0],)

    def errors(self) -> dict[str, float]:
        want = forward_truth(self.x, turned(self.weight) if self.backward else self.weight)
        return {"out": error(as_matrix(self.ours()[0]), want, True)}

    def moved(self) -> int:
        return self.x.nbytes + self.like.nbytes


def check_case(what: str, case: RowCase) -> dict:
    """Against float64 and a second call; a launch that does not run is a failure, not the end."""
    try:
        errors, same = case.errors(), all(map(torch.equal, case.ours(), case.ours()))
    except Exception as problem:
        errors, same = {f"{type(problem).__name__}: {str(problem)[:120]}": float("inf")}, False
    return {"what": what, "errors": errors, "same bits": same, "s equal": True}


def print_case(row: dict) -> None:
    errors = " ".join(f"{name} {value:.2g}" for name, value in row["errors"].items())
    print(f"{'ok  ' if passed(row) else 'FAIL'} {row['what']}: same bits {row['same bits']}, {errors}", flush=True)


def check_rows(device: torch.device) -> list[dict]:
    """Our convolutions where there is a launch, of a whole batch and of an odd one, forward and backward."""
    rows, on_gpu = [], device.type == "cuda"
    for (c_in, c_out), side in (ROW_SHAPES if on_gpu else ROW_TINY).items():
        key = (c_in, c_out, False)
        for batch in (384, 61) if on_gpu else (3,):
            for backward in (False, True) if key in row_conv.LAUNCH else ():
                what = f"{'dx' if backward else 'forward'} {c_in} -> {c_out}, {batch} of side {side}"
                rows.append(check_case(what, RowCase(key, backward, batch, side, device)))
                print_case(rows[-1])
    return rows


class SumCase(RowCase):
    """Buffers of a forward convolution that also adds, and sums for the norm after it."""

    def __init__(self, key: tuple[int, int, bool], backward: bool, batch: int, side: int, device: torch.device) -> None:
        super().__init__(key, backward, batch, side, device)
        self.bn, self.add = batch_norm(key[1], device), conv_images(batch, key[1], side, device)

    def ours(self) -> tuple[Tensor, ...]:
        out, parts = row_conv.convolve_with_sums(self.x, self.weight, self.add, self.add)
        return out, fused.finish_statistics(parts, self.add, self.bn, out.numel() // out.shape[1])

    def other(self) -> tuple[Tensor, ...]:
        """The passes apart, with the convolution that is chosen for that."""
        ours = row_conv.fits(self.x.shape[1], self.add.shape[1], self.x.shape[3])
        out = row_conv.convolve(self.x, self.weight) if ours else super().other()[0]
        return fused.forward_statistics(out, self.add, self.bn)

    def errors(self) -> dict[str, float]:
        """The sums are of what was stored."""
        out, stats = self.ours()
        want, stored = forward_truth(self.x, self.weight) + as_matrix(self.add).double(), as_matrix(out).double()
        exact = torch.stack((stored.mean(0), (stored.var(0, correction=0) + self.bn.eps).rsqrt()))
        return {"out": error(stored, want, True), "sums": error(stats, exact, False)}

    def moved(self) -> int:
        return super().moved() + self.add.nbytes


def check_sums(device: torch.device) -> list[dict]:
    """Convolutions that sum, of a whole batch and of an odd one."""
    rows, on_gpu = [], device.type == "cuda"
    for key in SUM_CANDIDATES if on_gpu else list(SUM_CANDIDATES)[:1]:
        side = ROW_SHAPES[key[:2]] if on_gpu else 4
        for batch in ((384, 61) if on_gpu else (3,)) if key in row_conv.LAUNCH else ():
            what = f"forward {key[0]} -> {key[1]} and sums, {batch} of side {side}"
            rows.append(check_case(what, SumCase(key, False, batch, side, device)))
            print_case(rows[-1])
    return rows


class Blocks:
    """Two blocks without a change of width, one after the other, as in a stage; one forward and backward pass."""

    def __init__(self, C: int, batch: int, side: int, rate: float, device: torch.device) -> None:
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(PreActBlock(C, C, 1, rate, KERNELS["triton"]) for _ in range(2)).to(device)
        for part in self.blocks.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.normal_(part.weight, 0.0, (2 / (9 * C)) ** 0.5)
                part.to(device, torch.bfloat16, memory_format=torch.channels_last)
        self.seeds = list(fused.draw_seeds(2, device))
        self.x, self.residual, self.g = (conv_images(batch, C, side, device) for _ in range(3))

    def both(self) -> list[Tensor]:
        inputs = [t.detach().requires_grad_() for t in (self.x, self.residual)]
        state = Summands(*inputs)
        for block, seed in zip(self.blocks, self.seeds, strict=True):
            state = block.summands(state, seed)
        outputs = [t for t in state[:2] if t is not None]
        given = [self.g.to(t.dtype) for t in outputs]
        made = torch.autograd.grad(outputs, [*inputs, *self.blocks.parameters()], given)
        return [state.total().detach(), *made]

    def plain(self, dtype: torch.dtype) -> list[Tensor]:
        """Op by op, in one type."""
        twin = copy.copy(self)
        twin.blocks = copy.deepcopy(self.blocks)
        if dtype == torch.float32:
            twin.blocks.float()
        for block in twin.blocks:
            block.kernels = KERNELS["plain"]
        twin.x, twin.residual = self.x.to(dtype), self.residual.to(dtype)
        return twin.both()


def check_block(C: int, batch: int, side: int, device: torch.device) -> dict:
    """Outputs and gradients of two blocks, ours and plain bf16, against float32: no farther from it than half again."""
    what, errors, same = f"blocks of {C}, {batch} of side {side}", {}, False
    try:
        case = Blocks(C, batch, side, 0.0, device)
        again = copy.deepcopy(case).both()  # from the same running statistics: sums are around them
        mine, usual, exact = case.both(), case.plain(torch.bfloat16), case.plain(torch.float32)
        off, allowed = (
            [float((a.float() - b).norm() / b.norm()) for a, b in zip(one, exact, strict=True)] for one in (mine, usual)
        )
        names = ["out", "dx", "dresidual", *(name for name, _ in case.blocks.named_parameters())]
        worst = max(range(len(off)), key=lambda n: off[n] / (1.5 * allowed[n] + 0.01))
        errors[f"worst: {names[worst]}"] = off[worst] / (1.5 * allowed[worst] + 0.01)
        same = all(map(torch.equal, mine, again))
    except Exception as problem:
        errors[f"{type(problem).__name__}: {str(problem)[:120]}"] = float("inf")
    return {"what": what, "errors": errors, "same bits": same, "s equal": True}


BLOCK_SHAPES = [(32, 32), (64, 16), (128, 8)]
"""Channels and side."""


def check_blocks(device: torch.device) -> list[dict]:
    rows = check_sums(device)
    for C, side in BLOCK_SHAPES if device.type == "cuda" else [(32, 4)]:
        rows.append(check_block(C, 64 if device.type == "cuda" else 3, side, device))
        print_case(rows[-1])
    row = check_network(device)
    print(f"network: gradients off float32's by {row['triton']:.4f}, plain bf16 by {row['plain']:.4f}", flush=True)
    return [*rows, row]


def measure_blocks(device: torch.device) -> list[dict]:
    """Forward and backward of a block in us: ours as chosen, norms and convolutions apart, and these by cuDNN."""
    rows, chosen = [], dict(row_conv.LAUNCH)
    apart = {key: launch for key, launch in chosen.items() if not key[2]}
    for C, side in BLOCK_SHAPES:
        for batch in (384, 128):
            case, us = Blocks(C, batch, side, RATE, device), {}
            for name, launches in (("ours", chosen), ("apart", apart), ("cudnn", {})):
                row_conv.LAUNCH.clear()
                row_conv.LAUNCH.update(launches)
                us[name] = 1e3 * graph_ms([case.both] * 3) / 2
            rows.append({"what": f"block of {C}, {batch} of side {side}", **us})
            print("  ".join([f"{rows[-1]['what']:32s}", *(f"{name} {value:7.1f}" for name, value in us.items())]))
    row_conv.LAUNCH.update(chosen)
    return rows


def check_network(device: torch.device) -> dict:
    """Gradients of WRN-40-2 in bfloat16, plain and triton, against float32's: no farther from it than half again."""
    size = (64, 40, 2) if device.type == "cuda" else (2, 10, 1)
    torch.manual_seed(0)
    x = torch.randn(size[0], 3, 32 if device.type == "cuda" else 4, 32 if device.type == "cuda" else 4, device=device)
    x, gradients = x.to(memory_format=torch.channels_last), []
    for kernels, precise in (("plain", True), ("plain", False), ("triton", False)):
        torch.manual_seed(1)
        net = WideResNet(depth=size[1], width=size[2], dropout=0.0, kernels=kernels).to(device)
        net = net.to(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=not precise):
            loss = net(x).float().square().sum()
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))]))
    exact = gradients[0].norm()
    plain, triton = (float((g - gradients[0]).norm() / exact) for g in gradients[1:])
    errors = {"triton": triton / (1.5 * plain + 0.01)}
    return {"plain": plain, "triton": triton, "errors": errors, "same bits": True, "s equal": True}


def check_convolutions(device: torch.device) -> list[dict]:
    rows = []
    for shape in CONV_SHAPES if device.type == "cuda" else CONV_TINY:
        row = check_conv(*shape, device)
        rows.append(row)
        errors = " ".join(f"{name} {value:.2g}" for name, value in row["errors"].items())
        print(
            f"{'ok  ' if passed(row) else 'FAIL'} conv {shape} same bits {row['same bits']}, {errors}"
            f" (torch's own dweight {row['torch']:.2g})",
            flush=True,
        )
    rows += check_rows(device)
    row = check_network(device)
    verdict = "ok  " if passed(row) else "FAIL"
    print(f"{verdict} network: gradients off float32's by {row['triton']:.4f}, plain bf16 by {row['plain']:.4f}")
    return [*rows, row]


class ConvCase:
    """Buffers of one weight gradient."""

    def __init__(self, batch: int, c_in: int, c_out: int, side: int, device: torch.device) -> None:
        self.x, self.g = (conv_images(batch, c, side, device) for c in (c_in, c_out))
        self.weight = conv_weight(c_out, c_in, device)

    def ours(self):
        return conv.weight_gradient(self.x, self.g, self.weight)

    def cudnn(self):
        only_weight = [False, True, False]
        given = (self.g, self.x, self.weight, None, *conv.STRIDE_1_PADDING_1, only_weight)
        return torch.ops.aten.convolution_backward(*given)[1]


def conv_cases(shape: tuple[int, ...], device: torch.device) -> list[ConvCase]:
    size = 2 * shape[0] * (shape[1] + shape[2]) * shape[3] ** 2
    return [ConvCase(*shape, device) for _ in range(max(3, min(12, round(COLD / size))))]


def try_launch(sets: list[ConvCase]) -> float:
    """Microseconds of a weight gradient; infinite if the launch does not fit the machine."""
    try:
        return 1e3 * graph_ms([case.ours for case in sets], replays=20)
    except Exception as problem:  # a candidate may ask for more than a multiprocessor has
        print(f"  does not run: {type(problem).__name__}: {str(problem)[:150]}")
        return float("inf")


def tune_conv(device: torch.device) -> list[dict]:
    """Each width with its candidates, then the adding kernel; sets LAUNCH and ADD to the best."""
    rows, names = [], ("block", "slabs", "programs", "num_warps", "num_stages")
    for shape in CONV_SHAPES:
        sets, times = conv_cases(shape, device), {}
        for values in CONV_CANDIDATES[shape[1]]:
            conv.LAUNCH[shape[1]] = dict(zip(names, values, strict=True))
            times[values] = try_launch(sets)
            rows.append({"C_in": shape[1], **conv.LAUNCH[shape[1]], "us": times[values]})
            print(f"conv C_in {shape[1]:3d}  {conv.LAUNCH[shape[1]]}  us: {times[values]:6.1f}", flush=True)
        conv.LAUNCH[shape[1]] = dict(zip(names, min(times, key=times.__getitem__), strict=True))
    sets, times = {shape[1]: conv_cases(shape, device) for shape in CONV_SHAPES[2:]}, {}
    for values in ADD_CANDIDATES:
        conv.ADD.update(zip(("elements", "parts", "num_warps"), values, strict=True))
        us = {c: try_launch(made) for c, made in sets.items()}
        times[values] = sum(us.values())
        rows.append({"adding": dict(conv.ADD), "us": us})
        print(f"add parts {conv.ADD}  us: {us}", flush=True)
    conv.ADD.update(zip(("elements", "parts", "num_warps"), min(times, key=times.__getitem__), strict=True))
    print(f"best: conv LAUNCH = {conv.LAUNCH}, ADD = {conv.ADD}", flush=True)
    return [*rows, *tune_rows(device, ROW_CANDIDATES)]


def row_cases(key: tuple[int, int, bool], backward: bool, device: torch.device, make: type = RowCase) -> list[RowCase]:
    side = ROW_SHAPES[key[:2]]
    size = make(key, backward, 384, side, device).moved()
    return [make(key, backward, 384, side, device) for _ in range(max(3, min(12, round(COLD / size))))]


def try_row(key: tuple[int, int, bool], launch: row_conv.Launch, sets: list[RowCase]) -> float:
    """Microseconds of a launch; infinite if it does not run or gives wrong numbers."""
    row_conv.LAUNCH[key] = launch
    try:
        row = check_case(f"{key} {launch}", sets[0])
        if passed(row):
            return 1e3 * graph_ms([case.ours for case in sets], replays=20)
        print_case(row)
    except Exception as problem:  # a candidate may ask for more than a multiprocessor has
        print(f"  does not run: {type(problem).__name__}: {str(problem)[:150]}")
    return float("inf")


def directions(key: tuple[int, int, bool]) -> list[bool]:
    """Forward, backward: what a step of WRN-40-2 asks of a launch."""
    if key[2]:
        return [False]
    return [backward for backward in (False, True) if ROW_CALLS[key[:2]][backward]]


def tune_rows(device: torch.device, table: dict, make: type = RowCase) -> list[dict]:
    """The best candidate for each key, by its first pass; if what it replaces is faster, none."""
    rows = []
    for key, candidates in table.items():
        sets = [row_cases(key, backward, device, make) for backward in directions(key)]
        times = {}
        for values in candidates:
            launch = row_conv.Launch(*values)
            times[launch] = try_row(key, launch, sets[0])
            rows.append({"key": list(key), "launch": launch._asdict(), "us": times[launch]})
            print(f"{key} {launch}  us: {times[launch]:6.1f}", flush=True)
        best = min(times, key=times.__getitem__)
        ours = [try_row(key, best, one) for one in sets]
        other = [1e3 * graph_ms([case.other for case in one], replays=20) for one in sets]
        print(f"{key} best us {[round(us, 1) for us in ours]}, instead of {[round(us, 1) for us in other]}", flush=True)
        if sum(ours) >= sum(other):
            row_conv.LAUNCH.pop(key)
    print("best: row_conv LAUNCH = {")
    for key, launch in row_conv.LAUNCH.items():
        print(f"    {key}: {launch},")
    print("}", flush=True)
    return rows


def tune_block(device: torch.device) -> list[dict]:
    return tune_rows(device, SUM_CANDIDATES, SumCase)


def measure_rows(device: torch.device, rate: float) -> list[dict]:
    """Forward convolutions and input gradients as they are now chosen, cuDNN's, and the floor: x read, out written."""
    rows = []
    for (c_in, c_out), calls in ROW_CALLS.items():
        key = (c_in, c_out, False)
        for backward in (False, True):
            if not calls[backward]:
                continue
            sets = row_cases(key, backward, device)
            other = 1e3 * graph_ms([case.other for case in sets])
            ours = 1e3 * graph_ms([case.ours for case in sets]) if key in row_conv.LAUNCH else other
            what = f"{'dx' if backward else 'forward'} {c_in} -> {c_out}, side {ROW_SHAPES[key[:2]]}"
            row = {"what": what, "calls": calls[backward], "ours": ours, "cudnn": other}
            rows.append({**row, "floor": 1e6 * sets[0].moved() / rate})
    return rows


def measure_conv(device: torch.device, rate: float) -> list[dict]:
    """The weight gradients, ours and cuDNN's, and the floor: x and g read once."""
    rows = []
    for shape in CONV_SHAPES:
        sets = conv_cases(shape, device)
        moved = sets[0].x.nbytes + sets[0].g.nbytes
        us = {name: 1e3 * graph_ms([getattr(case, name) for case in sets]) for name in ("ours", "cudnn")}
        calls = CONV_CALLS[shape[1]]
        rows.append({"what": f"dweight {shape[1]} -> {shape[2]}, side {shape[3]}", "calls": calls, **us})
        rows[-1]["floor"] = 1e6 * moved / rate
    return rows


def measure_first(device: torch.device) -> list[dict]:
    """The first convolution, 3 -> 16 from float32 images, in us: its forward, and that with the weight's gradient."""
    layer = conv.FusedConv2d(3, 16, 3, padding=1, bias=False).to(device, torch.bfloat16)
    layer = layer.to(memory_format=torch.channels_last)
    inputs = [conv_images(384, 3, 32, device).float() for _ in range(12)]
    g = conv_images(384, 16, 32, device)

    def plain(x: Tensor) -> Tensor:
        return F.conv2d(x.to(torch.bfloat16), layer.weight, padding=1)

    def both(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return torch.autograd.grad(call(x), layer.weight, g)[0]

    rows = []
    for what, wrap in (("first conv, forward", lambda call, x: call(x)), ("first conv, and dweight", both)):
        us = {}
        for name, call in (("ours", layer), ("cudnn", plain)):
            calls = [lambda x=x, call=call, wrap=wrap: wrap(call, x) for x in inputs]
            us[name] = 1e3 * graph_ms(calls)
        rows.append({"what": what, "calls": 1, **us})
    return rows


def measure_casts(device: torch.device) -> dict:
    """All of WRN-40-2's convolutions' weights to bfloat16 and their gradients back."""
    net = WideResNet().to(device).to(memory_format=torch.channels_last)
    weights = [module.weight for module in net.modules() if isinstance(module, nn.Conv2d)]
    given = [torch.randn_like(weight, dtype=torch.bfloat16) for weight in weights]

    def single(weights: list[Tensor]) -> list[Tensor]:
        return [weight.to(torch.bfloat16) for weight in weights]

    us = {}
    for name, cast in (("ours", cast_all), ("cudnn", single)):
        us[name] = 1e3 * graph_ms([lambda cast=cast: torch.autograd.grad(cast(weights), weights, given)])
    return {"what": f"casts of {len(weights)} weights and back", "calls": 1, **us}


def print_conv_table(rows: list[dict]) -> None:
    print(f"\n{'us a call (bf16)':34s} {'calls':>5s} {'ours':>8s} {'torch':>8s} {'floor':>8s}")
    for row in rows:
        floor = f"{row['floor']:8.1f}" if "floor" in row else ""
        print(f"{row['what']:34s} {row['calls']:5d} {row['ours']:8.1f} {row['cudnn']:8.1f} {floor}")
    counted = [row for row in rows if "8 -> 16" not in row["what"] and row["what"] != "first conv, forward"]
    ours, other = (sum(row["calls"] * row[name] for row in counted) / 1e3 for name in ("ours", "cudnn"))
    print(f"of a WRN-40-2 step: {ours:.2f} ms instead of {other:.2f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="check only")
    parser.add_argument("--only", choices=["norm", "conv", "block"], help="one part alone")
    parser.add_argument("--no-tune", action="store_true", help="leave the launches as they are")
    parser.add_argument("--out", type=Path, help="a JSON file, or a folder for <date>-<device>-fused.json")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU"
    result: dict = {"date": str(date.today()), "device": name, "torch": torch.__version__}
    begin, parts = time.perf_counter(), [arguments.only] if arguments.only else ["norm", "conv", "block"]
    torch.backends.cudnn.benchmark = True  # as bench_step.py
    checks = {"norm": check_all, "conv": check_convolutions, "block": check_blocks}
    result["checks"] = [row for part in parts for row in checks[part](device)]
    good = all(map(passed, result["checks"]))
    print(f"checks {'passed' if good else 'FAILED'} ({time.perf_counter() - begin:.1f} s)", flush=True)
    if device.type == "cuda" and not arguments.check:
        if not arguments.no_tune:
            with torch.no_grad():
                tuners = {"norm": tune, "conv": tune_conv, "block": tune_block}
                tuned = {part: tuners[part](device) for part in parts}
            result["candidates"] = [row for rows in tuned.values() for row in rows]
            print(f"candidates timed ({time.perf_counter() - begin:.1f} s)", flush=True)
        result["copy_bytes_per_second"] = rate = copy_rate(device)
        print(f"copy: {rate / 1e12:.2f} TB/s")
        if "norm" in parts:
            result["norms"] = measure(device, rate)
            print_table(result["norms"])
        if "block" in parts:
            result["launch of blocks"] = {str(key): launch for key, launch in row_conv.LAUNCH.items()}
            result["blocks"] = measure_blocks(device)
        if "conv" in parts:
            result["launch"] = {"LAUNCH": conv.LAUNCH, "ADD": conv.ADD}
            result["launch"]["rows"] = {str(key): launch for key, launch in row_conv.LAUNCH.items()}
            timed = [*measure_rows(device, rate), *measure_conv(device, rate)]
            result["convolutions"] = [*timed, *measure_first(device), measure_casts(device)]
            print_conv_table(result["convolutions"])
    if arguments.out:
        slug = name.lower().replace(" ", "-")
        path = arguments.out
        path = path if path.suffix == ".json" else path / f"{result['date']}-{slug}-fused.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
