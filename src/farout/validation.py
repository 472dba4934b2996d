"""Held-out data as a judge: of a point when hyper-parameters are tuned, of an epoch when the best one is kept.

No test set is opened here.
"""

from dataclasses import replace
from pathlib import Path

import torch

from farout import build, metrics, seeds
from farout.components import choose
from farout.config import Config, DataConfig
from farout.data.arrays import Subset
from farout.data.source import ImageSet
from farout.data.synthetic import SYNTHETIC, check_images, synthetic_sets
from farout.errors import ConfigError
from farout.evaluation import evaluate_net
from farout.nets.net import Net
from farout.scores.embed import embed
from farout.training import Objective, RunLog, read_rows
from farout.training.checkpoint import write_state
from farout.types import Row

MOST_OUTLIERS = 10_000  # held-out outliers that are looked at
MOST_SYNTHETIC = 5_000  # held-out ID images that synthetic outliers are made of: they are all in memory, six times
VALIDATION_STREAM = 12

KINDS = {"outliers": ("outliers",), "synthetic": tuple(SYNTHETIC), **{name: (name,) for name in SYNTHETIC}}


def wanted(data: DataConfig) -> list[str]:
    """What `data.validation` asks for, each once: outliers, and names of SYNTHETIC."""
    if not data.validation:
        raise ConfigError(f"data.validation names nothing to validate on; choose from {', '.join(KINDS)}")
    kinds = [choose("validation set", KINDS, str(entry)) for entry in data.validation]
    return list(dict.fromkeys(name for kind in kinds for name in kind))


def check(data: DataConfig) -> None:
    """Tell before training what `validate` would stumble over after it."""
    if wanted(data) != ["outliers"]:
        check_images(build.id_splits(data).held_out)


def validate(config: Config, net: Net) -> Row:
    """FPR95 (ID positive), AUROC and accuracy on held-out ID data against the sets that `data.validation` names.

    Of several sets the row has the means, each set counting the same whatever its size, and FPR95 `by_set`.
    """
    splits = build.id_splits(config.data)
    name, score = next(iter(build.scores(config).items()))
    rows, _ = evaluate_net(
        net,
        {name: score},
        splits.held_out,
        {"validation": _sets(config.data, splits)},
        train=splits.train if score.needs_fit else None,
        num_classes=len(build.class_names(splits.train)),
    )
    means = {key: sum(row[key] for row in rows) / len(rows) for key in ("fpr95_id", "auroc")}
    alike = {key: rows[0][key] for key in ("accuracy", "id_count")}
    found = {"score": name, **means, **alike, "ood_count": sum(row["ood_count"] for row in rows)}
    return {**found, "by_set": {row["ood"]: row["fpr95_id"] for row in rows}} if len(rows) > 1 else found


def _sets(data: DataConfig, splits: build.Splits) -> dict[str, ImageSet]:
    """The outliers to validate on, by name."""
    names = wanted(data)
    sets: dict[str, ImageSet] = {}
    if "outliers" in names:
        held_out = build.held_out_outliers(data, splits.train.classes)
        sets[held_out.name] = _some(held_out, MOST_OUTLIERS)
    synthetic = [name for name in names if name in SYNTHETIC]
    if synthetic:
        sets.update(synthetic_sets(_some(splits.held_out, MOST_SYNTHETIC), synthetic, VALIDATION_STREAM))
    return sets


def _some(samples: ImageSet, most: int) -> ImageSet:
    """At most so many, always the same."""
    order = torch.randperm(len(samples), generator=seeds.generator(VALIDATION_STREAM))
    return Subset(samples, order[:most])


def accuracy(config: Config, net: Net) -> Row:
    """The accuracy on held-out ID data: what there is to judge by where no outliers are held out."""
    splits = build.id_splits(config.data)
    held_out = embed(net, splits.held_out)
    logits = held_out.outputs.logits[:, : len(build.class_names(splits.train))].cpu()
    return {"accuracy": metrics.accuracy(logits=logits, labels=held_out.labels), "id_count": len(logits)}


class Best:
    """Validates a run's epochs: a row for each in `validation.jsonl`, the best one's state in `checkpoints/best.pt`.

    Best is the lowest FPR95 against what `data.validation` names, less the auxiliary outliers where none are held out
    (`data.outlier_held_out`); where nothing is left, the highest accuracy. Of equals it is the first. The state is
    written before the row: what a kill falls between is done again, with the same outcome.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        data = config.data
        there = [name for name in wanted(data) if name != "outliers" or (data.outliers and data.outlier_held_out)]
        self.judge = validate if there else accuracy
        self.config = replace(config, data=replace(data, validation=there)) if there else config
        check(self.config.data)
        self.path = folder / "checkpoints" / "best.pt"
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
        row = {"step": step, "epoch": epoch, **self.judge(self.config, net)}
        if all(_merit(row) > _merit(other) for other in rows):
            state = {key: value.detach().cpu() for key, value in objective.state_dict().items()}
            write_state(self.path, {"objective": state, "progress": {"step": step}, "validation": row})
        self.log.write(row)


def _merit(row: Row) -> tuple[float, float]:
    """Bigger is better."""
    return (-row["fpr95_id"], row["auroc"]) if "fpr95_id" in row else (row["accuracy"], 0.0)
