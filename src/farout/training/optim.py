"""Optimisers and learning-rate schedules by name. A schedule is a function of the step: nothing to save."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import nn

Schedule = Callable[[int], float]
"""Global step -> learning rate."""


def sgd(
    parameters: Iterable[nn.Parameter],
    lr: float = 0.1,
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 5e-4,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with Nesterov momentum; weight decay on every parameter, as the paper's code."""
    kept = list(parameters)
    fused = all(parameter.is_cuda for parameter in kept)  # one kernel for all, and the learning rate may be a tensor
    optimizer = light(torch.optim.SGD)(
        kept, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, fused=fused or None
    )
    optimizer.register_step_pre_hook(_begin_momentum)
    return optimizer


@cache
def light(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """`kind` without the wrappers by which torch's optimisers import its compiler, 1.7 s of every start.

    The wrappers keep torch.compile out of these functions; the engines compile the loss alone.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(inspect.unwrap(kind.step))})


def _begin_momentum(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Zero momentum where a parameter has its first gradient later than others: torch's fused step expects all or none.

    VOS has such parameters. The step is the same: 0.9·0 + g = g.
    """
    moving = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    new = [p for p in moving if optimizer.state.get(p, {}).get("momentum_buffer") is None]
    if len(new) < len(moving):
        for parameter in new:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def adamw(parameters: Iterable[nn.Parameter], lr: float = 1e-3, weight_decay: float = 1e-2) -> torch.optim.Optimizer:
    """AdamW, for heads on embeddings and for transformers."""
    return light(torch.optim.AdamW)(parameters, lr=lr, weight_decay=weight_decay)


OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {"sgd": sgd, "adamw": adamw}


def _warm(lr: float, step: int, warmup_steps: int) -> float:
    return lr * min(1.0, (step + 1) / warmup_steps) if warmup_steps else lr


def cosine(lr: float, steps_per_epoch: int, epochs: int, floor: float = 1e-6, warmup_epochs: float = 0.0) -> Schedule:
    """floor + ½ (lr − floor)(1 + cos π t/T), step by step, after a linear warm-up."""
    total, warm = steps_per_epoch * epochs, round(steps_per_epoch * warmup_epochs)

    def at(step: int) -> float:
        if step < warm:
            return _warm(lr, step, warm)
        share = (step - warm) / max(1, total - warm)
        return floor + 0.5 * (lr - floor) * (1 + math.cos(math.pi * share))

    return at


def step_decay(
    lr: float,
    steps_per_epoch: int,
    epochs: int,
    milestones: Sequence[int] = (100, 150),
    factor: float = 0.1,
    warmup_epochs: float = 0.0,
) -> Schedule:
    """lr · factor^(milestones passed), the milestones in epochs, after a linear warm-up."""
    warm = round(steps_per_epoch * warmup_epochs)

    def at(step: int) -> float:
        passed = sum(step >= milestone * steps_per_epoch for milestone in milestones)
        return _warm(lr * factor**passed, step, warm)

    return at


def constant(lr: float, steps_per_epoch: int, epochs: int) -> Schedule:
    """lr at every step."""
    return lambda step: lr


SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "cosine": cosine,
    "step": step_decay,
    "constant": constant,
}
