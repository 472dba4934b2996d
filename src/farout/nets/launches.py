# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""How our kernels of training start: early, one behind the other; and how they are compiled, side by side.

A step is some three hundred short kernels, and between two of them a GPU drains and fills again. On Hopper and later a
kernel may be `early`: its programs take their places as soon as all of the one before have begun, and wait there
(`wait_for_inputs`) until that one is over and what it wrote can be read. Whatever touches memory comes after the wait,
so early kernels and others may follow each other as they like.

farout works without triton; functions here that need it say so.
"""

from __future__ import annotations  # `tl.constexpr` before there is a tl

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from farout.errors import FaroutError

if TYPE_CHECKING:
    import triton.language as tl

HOPPER = (9, 0)
"""The first compute capability whose kernels can wait for the one before."""

EARLY_FROM = 2_500_000
"""Elements of a kernel's largest tensor from which it starts early: to small ones the wait is no gain."""

_put_off: dict[Any, tuple[Any, ...]] | None = None
"""Launches that `compiled_together` keeps back, one of a kind. Not a context variable: backward has its own thread."""


def wait_for_inputs(EARLY: tl.constexpr):
    """The first line of every kernel: until the kernel before is over. Then the next may take its places."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def import_triton() -> Any:
    try:
        import triton
        import triton.language
    except Exception as error:  # a half-installed triton or driver raises more than ImportError
        raise FaroutError(
            f"a net with kernels: triton needs triton, which does not import here ({error}); use kernels: plain"
        ) from error
    return triton


@cache
def waiting() -> Any:
    """`wait_for_inputs` as kernels call it."""
    triton = import_triton()
    globals()["tl"] = triton.language
    return triton.jit(wait_for_inputs)


def interpreted() -> bool:
    """Whether TRITON_INTERPRET=1 is set, and was when triton came in: kernels then run in NumPy, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1" and "Interpreted" in type(waiting()).__name__


def runs_on(x: Tensor) -> bool:
    """Whether kernels can take x where it is: a GPU, or Triton's interpreter, and nobody tracing or transforming."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return x.is_cuda or interpreted()


@cache
def multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return 1  # the interpreter: PROGRAMS are enough
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def early(device: torch.device) -> bool:
    """Whether kernels of that device can start early."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < HOPPER:
        return False
    return hasattr(import_triton().language.extra.cuda, "gdc_wait")


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """kernel[grid](*arguments, **options), early where that is possible; the first argument is a tensor there."""
    size = max(argument.numel() for argument in arguments if isinstance(argument, Tensor))
    options["EARLY"] = size >= EARLY_FROM and early(arguments[0].device)
    if options["EARLY"]:
        options["launch_pdl"] = True
    if _put_off is None:
        kernel[grid](*arguments, **options)
    else:
        key = (kernel.__name__, *map(_kind, arguments), *options.items())
        _put_off.setdefault(key, (kernel, grid, arguments, options))


def _kind(argument: Any) -> Any:
    """What of an argument may decide which code is compiled; numbers as they are, to be on the safe side."""
    return (argument.dtype, argument.data_ptr() % 16 == 0) if isinstance(argument, Tensor) else argument


@contextmanager
def compiled_together() -> Iterator[None]:
    """Inside, kernels are not launched: what they would write stays as memory was. At the end those that were asked for
    are compiled, as many at a time as there are cores, and their next launch finds them ready."""
    global _put_off
    assert _put_off is None, "compiled_together is not to be nested"
    _put_off = {}
    try:
        yield
        wanted = list(_put_off.values())
    finally:
        _put_off = None
    with ThreadPoolExecutor(os.cpu_count()) as pool, import_triton().AsyncCompileMode(pool):
        for kernel, grid, arguments, options in wanted:
            kernel.run(*arguments, grid=grid, warmup=True, **options)


def can_compile_together() -> bool:
    """Whether this triton has the means: from 3.5 on."""
    return hasattr(import_triton(), "AsyncCompileMode")
