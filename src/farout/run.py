"""The main jobs, each over a run folder: train a recipe, evaluate what came out.

runs/NAME/   config.yaml  log.jsonl  checkpoints/  detector/  results.jsonl  scores.npz  table.md
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farout import build
from farout.config import Config
from farout.detector import Detector
from farout.errors import CheckpointError, ConfigError
from farout.evaluation import evaluate_net
from farout.report.table import long_table, markdown
from farout.training import Checkpoints, RunLog, fit
from farout.training.checkpoint import write_atomically
from farout.types import Row


@dataclass(frozen=True)
class Run:
    """A run folder and the detector that came out of it."""

    folder: Path
    config: Config
    detector: Detector


def default_folder(config: Config) -> Path:
    """runs/RECIPE/sSEED, as people lay out seeds."""
    return Path("runs") / config.name / f"s{config.train.seed}"


def train(
    recipe: str | Path | Config,
    overrides: Sequence[str] = (),
    *,
    run: str | Path | None = None,
    resume: bool = False,
) -> Run:
    """Train a recipe into a run folder and save the calibrated detector there.

    A folder that already holds a run is refused unless `resume`; resuming continues exactly, a finished run is
    returned as it is.

    >>> farout.train("demo/dal", ["train.seed=1"]).detector(images)        # doctest: +SKIP
    """
    config = recipe if isinstance(recipe, Config) else Config.load(recipe, overrides)
    folder = Path(run) if run is not None else default_folder(config)
    _check(folder, config, resume)
    if resume and (folder / "detector" / "detector.json").is_file():
        return Run(folder, config, Detector.load(folder / "detector"))
    work = build.job(config)
    write_atomically(folder / "config.yaml", lambda file: _put(file, config.to_yaml()))
    fit(
        work.descent,
        work.pairs,
        work.schedule,
        work.plan,
        Checkpoints(folder / "checkpoints"),
        RunLog(folder / "log.jsonl"),
    )
    detector = _detector(config, work)
    detector.save(folder / "detector")
    return Run(folder, config, detector)


def _check(folder: Path, config: Config, resume: bool) -> None:
    """A folder is free, or holds a run of this very recipe that is to be resumed."""
    path = folder / "config.yaml"
    if not path.exists():
        return
    if not resume:
        raise ConfigError(f"{folder} already holds a run; continue it with --resume or choose another --run folder")
    if Config.load(path) != config:
        raise ConfigError(
            f"{folder} was started from a different recipe (see {path}); resume with the same recipe and overrides, "
            "or choose another --run folder"
        )


def _put(file: Any, text: str) -> None:
    file.write(text.encode())


def _detector(config: Config, work: build.Job) -> Detector:
    splits = build.id_splits(config.data)
    score = next(iter(build.scores(config).values()))
    detector = Detector(work.net, score, classes=build.class_names(splits.train), size=config.data.size)
    detector.fit(splits.train if score.needs_fit else None, splits.held_out, tpr=config.eval.tpr)
    detector.about.update(method=config.method["name"], recipe=config.name, seed=config.train.seed)
    return detector


def load_run(folder: str | Path) -> Run:
    """A finished run from its folder."""
    folder = Path(folder)
    path = folder / "config.yaml"
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a run: it has no config.yaml")
    if not (folder / "detector" / "detector.json").is_file():
        raise CheckpointError(f"the run in {folder} is not finished; finish it with `farout train ... --resume`")
    return Run(folder, Config.load(path), Detector.load(folder / "detector"))


def evaluate(
    run: str | Path | Run,
    overrides: Sequence[str] = (),
    *,
    scores: Sequence[Any] = (),
    recipe: str | Path | None = None,
) -> list[Row]:
    """Test a run on its recipe's ID and OOD test sets; the rows are also written to `results.jsonl` beside it.

    `run` may also be a detector folder; then `recipe` says what to test on.
    """
    loaded = run if isinstance(run, Run) else _load(Path(run), recipe)
    config = loaded.config
    if overrides:
        config = Config.from_dict(_overridden(config, overrides))
    id_test, ood_tests = build.test_sets(config.data)
    if not ood_tests:
        raise ConfigError("the recipe names no OOD test sets; set data.test, e.g. data.test=[textures]")
    net = loaded.detector.net.to(build.device(config.train.device))
    table = build.scores(config, list(scores))
    train_set = build.id_splits(config.data).train if any(s.needs_fit for s in table.values()) else None
    rows, kept = evaluate_net(
        net,
        table,
        id_test,
        ood_tests,
        train=train_set,
        num_classes=len(loaded.detector.classes) or None,
        ood_count=config.eval.ood_count,
        seed=config.train.seed,
    )
    about = {"recipe": config.name, "method": config.method["name"], "seed": config.train.seed}
    rows = [{**about, **row} for row in rows]
    _write_results(loaded.folder, rows, kept)
    return rows


def _load(folder: Path, recipe: str | Path | None) -> Run:
    if (folder / "detector.json").is_file():
        if recipe is None:
            raise ConfigError(f"{folder} is a detector; say what to test it on with --recipe, e.g. --recipe demo/dal")
        return Run(folder, Config.load(recipe), Detector.load(folder))
    return load_run(folder)


def _overridden(config: Config, overrides: Sequence[str]) -> dict[str, Any]:
    from farout.config import merge, parse_override

    tree: dict[str, Any] = config.to_dict()
    for override in overrides:
        tree = merge(tree, parse_override(override))
    return tree


def _write_results(folder: Path, rows: list[Row], kept: dict[str, dict[str, torch.Tensor]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "results.jsonl", lambda file: _put(file, text))
    write_atomically(folder / "table.md", lambda file: _put(file, markdown(*long_table(rows))))
    arrays = {f"{score}|{name}": values.numpy() for score, sets in kept.items() for name, values in sets.items()}
    write_atomically(folder / "scores.npz", lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
