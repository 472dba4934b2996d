"""The training loop. A step is a function of (state, seed, epoch, step): resuming is loading the state and skipping."""

import time
from collections.abc import Generator

from torch import Tensor

from farout import distributed
from farout.data.pairs import Pairs
from farout.errors import CheckpointError
from farout.training.blame import blame, culprit, numbers
from farout.training.checkpoint import Checkpoints
from farout.training.descent import Descent
from farout.training.interrupt import Interrupted, Interrupts
from farout.training.log import Bar, RunLog
from farout.training.optim import Schedule
from farout.training.walk import Plan, ahead, restore, take
from farout.types import Row

__all__ = ["Plan", "epochs", "fit", "restore"]


def fit(descent: Descent, pairs: Pairs, schedule: Schedule, plan: Plan, checkpoints: Checkpoints, log: RunLog) -> None:
    """Train to the end of the plan, from the newest checkpoint if there is one."""
    for _ in epochs(descent, pairs, schedule, plan, checkpoints, log):
        pass


def epochs(
    descent: Descent, pairs: Pairs, schedule: Schedule, plan: Plan, checkpoints: Checkpoints, log: RunLog
) -> Generator[int, None, None]:
    """Train as `fit` does, with a pause whenever an epoch is over and saved: yields how many are.

    With `plan.checkpoint_seconds`, epochs that are over soon after a checkpoint pause without being saved. A run that
    is resumed at the end of an epoch begins with that pause, which it may have missed. Close it, where it is not
    exhausted: signals are noted until then.
    """
    done, selection = _begin(descent, checkpoints, log)
    clock, saved = _Clock(pairs.images_per_step), _Since(plan.checkpoint_seconds)
    with Interrupts() as interrupts, Bar(plan.title, plan.epochs * pairs.steps, done) as bar:
        if done and done % pairs.steps == 0:
            yield done // pairs.steps
        for place in ahead(descent, pairs, plan, done, selection):
            descent.get_ready(place.batch)
            lr = schedule(place.done)
            terms = take(descent, place, lr, plan.seed)
            done = place.done + 1
            row_due = place.done % plan.log_every == 0
            stop = distributed.anywhere(interrupts.requested)
            save_due = stop or done == plan.epochs * pairs.steps
            save_due |= done % pairs.steps == 0 and saved.long_ago()
            save_due |= bool(plan.checkpoint_every and done % plan.checkpoint_every == 0)
            note = None
            if row_due or save_due:
                values = numbers(terms)
                # The weights are looked at before they are saved: a gradient of 0/0 spoils them under a finite loss.
                wrong = culprit(values, descent.objective if save_due else None)
                if distributed.anywhere(wrong is not None):
                    raise blame(descent, pairs, schedule, plan, checkpoints, until=done)
                if row_due:
                    about = {"step": place.done, "epoch": place.epoch, "lr": lr}
                    row = {**about, **values, **_stats(descent), **clock.rate(done)}
                    _write(log, row)
                    note = f"loss {sum(values.values()):.3f}, {row.get('images_per_second', 0):.0f} images/s"
                if save_due:
                    _save(checkpoints, descent, done, place.selection)
                    saved.now()
            bar.advance(note)
            if stop:
                raise Interrupted(f"interrupted after step {done}; everything up to here is saved")
            if done % pairs.steps == 0:
                yield done // pairs.steps


def _begin(descent: Descent, checkpoints: Checkpoints, log: RunLog) -> tuple[int, Tensor | None]:
    """Restore, tidy the log, and save the start: whatever happens, there is a checkpoint to go back to."""
    done, selection = restore(descent, checkpoints.latest())
    first = distributed.firsts(done)
    if distributed.anywhere(done != first):
        raise CheckpointError(
            f"rank {distributed.rank()} found the checkpoint of step {done} and rank 0 that of step {first}; "
            "all ranks must see the same run folder"
        )
    distributed.on_first(lambda: log.keep_before(done))
    if done == 0:
        _save(checkpoints, descent, done, selection)
    return done, selection


def _save(checkpoints: Checkpoints, descent: Descent, done: int, selection: Tensor | None) -> None:
    state = {
        "objective": descent.objective.state_dict(),
        "optimizer": descent.optimizer.state_dict(),
        "progress": {"step": done},
        "selection": selection,
    }
    distributed.on_first(lambda: checkpoints.save(state, done))


def _write(log: RunLog, row: Row) -> None:
    if distributed.rank() == 0:
        log.write(row)


def _stats(descent: Descent) -> dict[str, float]:
    return {name: value.item() for name, value in descent.objective.method.stats().items()}


class _Since:
    """Whether `seconds` have passed since something was done last; rank 0's clock counts for all."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now()

    def now(self) -> None:
        self.last = time.monotonic()

    def long_ago(self) -> bool:
        if self.seconds <= 0:
            return True
        return distributed.anywhere(distributed.rank() == 0 and time.monotonic() - self.last >= self.seconds)


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
