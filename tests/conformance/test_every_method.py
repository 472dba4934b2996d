"""What must hold for every entry of METHODS, whoever wrote it."""

import math
import os
import signal
from contextlib import nullcontext
from functools import cache

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from farout.config import Config, recipe_names
from farout.detector import Detector
from farout.methods import METHODS, Method
from farout.scores import SCORES
from farout.training import Checkpoints, Interrupted, fit, load_state, read_rows
from farout.training.walk import ahead, take

pytestmark = pytest.mark.parametrize("name", sorted(METHODS))


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return left == right


def last_state(folder):
    return load_state(Checkpoints(folder / "checkpoints").files()[-1])


def test_losses_are_finite_and_a_stopped_run_resumes_bit_for_bit(name, tmp_path):
    tiny.run(name, tmp_path / "whole")
    job, checkpoints, log = tiny.start(name, tmp_path / "cut")
    inner, calls = job.descent.objective.method.update, []

    def update(net, batch, descend):
        calls.append(1)
        if len(calls) == 8:  # in the middle of the second epoch
            os.kill(os.getpid(), signal.SIGINT)
        return inner(net, batch, descend)

    job.descent.objective.method.update = update
    with pytest.raises(Interrupted):
        fit(job.descent, job.pairs, job.schedule, job.plan, checkpoints, log)
    assert last_state(tmp_path / "cut")["progress"] == {"step": 8}
    tiny.run(name, tmp_path / "cut")
    assert same(last_state(tmp_path / "whole"), last_state(tmp_path / "cut"))
    for row in read_rows(tmp_path / "whole" / "log.jsonl"):
        assert all(math.isfinite(value) for value in row.values()), row


def test_every_tensor_it_keeps_is_in_its_state(name):
    """A tensor as a plain attribute would be lost at a restart."""
    job, *_ = tiny.start(name, tiny.Path("unused"))
    for module in job.descent.objective.method.modules():
        loose = [key for key, value in vars(module).items() if isinstance(value, torch.Tensor)]
        assert not loose, f"{type(module).__name__} keeps {loose} outside its state"


def test_bf16_runs(name, tmp_path):
    tiny.run(name, tmp_path, "train.precision=bf16", "train.epochs=1")
    assert all(math.isfinite(row["lr"]) for row in read_rows(tmp_path / "log.jsonl"))


def test_the_config_round_trips(name, tmp_path):
    config = tiny.config(name)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert Config.load(tmp_path / "config.yaml") == config


class NoHost(TorchDispatchMode):
    """Refuses to hand a tensor's value to Python: what the host read, a recorded step would keep for ever."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            raise AssertionError(f"{func} reads a tensor on the host")
        return func(*args, **(kwargs or {}))


def test_its_step_can_be_recorded(name, monkeypatch):
    """`train.engine: graphed` records one step and replays it: no value may go through Python on the way."""
    if METHODS[name].update is not Method.update:
        pytest.skip("the engine refuses it: it takes several optimiser steps a batch")
    job, *_ = tiny.start(name, tiny.Path("unused"))
    place = next(ahead(job.descent, job.pairs, job.plan, job.pairs.steps, None))  # past all warm-ups

    def refuse(*_):
        raise AssertionError("tolist and numpy read a tensor on the host")

    for reading in ("tolist", "numpy"):  # these two do not go through the dispatcher
        monkeypatch.setattr(torch.Tensor, reading, refuse)
    able = METHODS[name].recordable
    with nullcontext() if able else pytest.raises(AssertionError, match="on the host"), NoHost():
        take(job.descent, place, lr=0.01, seed=0)


@cache
def recorded() -> set[str]:
    """The methods of all recipes whose steps are recorded."""
    recipes = map(Config.load, recipe_names())
    return {recipe.method["name"] for recipe in recipes if recipe.train.engine in ("graphed", "compiled-graph")}


def test_its_recipes_are_recorded_only_if_its_step_can_be(name):
    able = METHODS[name].update is Method.update and METHODS[name].recordable
    assert able or name not in recorded()


def test_its_detector_saves_loads_and_scores_the_same_to_the_bit(name, tmp_path):
    from farout import build

    config = tiny.config(name, "train.epochs=1")
    job = tiny.run(name, tmp_path, "train.epochs=1")
    splits = build.id_splits(config.data)
    (score,) = build.scores(config).values()
    detector = Detector(job.net, score, classes=splits.train.classes, size=8).fit(splits.train, splits.held_out)
    x, _ = splits.held_out.read(torch.arange(40))
    verdict, again = detector(x), Detector.load(detector.save(tmp_path / "d"))(x)
    assert same(list(verdict), list(again))
    assert verdict.label.max() < 6
    assert verdict.score.isfinite().all()


def test_it_says_what_it_is(name):
    kind = METHODS[name]
    assert kind.paper
    assert kind.score in SCORES
    assert kind.__doc__
    assert len(kind.__doc__) > 20
