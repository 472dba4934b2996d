"""When a loss is no longer a number: find the step where it began, and leave a file that replays it."""

import math
from pathlib import Path

import torch
from torch import Tensor

from farout import distributed, seeds
from farout.data.pairs import ID_STREAM, OUTLIER_STREAM, Pairs, epoch_order
from farout.data.source import Source
from farout.errors import TrainingError
from farout.training.checkpoint import Checkpoints, write_state
from farout.training.descent import Descent, Objective
from farout.training.optim import Schedule
from farout.training.walk import Place, Plan, ahead, restore, take
from farout.types import Terms

ADVICE = "Lower optim.lr, or check the data for constant or non-finite samples"


def culprit(values: dict[str, float], objective: Objective | None = None) -> str | None:
    """What is not finite, in words: a loss term, else a parameter that the step has spoilt; None where all is well."""
    for name, value in values.items():
        if not math.isfinite(value):
            return f"the loss term {name!r} is {value}"
    if objective is None:
        return None
    named = list(objective.named_parameters())
    # Stacked, so that a GPU is asked once and not once a parameter.
    good = torch.stack([parameter.detach().isfinite().all() for _, parameter in named]).tolist()
    bad = [name for (name, _), fine in zip(named, good, strict=True) if not fine]
    return f"the gradient of {bad[0]!r} is not finite" if bad else None


def numbers(terms: Terms) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}


def blame(
    descent: Descent, pairs: Pairs, schedule: Schedule, plan: Plan, checkpoints: Checkpoints, until: int
) -> TrainingError:
    """Walk again from the last checkpoint to the first step that goes wrong, `until` at the latest; an error for it.

    Losses are looked at only where a row or a checkpoint is due, so that a GPU need not wait for the host; when one
    is wrong, its step has long been overwritten. The walk is exact, so it meets the same step again.
    """
    descent = descent if type(descent) is Descent else Descent(descent.objective, descent.optimizer)
    start, selection = restore(descent, checkpoints.latest())
    for place in ahead(descent, pairs, plan, start, selection):
        if place.done >= until:
            break
        before = {name: value.clone() for name, value in descent.objective.state_dict().items()}
        values = numbers(take(descent, place, schedule(place.done), plan.seed))
        wrong = culprit(values, descent.objective)
        if distributed.anywhere(wrong is not None):
            return _error(wrong, place, before, pairs, plan, checkpoints.folder.parent, start)
    return TrainingError(
        f"the loss was not finite before step {until}, but going over the steps again from the checkpoint at step "
        f"{start} it was: the run is not deterministic here (try train.deterministic=true). That checkpoint is intact"
    )


def _error(
    wrong: str | None, place: Place, before: dict[str, Tensor], pairs: Pairs, plan: Plan, folder: Path, start: int
) -> TrainingError:
    where = f"at step {place.done} (epoch {place.epoch}, step {place.step})"
    if wrong is None:
        return TrainingError(f"another rank's loss is not finite {where}; see its message")
    inliers, outliers = batch_rows(pairs, place)
    state = {
        "objective": before,
        "batch": place.batch._asdict(),
        "rows": {"inliers": inliers, "outliers": outliers},
        "place": {"epoch": place.epoch, "step": place.step, "done": place.done},
        "seed": plan.seed,
        "rank": distributed.rank(),
        "wrong": wrong,
    }
    path = folder / f"replay-{place.done:08d}-rank{distributed.rank()}.pt"
    write_state(path, state)
    return TrainingError(
        f"{wrong} {where}, on {_some('ID samples', inliers)}{_some(' and outliers', outliers)}; the checkpoint at "
        f'step {start} is intact, and farout.run.replay("{path}") runs the step again. {ADVICE}'
    )


def _some(what: str, rows: Tensor | None) -> str:
    if rows is None:
        return ""
    shown = ", ".join(map(str, rows[:5].tolist()))
    return f"{what} {shown}" + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")


def batch_rows(pairs: Pairs, place: Place) -> tuple[Tensor, Tensor | None]:
    """The numbers of a batch's samples within the training set and within the auxiliary set, for this rank."""

    def rows(source: Source, size: int, stream: int, selection: Tensor | None) -> Tensor:
        pool = len(source.set) if selection is None else len(selection)
        order = epoch_order(pool, pairs.steps * size, seeds.generator(pairs.seed, stream, place.epoch))
        order = order if selection is None else selection.cpu()[order]
        batch: Tensor = order.split(size)[place.step]
        return batch[distributed.rank() :: distributed.world_size()]

    inliers = rows(pairs.inliers, pairs.batch_size, ID_STREAM, None)
    if pairs.outliers is None:
        return inliers, None
    return inliers, rows(pairs.outliers, pairs.outlier_batch_size, OUTLIER_STREAM, place.selection)
