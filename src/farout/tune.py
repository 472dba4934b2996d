"""Tuning as the paper does it, over an Optuna study: hyper-parameters are chosen on data cut from the training sets.

The objective is FPR95 (ID positive) of the detector's score, held-out ID data against auxiliary outliers that are
held out too, or against what else `data.validation` names. No test set is opened until the study is over, and then
once, for the winner.

runs/tune/STUDY/   study.db  study.json  trials.jsonl  best.yaml  trials/POINT/{log.jsonl, checkpoints/}  winner/

A study is resumed by the same call, and any number of processes may work on it: what to try next is a function of
what the study holds. A trial whose process died is recognised by its lock and goes on from its last checkpoint.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from farout import build, validation
from farout.components import choose
from farout.config import Config
from farout.entries import changed
from farout.errors import ConfigError, TrainingError
from farout.protocols import load_protocol
from farout.run import Run, evaluate, train
from farout.spaces import Choices, Space, load_space, plain_space
from farout.training import read_rows
from farout.training.checkpoint import write_atomically
from farout.tuning.search import PRUNERS, SAMPLERS, need_optuna
from farout.tuning.study import open_study, write_rows
from farout.tuning.terms import Terms, as_overrides, at
from farout.tuning.work import Tell, in_processes, work
from farout.types import Row

HELD_OUT = 0.1  # share of the outliers kept for validation where the recipe does not say


@dataclass(frozen=True)
class Tuned:
    """A study's outcome: the best point as overrides, its validation row, every trial's row, and the winner's test."""

    folder: Path
    overrides: list[str]
    best: Row
    rows: list[Row]
    winner: Run | None = None
    test_rows: Sequence[Row] = ()


def tune(
    recipe: str | Path | Config,
    overrides: Sequence[str] = (),
    *,
    space: str | Path | Space = "paper",
    trials: int = 50,
    sampler: str = "coordinate",
    pruner: str | None = None,
    storage: str | None = None,
    study: str | None = None,
    folder: str | Path | None = None,
    jobs: int = 1,
    seed: int = 0,
    rounds: int = 50,
    test: bool = False,
    protocol: str | Path | None = None,
    tell: Tell = lambda line: None,
) -> Tuned:
    """Search `space` for the lowest validation FPR95 in at most `trials` trainings; the same call resumes a study.

    sampler   coordinate (the paper's, `rounds` times), grid, tpe or random
    pruner    halving stops trainings early that are not among the best third; None trains all to the end
    storage   SQLite in `folder` by default; any Optuna address (postgresql://...) or journal:PATH
    jobs      processes on this machine; other machines join with the same call and `storage`
    test      train the winner on all outliers and test it, once
    protocol  its ID, auxiliary and test sets instead of the recipe's

    >>> farout.tune.tune("demo/dal", space="paper", trials=50).overrides           # doctest: +SKIP
    """
    need_optuna()
    config = recipe if isinstance(recipe, Config) else Config.load(recipe)
    if protocol is not None:
        config = load_protocol(protocol).apply(config)
    config = changed(config, overrides)
    named = load_space(space) if isinstance(space, (str, Path)) else space
    title = study or "-".join([config.name, Path(space).stem if isinstance(space, (str, Path)) else "space"])
    title = title.replace("/", "-")
    home = Path(folder) if folder is not None else Path("runs") / "tune" / title
    validated = _with_held_out(config)
    terms = Terms(validated.to_dict(), plain_space(named), title, sampler, pruner, seed, rounds, trials)
    _check(terms, validated, named)
    home.mkdir(parents=True, exist_ok=True)
    address = storage or f"sqlite:///{(home / 'study.db').resolve()}"
    opened = open_study(terms, address)
    write_atomically(home / "study.json", lambda file: _put(file, json.dumps(asdict(terms), indent=2)))
    if jobs == 1:
        work(opened, terms, home, tell)
    else:
        in_processes(opened, terms, home, address, jobs, tell)
    rows = write_rows(opened, home)
    return _outcome(config, rows, named, home, test)


def _with_held_out(config: Config) -> Config:
    """The recipe with outliers held out, if validation looks at any."""
    held_out = config.data.outlier_held_out or (HELD_OUT if "outliers" in validation.wanted(config.data) else 0.0)
    return replace(config, data=replace(config.data, outlier_held_out=held_out))


def _check(terms: Terms, config: Config, space: Space) -> None:
    """Every mistake that can be seen is told before the first training."""
    choose("sampler", SAMPLERS, terms.sampler)
    if terms.pruner is not None:
        choose("pruner", PRUNERS, terms.pruner)
        if "train.epochs" in space:
            raise ConfigError("halving compares trainings at equal epochs; leave train.epochs out of the space")
    if terms.trials < 1 or terms.rounds < 1:
        raise ConfigError(f"trials and rounds must be at least 1, got {terms.trials} and {terms.rounds}")
    if config.data.outliers is None and "outliers" in validation.wanted(config.data):
        raise ConfigError(
            "tuning is validated on held-out auxiliary outliers; set data.outliers, or data.validation=[synthetic]"
        )
    validation.check(config.data)
    SAMPLERS[terms.sampler](terms, config, space, 0)  # a range where candidates are needed
    for key, dimension in space.items():
        ends = dimension.values if isinstance(dimension, Choices) else (dimension.low, dimension.high)
        for value in ends:
            build.method(at(config, {key: value}))


def _outcome(config: Config, rows: list[Row], space: Space, folder: Path, test: bool) -> Tuned:
    finished = [row for row in rows if row["state"] == "complete"]
    if not finished:
        raise TrainingError(f"no trial of the study was finished; see {folder / 'trials.jsonl'}")
    best = min(finished, key=lambda row: (row["fpr95_id"], row["trial"]))
    point = {key: best[key] for key in space}
    chosen = at(config, point)
    write_atomically(folder / "best.yaml", lambda file: _put(file, chosen.to_yaml()))
    winner, test_rows = _test_once(chosen, folder / "winner") if test else (None, [])
    return Tuned(folder, as_overrides(point), best, rows, winner, test_rows)


def _test_once(config: Config, folder: Path) -> tuple[Run, list[Row]]:
    """Train the winner with every outlier and test it; a study tests one winner, once."""
    results, recipe = folder / "results.jsonl", folder / "config.yaml"
    if results.is_file() and Config.load(recipe) != config:
        raise ConfigError(
            f"{folder} holds the test of another winner; to choose again after a test would be to choose on test sets. "
            f"Train and test it by hand if you must: farout train {folder.parent / 'best.yaml'}"
        )
    if recipe.is_file() and Config.load(recipe) != config:
        shutil.rmtree(folder)  # trained but never tested, and no longer the winner
    winner = train(config, run=folder, resume=True)
    return winner, read_rows(results) if results.is_file() else evaluate(winner)


def _put(file: Any, text: str) -> None:
    file.write(text.encode())
