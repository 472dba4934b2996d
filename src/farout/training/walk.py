"""A training run as steps that are functions of (state, seed, epoch, step): where to start, and how to take one."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from farout import distributed, seeds
from farout.data.pairs import Pairs
from farout.errors import CheckpointError
from farout.training.checkpoint import State
from farout.training.descent import Descent
from farout.types import Batch, Terms

STEP_STREAM, EPOCH_STREAM = 4, 5


@dataclass(frozen=True)
class Plan:
    """How long to train, and how often to write."""

    epochs: int
    seed: int = 0
    checkpoint_every: int | None = None
    checkpoint_seconds: float = 0.0
    log_every: int = 50
    title: str = "train"


@dataclass(frozen=True)
class Place:
    """One step that lies ahead: `done` steps lie behind it; `selection` are the outliers of its epoch, None for all."""

    epoch: int
    step: int
    done: int
    batch: Batch
    selection: Tensor | None


def restore(descent: Descent, state: State | None) -> tuple[int, Tensor | None]:
    """Put a saved state back: how many steps are done, and the epoch's selection of outliers."""
    if state is None:
        return 0, None
    try:
        descent.objective.load_state_dict(state["objective"])
        descent.optimizer.load_state_dict(state["optimizer"])
        done, selection = state["progress"]["step"], state["selection"]
    except Exception as error:  # a forged state leads torch to raise nearly anything
        raise CheckpointError(f"the checkpoint does not fit this recipe: {error}") from None
    if not isinstance(done, int) or done < 0 or not (selection is None or isinstance(selection, Tensor)):
        raise CheckpointError(f"the checkpoint does not say where it was: step {done!r}")
    return done, selection


def ahead(descent: Descent, pairs: Pairs, plan: Plan, done: int, selection: Tensor | None) -> Iterator[Place]:
    """Every step from the `done`-th to the end of the plan; an epoch's outliers are chosen as it begins."""
    objective = descent.objective
    first_epoch, first_step = divmod(done, pairs.steps)
    for epoch in range(first_epoch, plan.epochs):
        if first_step == 0:
            torch.manual_seed(seeds.mix(plan.seed, EPOCH_STREAM, epoch))
            selection = objective.method.begin_epoch(objective.net, pairs.outliers, epoch)
        objective.train()
        for step, batch in enumerate(pairs.epoch(epoch, first_step, selection), first_step):
            yield Place(epoch, step, epoch * pairs.steps + step, batch, selection)
        first_step = 0


def take(descent: Descent, place: Place, lr: float, seed: int) -> Terms:
    """One step: its random numbers depend on the place alone."""
    torch.manual_seed(seeds.mix(seed, STEP_STREAM, place.epoch, place.step, distributed.rank()))
    return descent(place.batch, lr)
