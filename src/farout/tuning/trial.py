"""One trial: train a point of the space, judge it on held-out data. No test set is opened here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from farout import build
from farout.config import Config
from farout.data.arrays import Subset
from farout.errors import TrainingError
from farout.evaluation import evaluate_net
from farout.nets.net import Net
from farout.training import Checkpoints, RunLog, fit
from farout.types import Row

MOST_OUTLIERS = 10_000  # held-out outliers that are looked at
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
    with build.deterministic(config.train.deterministic):
        work = build.job(config)
        checkpoints = Checkpoints(home / "checkpoints")
        done, last = _steps(checkpoints) // work.pairs.steps, config.train.epochs
        for epochs in [*(epoch for epoch in looks if done < epoch < last), last]:
            plan = replace(work.plan, epochs=epochs)
            try:
                fit(work.descent, work.pairs, work.schedule, plan, checkpoints, RunLog(home / "log.jsonl"))
            except TrainingError as error:
                return {**WORST, "epochs": epochs, "why": str(error)}, False
            row = {**validate(config, work.net), "epochs": epochs}
            if epochs < last and prune is not None and prune(row["fpr95_id"], epochs):
                return row, True
    return row, False


def _steps(checkpoints: Checkpoints) -> int:
    files = checkpoints.files()
    return int(files[-1].stem.rpartition("-")[2]) if files else 0


def validate(config: Config, net: Net) -> Row:
    """FPR95 (ID positive), AUROC and accuracy on held-out ID data against held-out outliers; no test set is opened."""
    splits = build.id_splits(config.data)
    outliers = build.held_out_outliers(config.data, splits.train.classes)
    outliers = Subset(outliers, range(min(len(outliers), MOST_OUTLIERS)))
    name, score = next(iter(build.scores(config).items()))
    rows, _ = evaluate_net(
        net,
        {name: score},
        splits.held_out,
        {"validation": {outliers.name: outliers}},
        train=splits.train if score.needs_fit else None,
        num_classes=len(build.class_names(splits.train)),
    )
    return {"score": name, **{key: rows[0][key] for key in ("fpr95_id", "auroc", "accuracy", "id_count", "ood_count")}}
