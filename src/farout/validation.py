"""Held-out data as a judge: of a point when hyper-parameters are tuned, of an epoch when the best one is kept.

No test set is opened here.
"""

from pathlib import Path

import torch

from farout import build, metrics, seeds
from farout.config import Config
from farout.data.arrays import Subset
from farout.evaluation import evaluate_net
from farout.nets.net import Net
from farout.scores.embed import embed
from farout.training import Objective, RunLog, read_rows
from farout.training.checkpoint import write_state
from farout.types import Row

MOST_OUTLIERS = 10_000  # held-out outliers that are looked at
VALIDATION_STREAM = 12


def validate(config: Config, net: Net) -> Row:
    """FPR95 (ID positive), AUROC and accuracy on held-out ID data against held-out outliers."""
    splits = build.id_splits(config.data)
    outliers = build.held_out_outliers(config.data, splits.train.classes)
    order = torch.randperm(len(outliers), generator=seeds.generator(VALIDATION_STREAM))
    outliers = Subset(outliers, order[:MOST_OUTLIERS])
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


def accuracy(config: Config, net: Net) -> Row:
    """The accuracy on held-out ID data: what there is to judge by where no outliers are held out."""
    splits = build.id_splits(config.data)
    held_out = embed(net, splits.held_out)
    logits = held_out.outputs.logits[:, : len(build.class_names(splits.train))].cpu()
    return {"accuracy": metrics.accuracy(logits=logits, labels=held_out.labels), "id_count": len(logits)}


class Best:
    """Validates a run's epochs: a row for each in `validation.jsonl`, the best one's state in `checkpoints/best.pt`.

    Best is the lowest FPR95 where outliers are held out (`data.outlier_held_out`), else the highest accuracy; of equals
    the first. The state is written before the row: what a kill falls between is done again, with the same outcome.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.path = config, folder / "checkpoints" / "best.pt"
        self.log = RunLog(folder / "validation.jsonl")
        self.every = config.train.validate_every

    def look(self, net: Net, objective: Objective, epoch: int, step: int) -> None:
        """Validate after `epoch` epochs and `step` steps, if it is time and was not done; rows of later ones go."""
        self.log.keep_before(step + 1)
        rows = read_rows(self.log.path) if self.log.path.exists() else []
        if not self.every or any(row["step"] == step for row in rows):
            return
        if epoch % self.every and epoch != self.config.train.epochs:
            return
        judge = validate if self.config.data.outliers and self.config.data.outlier_held_out else accuracy
        row = {"step": step, "epoch": epoch, **judge(self.config, net)}
        if all(_merit(row) > _merit(other) for other in rows):
            state = {key: value.detach().cpu() for key, value in objective.state_dict().items()}
            write_state(self.path, {"objective": state, "progress": {"step": step}, "validation": row})
        self.log.write(row)


def _merit(row: Row) -> tuple[float, float]:
    """Bigger is better."""
    return (-row["fpr95_id"], row["auroc"]) if "fpr95_id" in row else (row["accuracy"], 0.0)
