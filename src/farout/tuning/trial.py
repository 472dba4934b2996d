"""One trial: train a point of the space, judge it on held-out data. No test set is opened here."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from farout import build
from farout.config import Config
from farout.errors import TrainingError
from farout.training import Checkpoints, RunLog, epochs
from farout.types import Row
from farout.validation import validate

WORST: Row = {"fpr95_id": 1.0, "auroc": 0.0, "accuracy": 0.0}


Prune = Callable[[float, int], bool]
"""Told the validation FPR95 after some epochs, it says whether to stop there."""


def stops(epochs: int, eta: int) -> list[int]:
    """The epochs after which successive halving looks at a training: about 1/eta², 1/eta, nearly all, and the end.

    >>> stops(50, 3)
    [5, 15, 45, 50]
    """
    first = max(1, epochs // eta**2)
    early = [first * eta**rung for rung in range(3)]
    return [*(epoch for epoch in early if epoch < epochs), epochs]


def measure(config: Config, home: Path, looks: Sequence[int] = (), prune: Prune | None = None) -> tuple[Row, bool]:
    """Train in `home`, from its checkpoint if there is one: the validation row, and whether `prune` stopped it.

    The learning rate's schedule is that of the whole training, wherever it stops. A training that diverges counts as
    the worst there is.
    """
    last = config.train.epochs
    row: Row = {}
    with build.deterministic(config.train.deterministic):
        work = build.job(config)
        checkpoints, log = Checkpoints(home / "checkpoints"), RunLog(home / "log.jsonl")
        try:
            with closing(epochs(work.descent, work.pairs, work.schedule, work.plan, checkpoints, log)) as pauses:
                for epoch in pauses:
                    if epoch in looks or epoch == last:
                        row = {**validate(config, work.net), "epochs": epoch}
                    if epoch in looks and epoch < last and prune is not None and prune(row["fpr95_id"], epoch):
                        return row, True
        except TrainingError as error:
            return {**WORST, "epochs": last, "why": str(error)}, False
        return row or {**validate(config, work.net), "epochs": last}, False
