# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""All steps of the search in one launch, for a linear head in float32 on a GPU.

A step is two dependent products, the logits W(z + p) + b and the ascent (softmax − 1/K) W, with a softmax between
them and a row's norm after them. On a training batch each takes microseconds, so launches and gaps are what costs.

`_rows`   a small head (CIFAR's): one program a row; W, z and p stay in its registers from the first step to the last.
`_tiled`  a large head (ImageNet's): W is 8 MB, so each product is cut into tiles and slices over all multiprocessors,
          which meet between the phases of a step; W, and what they hand each other, stay in the L2 cache.

Products are exact float32 multiply-adds: the tensor cores' tf32 errs by 3e-4 and the searches agree to 1e-5.
Functions up to `_tiled` are Triton's language and become kernels at the first search: farout works without triton,
and `tl` below is then never looked up.
"""

from __future__ import annotations  # `tl.constexpr` before there is a tl

import os
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from farout.errors import FaroutError
from farout.worst_case.search import SearchRule, Worst

if TYPE_CHECKING:
    import triton.language as tl

ROWS_LIMIT = 32_768
"""Most elements of W, both sides rounded up to powers of two, for `_rows`: 64 to 128 registers in each thread."""
ROWS_ELEMENTS = 128
"""Elements of W that one of `_rows`' threads holds, where they are many enough."""
TILED_PATH = "persistent"
"""How `_tiled` runs: "persistent", all phases in one launch with barriers between them; "split", a launch a phase."""
COOPERATIVE = True
"""The driver refuses a persistent launch whose programs cannot all run at once: its barriers would never open."""
PRECISION = "ieee"
"""Of `_tiled`'s products: "ieee", or "tf32x3", three tf32 products on the tensor cores for one."""
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_R": 16}
LAUNCH = {"num_warps": 4, "num_stages": 3}
SHORTEST_SLICE = 128
"""Terms of a product's sum that one program takes at least."""
PATIENCE = 2_000_000
"""Looks at a barrier, seconds of them, before a program gives up and turns its costs into NaN."""


# ---- one row: a block is its D entries, padded with zeros that stay zeros


def _norm(v):
    return tl.sqrt(tl.sum(v * v, axis=0))


def _over_norm(v):
    """v / ‖v‖₂, and 0 where v is 0."""
    norm = _norm(v)
    return tl.where(norm > 0, v / tl.where(norm > 0, norm, 1.0), 0.0)


def _sign(v):
    return tl.where(v > 0, 1.0, 0.0) - tl.where(v < 0, 1.0, 0.0)


def _cost(p, scale, L2: tl.constexpr):
    """c(p): ‖p‖₂, or scale·Σ|p_j| with scale 1 for l1 and 1/D for mean-abs."""
    if L2:
        c = _norm(p)
    else:
        c = tl.sum(tl.abs(p), axis=0) * scale
    return c


def _subgradient(p, scale, L2: tl.constexpr):
    if L2:
        s = _over_norm(p)
    else:
        s = _sign(p) * scale
    return s


def _shrunk(size, threshold):
    """max(size − threshold, 0), but a NaN stays a NaN, as in torch."""
    return tl.where(size <= threshold, 0.0, size - threshold)


def _prox(p, threshold, scale, L2: tl.constexpr):
    if L2:
        least = _over_norm(p) * _shrunk(_norm(p), threshold)
    else:
        least = _sign(p) * _shrunk(tl.abs(p), threshold * scale)
    return least


def _move(p, ascent, gamma, step_size, scale, L2: tl.constexpr, STEP: tl.constexpr):
    """One step of the rule: `search.STEPS` in Triton."""
    if STEP == "proximal":
        moved = _prox(p + step_size * ascent, step_size * gamma, scale, L2)
    else:
        uphill = ascent - gamma * _subgradient(p, scale, L2)
        if STEP == "unit":
            uphill = _over_norm(uphill)
        moved = p + step_size * uphill
    return moved


def _excess(logits, K):
    """softmax − 1/K of one row of logits, which is −∞ beyond K."""
    e = tl.exp(logits - tl.max(logits, axis=0))
    return e / tl.sum(e, axis=0) - 1.0 / K


# ---- a small head: one program a row


def _ascent(w, b, x, K):
    """(softmax(W x + b) − 1/K) W for one row x; b is −∞ beyond K."""
    logits = tl.sum(w * x[None, :], axis=1) + b
    return tl.sum(w * _excess(logits, K)[:, None], axis=0)


def _rows(
    z, p0, weight, bias, gamma, p_out, cost_out, D, K, steps, step_size, scale,
    HAS_BIAS: tl.constexpr, L2: tl.constexpr, STEP: tl.constexpr, BEFORE_LAST: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The whole search of one row; W's rows are spread over the warps, its columns over a warp's lanes."""
    d, k = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_K)
    in_d, in_k = d < D, k < K
    at = tl.program_id(0) * D + d
    w = tl.load(weight + k[:, None] * D + d[None, :], mask=in_k[:, None] & in_d[None, :], other=0.0)
    b = tl.where(in_k, 0.0, float("-inf"))
    if HAS_BIAS:
        b += tl.load(bias + k, mask=in_k, other=0.0)
    here = tl.load(z + at, mask=in_d, other=0.0)
    p = tl.load(p0 + at, mask=in_d, other=0.0)
    price = tl.load(gamma)
    for _ in range(steps - 1):
        p = _move(p, _ascent(w, b, here + p, K), price, step_size, scale, L2, STEP)
    # The last step stands apart: carried through the loop beside p, `charged` came out as p0 on a GPU (triton 3.6).
    charged = p
    if steps > 0:
        p = _move(p, _ascent(w, b, here + p, K), price, step_size, scale, L2, STEP)
    tl.store(p_out + at, p, mask=in_d)
    if not BEFORE_LAST:
        charged = p
    tl.store(cost_out + tl.program_id(0), _cost(charged, scale, L2))


# ---- a large head: phases, each shared out over all programs; what one writes another reads in the next, through L2
#      (`.cg`: a multiprocessor's own L1 may still hold the last step's). x is z + p turned, (D, M): lanes of a warp
#      then read neighbours of it from shared memory, where columns of W^T would collide in one bank.


def _start(z, p0, p, x, cost, M, D, scale, L2: tl.constexpr, ROW_D: tl.constexpr):
    """p ← p0, x ← (z + p0)^T, cost ← c(p0)."""
    d = tl.arange(0, ROW_D)
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        at = row * D + d
        first = tl.load(p0 + at, mask=d < D, other=0.0)
        tl.store(p + at, first, mask=d < D)
        tl.store(x + d * M + row, tl.load(z + at, mask=d < D, other=0.0) + first, mask=d < D)
        tl.store(cost + row, _cost(first, scale, L2))


def _products(
    a, a_row, b, parts, parts_row, M, N, R, slices, TURNED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """parts[s] ← Σ_{r in slice s} a[:, r] b[r, :], or its transpose; tiles alone would leave most programs idle.

    a's rows may be padded with zeros, to multiples of 16 for wide loads, and so may those of parts.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    length = tl.cdiv(tl.cdiv(R, slices), BLOCK_R) * BLOCK_R
    for item in range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tiles_n * slices, tl.num_programs(0)):
        part, tile = item % slices, item // slices
        m = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
        n = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for r0 in range(part * length, min((part + 1) * length, R), BLOCK_R):
            r = r0 + tl.arange(0, BLOCK_R)
            in_a = (m < M)[:, None] & (r < a_row)[None, :]
            in_b = (r < R)[:, None] & (n < N)[None, :]
            left = tl.load(a + m[:, None] * a_row + r[None, :], mask=in_a, other=0.0, cache_modifier=".cg")
            right = tl.load(b + r[:, None] * N + n[None, :], mask=in_b, other=0.0, cache_modifier=".cg")
            acc = tl.dot(left, right, acc, input_precision=PRECISION)
        if TURNED:
            at = (part * N + n[:, None]) * parts_row + m[None, :]
            tl.store(parts + at, tl.trans(acc), mask=(n < N)[:, None] & (m < parts_row)[None, :])
        else:
            at = (part * M + m[:, None]) * parts_row + n[None, :]
            tl.store(parts + at, acc, mask=(m < M)[:, None] & (n < parts_row)[None, :])


def _summed(parts, at, inside, stride, slices, BLOCK: tl.constexpr):
    """Σ_s parts[s] for one row, always in the same order; unrolled, so that several loads are under way at once."""
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.range(0, slices, loop_unroll_factor=4):
        total += tl.load(parts + part * stride + at, mask=inside, other=0.0, cache_modifier=".cg")
    return total


def _softmaxes(parts, bias, q, q_row, M, K, slices, HAS_BIAS: tl.constexpr, ROW_K: tl.constexpr):
    """q ← softmax(logits) − 1/K, 0 in the padding."""
    k = tl.arange(0, ROW_K)
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        at = row * q_row + k
        logits = _summed(parts, at, k < q_row, M * q_row, slices, ROW_K)
        if HAS_BIAS:
            logits += tl.load(bias + k, mask=k < K, other=0.0)
        excess = _excess(tl.where(k < K, logits, float("-inf")), K)
        tl.store(q + at, tl.where(k < K, excess, 0.0), mask=k < q_row)


def _moves(
    z, p, x, cost, parts, gamma, M, D, slices, step_size, scale,
    L2: tl.constexpr, STEP: tl.constexpr, BEFORE_LAST: tl.constexpr, ROW_D: tl.constexpr,
):  # fmt: skip
    """p ← one step from p, x ← (z + p)^T, cost ← what is charged if this step is the last."""
    d = tl.arange(0, ROW_D)
    price = tl.load(gamma)
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        at = row * D + d
        charged = tl.load(p + at, mask=d < D, other=0.0, cache_modifier=".cg")
        here = tl.load(z + at, mask=d < D, other=0.0)
        ascent = _summed(parts, at, d < D, M * D, slices, ROW_D)
        after = _move(charged, ascent, price, step_size, scale, L2, STEP)
        tl.store(p + at, after, mask=d < D)
        tl.store(x + d * M + row, here + after, mask=d < D)
        if not BEFORE_LAST:
            charged = after
        tl.store(cost + row, _cost(charged, scale, L2))


def _meet(arrived, expected, patience):
    """Wait for `expected` arrivals in all; a program that runs out of patience waits at no barrier after this one."""
    tl.debug_barrier()  # all threads of the program have written before one of them says so
    seen = tl.atomic_add(arrived, 1, sem="acq_rel") + 1
    looks = 0
    while (seen < expected) & (looks < patience):
        seen = tl.atomic_add(arrived, 0, sem="acquire")
        looks += 1
    tl.debug_barrier()
    return tl.where(seen < expected, 0, patience)


def _tiled(
    z, p0, weight, bias, gamma, p, cost, x, q, parts, arrived, M, D, K, q_row, slices_d, slices_k,
    first, last, patience, step_size, scale,
    HAS_BIAS: tl.constexpr, L2: tl.constexpr, STEP: tl.constexpr, BEFORE_LAST: tl.constexpr,
    ROW_D: tl.constexpr, ROW_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Phases `first` to `last` − 1: the start, then logits, softmaxes, ascents and moves of each step."""
    expected = 0
    for phase in range(first, last):
        turn = phase % 4
        if phase == 0:
            _start(z, p0, p, x, cost, M, D, scale, L2, ROW_D)
        elif turn == 1:
            _products(weight, D, x, parts, q_row, K, M, D, slices_d, True, BLOCK_N, BLOCK_M, BLOCK_R, PRECISION)
        elif turn == 2:
            _softmaxes(parts, bias, q, q_row, M, K, slices_d, HAS_BIAS, ROW_K)
        elif turn == 3:
            _products(q, q_row, weight, parts, D, M, D, K, slices_k, False, BLOCK_M, BLOCK_N, BLOCK_R, PRECISION)
        else:
            _moves(z, p, x, cost, parts, gamma, M, D, slices_k, step_size, scale, L2, STEP, BEFORE_LAST, ROW_D)
        if phase + 1 < last:
            expected += tl.num_programs(0)
            patience = _meet(arrived, expected, patience)
    if patience == 0:
        for row in range(tl.program_id(0), M, tl.num_programs(0)):
            tl.store(cost + row, float("nan"))


# ---- Python again


class Problem(NamedTuple):
    """One search as its kernels take it: z, p0 (M, D), weight (K, D), bias (K,) or None, gamma a scalar tensor."""

    z: Tensor
    p0: Tensor
    weight: Tensor
    bias: Tensor | None
    gamma: Tensor
    steps: int
    step_size: float
    cost: str
    step: str
    before_last: bool

    def sizes(self) -> tuple[int, int, int]:
        """M, D, K."""
        return self.z.shape[0], self.z.shape[1], self.weight.shape[0]

    def scale(self) -> float:
        """What l1 is multiplied by: mean-abs is l1 / D."""
        return 1 / self.z.shape[1] if self.cost == "mean-abs" else 1.0

    def switches(self) -> dict[str, Any]:
        """What a kernel is compiled for."""
        return {
            "HAS_BIAS": self.bias is not None,
            "L2": self.cost == "l2",
            "STEP": self.step,
            "BEFORE_LAST": self.before_last,
        }


@cache
def kernels() -> dict[str, Any]:
    """The two kernels by name, triton imported; their helpers are turned in place, where the kernels look them up."""
    try:
        import triton
        import triton.language
    except Exception as error:  # a half-installed triton or driver raises more than ImportError
        raise FaroutError(
            f"the triton search needs triton, which does not import here ({error}); use search='closed-form'"
        ) from error
    scope = globals()
    scope["tl"] = triton.language
    helpers = [_norm, _over_norm, _sign, _cost, _subgradient, _shrunk, _prox, _move, _excess, _ascent]
    phases = [_start, _products, _summed, _softmaxes, _moves, _meet]
    for function in helpers + phases:
        scope[function.__name__] = triton.jit(function)
    unspecialized = ["slices_d", "slices_k", "first", "last", "patience"]
    return {
        "rows": triton.jit(_rows, do_not_specialize=["steps"]),
        "tiled": triton.jit(_tiled, do_not_specialize=unspecialized),
    }


def interpreted() -> bool:
    """Whether TRITON_INTERPRET=1 is set, and was when triton came in: kernels then run in NumPy, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1" and "Interpreted" in type(kernels()["rows"]).__name__


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return 8  # the interpreter: enough to cut a product into slices
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _padded(n: int) -> int:
    return -(-n // 16) * 16


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def fits_rows(D: int, K: int) -> bool:
    """Whether `_rows` can hold a K × D head."""
    return _power_of_two(D) * _power_of_two(K) <= ROWS_LIMIT


def rows_search(at: Problem) -> tuple[Tensor, Tensor]:
    """A small head: one launch of `_rows`, a program a row."""
    M, D, K = at.sizes()
    p, cost = torch.empty_like(at.z), at.z.new_empty(M)
    block_d, block_k = _power_of_two(D), _power_of_two(K)
    kernels()["rows"][(M,)](
        *(at.z, at.p0, at.weight, at.bias, at.gamma, p, cost, D, K, at.steps, at.step_size, at.scale()),
        **at.switches(),
        BLOCK_D=block_d,
        BLOCK_K=block_k,
        num_warps=min(max(block_d * block_k // (32 * ROWS_ELEMENTS), 1), 16),
    )
    return p, cost


def _slices(terms: int, tiles: int, programs: int) -> int:
    """How many slices a product's sum is cut into, so that tiles × slices comes near the number of programs."""
    return max(1, min(programs // tiles, -(-terms // SHORTEST_SLICE)))


def tiled_search(
    at: Problem,
    *,
    path: str = TILED_PATH,
    precision: str = PRECISION,
    cooperative: bool = COOPERATIVE,
    patience: int = PATIENCE,
    arrived: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A large head: `_tiled`, all phases in one launch or a launch a phase; costs are NaN where it gave up waiting.

    arrived   int32, 0: counts the programs at the barriers
    """
    M, D, K = at.sizes()
    programs, tile = _multiprocessors(at.z.device), TILE["BLOCK_N"]
    tiles_m, q_row = max(1, -(-M // TILE["BLOCK_M"])), _padded(K)
    slices_d, slices_k = _slices(D, tiles_m * -(-K // tile), programs), _slices(K, tiles_m * -(-D // tile), programs)
    p, cost = torch.empty_like(at.z), at.z.new_empty(M)
    x, q, parts = map(at.z.new_empty, (D * M, M * q_row, M * max(slices_d * q_row, slices_k * D)))
    if arrived is None:
        arrived = torch.zeros(1, dtype=torch.int32, device=at.z.device)
    options: dict[str, Any] = {**at.switches(), **TILE, **LAUNCH, "PRECISION": precision}
    options |= {"ROW_D": _power_of_two(D), "ROW_K": _power_of_two(q_row)}
    if path == "persistent" and cooperative and not interpreted():
        options["launch_cooperative_grid"] = True
    phases = 1 + 4 * at.steps
    for first, last in [(0, phases)] if path == "persistent" else [(n, n + 1) for n in range(phases)]:
        # the interpreter runs programs one after another: a second one would never be waited for
        kernels()["tiled"][(1 if interpreted() else programs,)](
            *(at.z, at.p0, at.weight, at.bias, at.gamma, p, cost, x, q, parts, arrived),
            *(M, D, K, q_row, slices_d, slices_k, first, last, patience, at.step_size, at.scale()),
            **options,
        )
    return p, cost


def _check(at: Problem) -> None:
    """Kernels read raw memory: whatever they would misread is refused here."""
    M, D, K = at.sizes()
    if at.cost not in ("l1", "mean-abs", "l2") or at.step not in ("gradient", "unit", "proximal"):
        raise ValueError(f"the triton search knows no cost {at.cost!r} with step {at.step!r}; use search='closed-form'")
    if at.p0.shape != (M, D) or at.weight.shape != (K, D):
        raise ValueError(
            f"z {tuple(at.z.shape)}, p0 {tuple(at.p0.shape)} and weight {tuple(at.weight.shape)} do not fit: "
            "they must be (M, D), (M, D) and (K, D)"
        )
    wrong = {t.dtype for t in (at.z, at.p0, at.weight)} - {torch.float32}
    if wrong:
        raise TypeError(f"the triton search is for float32, this one has {wrong.pop()}; use search='closed-form'")
    if at.z.device.type != "cuda" and not interpreted():
        raise FaroutError(
            f"the triton search runs on a GPU, these embeddings are on {at.z.device}; use search='closed-form'"
        )
    if len({t.device for t in (at.z, at.p0, at.weight)}) > 1:
        raise ValueError(
            f"z, p0 and the head are on {at.z.device}, {at.p0.device} and {at.weight.device}; move them to one device"
        )


def _search(
    z: Tensor,
    p0: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    steps: int,
    step_size: float,
    cost: str,
    step: str,
    before_last: bool,
) -> tuple[Tensor, Tensor]:
    at = Problem(z, p0, weight, bias, gamma, steps, step_size, cost, step, before_last)
    _check(at)
    at = at._replace(z=z.contiguous(), p0=p0.contiguous(), weight=weight.contiguous(), gamma=gamma.to(z))
    with torch.cuda.device_of(z):
        return (rows_search if fits_rows(z.shape[1], weight.shape[0]) else tiled_search)(at)


# An operator, so that torch.compile keeps the search in its graph instead of looking inside. Eager code calls
# `_search` itself: the dispatcher's way round a Python operator costs more than the kernel.
_operator = torch.library.custom_op(
    "farout::worst_case_search",
    _search,
    mutates_args=(),
    schema="(Tensor z, Tensor p0, Tensor weight, Tensor? bias, Tensor gamma, int steps, float step_size,"
    " str cost, str step, bool before_last) -> (Tensor, Tensor)",
)


@_operator.register_fake
def _shapes(z: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(z), z.new_empty(z.shape[0])


@torch.no_grad()
def triton_search(
    head: nn.Module, z: Tensor, p0: Tensor, gamma: Tensor, *, steps: int, step_size: float, rule: SearchRule
) -> Worst:
    """The closed-form search in one launch: a linear head, float32, a GPU. z, p0 (M, D) -> p (M, D), cost (M,)."""
    if not isinstance(head, nn.Linear):
        raise TypeError(
            f"the triton search needs a linear head, this one is a {type(head).__name__}; use search='autograd'"
        )
    search = _operator if torch.compiler.is_compiling() else _search
    before_last = rule.charge == "before-last"
    return Worst(*search(z, p0, head.weight, head.bias, gamma, steps, step_size, rule.cost, rule.step, before_last))
