"""The training loop. A step is a function of (state, seed, epoch, step): resuming is loading the state and skipping."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from farout import distributed, seeds
from farout.data.pairs import Pairs
from farout.errors import CheckpointError, TrainingError
from farout.training.checkpoint import Checkpoints, State
from farout.training.descent import Descent
from farout.training.interrupt import Interrupted, Interrupts
from farout.training.log import Bar, RunLog
from farout.training.optim import Schedule
from farout.types import Row, Terms

STEP_STREAM, EPOCH_STREAM = 4, 5


@dataclass(frozen=True)
class Plan:
    """How long to train, and how often to write."""

    epochs: int
    seed: int = 0
    checkpoint_every: int | None = None
    log_every: int = 50
    title: str = "train"


def fit(descent: Descent, pairs: Pairs, schedule: Schedule, plan: Plan, checkpoints: Checkpoints, log: RunLog) -> None:
    """Train to the end of the plan, from the newest checkpoint if there is one."""
    objective, method = descent.objective, descent.objective.method
    done, selection = restore(descent, checkpoints.latest())
    log.keep_before(done)
    first_epoch, first_step = divmod(done, pairs.steps)
    bar = Bar(plan.title, plan.epochs * pairs.steps, done)
    clock = _Clock(pairs.images_per_step)
    with Interrupts() as interrupts, bar:
        for epoch in range(first_epoch, plan.epochs):
            if first_step == 0:
                torch.manual_seed(seeds.mix(plan.seed, EPOCH_STREAM, epoch))
                selection = method.begin_epoch(objective.net, pairs.outliers, epoch)
            objective.train()
            for step, batch in enumerate(pairs.epoch(epoch, first_step, selection), first_step):
                torch.manual_seed(seeds.mix(plan.seed, STEP_STREAM, epoch, step, distributed.rank()))
                lr = schedule(done)
                terms = descent(batch, lr)
                row_due = done % plan.log_every == 0
                done += 1
                save_due = step + 1 == pairs.steps or (plan.checkpoint_every and done % plan.checkpoint_every == 0)
                if row_due or save_due or interrupts.requested:
                    values = finite(terms, epoch, step)
                    if row_due:
                        row = {
                            "step": done - 1,
                            "epoch": epoch,
                            "lr": lr,
                            **values,
                            **_stats(descent),
                            **clock.rate(done),
                        }
                        _write(log, row)
                        bar.advance(f"loss {sum(values.values()):.3f}, {row.get('images_per_second', 0):.0f} images/s")
                    if save_due or interrupts.requested:
                        _save(checkpoints, descent, done, selection)
                if not row_due:
                    bar.advance()
                if interrupts.requested:
                    raise Interrupted(f"interrupted after step {done}; everything up to here is saved")
            first_step = 0


def restore(descent: Descent, state: State | None) -> tuple[int, Tensor | None]:
    """Put a saved state back: how many steps are done, and the epoch's selection of outliers."""
    if state is None:
        return 0, None
    try:
        descent.objective.load_state_dict(state["objective"])
        descent.optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint does not fit this recipe: {error}") from None
    return state["progress"]["step"], state["selection"]


def finite(terms: Terms, epoch: int, step: int) -> dict[str, float]:
    """The terms as numbers, or an error that names the first that is not one."""
    values = {name: term.item() for name, term in terms.items()}
    for name, value in values.items():
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss term {name!r} is {value} at epoch {epoch}, step {step}; the last checkpoint is intact. "
                "Lower optim.lr, or check the data for constant or non-finite samples"
            )
    return values


def _save(checkpoints: Checkpoints, descent: Descent, done: int, selection: Tensor | None) -> None:
    if distributed.rank() == 0:
        state = {
            "objective": descent.objective.state_dict(),
            "optimizer": descent.optimizer.state_dict(),
            "progress": {"step": done},
            "selection": selection,
        }
        checkpoints.save(state, done)


def _write(log: RunLog, row: Row) -> None:
    if distributed.rank() == 0:
        log.write(row)


def _stats(descent: Descent) -> dict[str, float]:
    return {name: value.item() for name, value in descent.objective.method.stats().items()}


class _Clock:
    """Images per second since the last row; nothing on the first, which includes the start-up."""

    def __init__(self, images_per_step: int) -> None:
        self.images_per_step = images_per_step
        self.last: tuple[int, float] | None = None

    def rate(self, done: int) -> Row:
        now = time.perf_counter()
        last, self.last = self.last, (done, now)
        if last is None:
            return {}
        return {"images_per_second": round((done - last[0]) * self.images_per_step / (now - last[1]), 1)}
