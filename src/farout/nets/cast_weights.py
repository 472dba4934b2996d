"""All convolutions' weights in bfloat16 at once: under autocast each would have a launch of its own, and back another.

The numbers are autocast's: a weight is rounded once, its gradient widened.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from farout.nets.launches import runs_on


class _CastAll(torch.autograd.Function):
    """Weights -> the same in bfloat16, strides and all; gradients come back in the weights' type, all in one launch."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        cast = _copies(list(weights), torch.bfloat16)
        ctx.mark_non_differentiable(*(c for c, needed in zip(cast, ctx.needs_input_grad, strict=True) if not needed))
        return tuple(cast)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wide = iter(_copies([g for g in gradients if g is not None], torch.float32))
        return tuple(None if g is None else next(wide) for g in gradients)


def _copies(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies of one type; where strides differ from their source's, torch would make them one by one."""
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    return copies


def cast_all(weights: list[Tensor]) -> tuple[Tensor, ...]:
    """float32 weights in bfloat16, differentiably: one launch forward, one backward."""
    cast: tuple[Tensor, ...] = _CastAll.apply(*weights)  # type: ignore[no-untyped-call]
    return cast


def own_weights(net: nn.Module, x: Tensor) -> AbstractContextManager[None]:
    """Inside, nothing changes."""
    return nullcontext()


def cast_weights(net: nn.Module, x: Tensor) -> AbstractContextManager[None]:
    """Inside, the weights of net's convolutions are bfloat16 copies, if it trains under bf16 autocast and kernels run.

    Otherwise nothing changes. A forward pass that raises puts the parameters back, too.
    """
    kind = x.device.type
    if not (net.training and runs_on(x) and torch.is_autocast_enabled(kind)):
        return nullcontext()
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    weights = [module._parameters.get("weight") for module in convolutions]
    wide = all(weight is not None and weight.dtype == torch.float32 for weight in weights)
    if not wide or torch.get_autocast_dtype(kind) != torch.bfloat16:
        return nullcontext()
    return _swapped(convolutions)


@contextmanager
def _swapped(convolutions: list[nn.Conv2d]) -> Iterator[None]:
    parameters = [module._parameters["weight"] for module in convolutions]
    try:
        for module, cast in zip(convolutions, cast_all([module.weight for module in convolutions]), strict=True):
            module._parameters["weight"] = cast  # type: ignore[assignment]
        yield
    finally:
        for module, parameter in zip(convolutions, parameters, strict=True):
            module._parameters["weight"] = parameter
