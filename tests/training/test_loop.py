"""The loop: what it writes, and that stopping anywhere and resuming changes nothing, bit for bit."""

import itertools
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch

from farout import build
from farout.config import Config
from farout.errors import CheckpointError, ConfigError
from farout.training import Checkpoints, Interrupted, RunLog, fit, load_state, read_rows

TINY = [
    "net.width=4",
    "data.batch_size=100",
    "data.outlier_batch_size=50",
    "train.epochs=2",
    "train.log_every=2",
    "train.device=cpu",
]


def start(folder, recipe="demo/dal", *overrides):
    job = build.job(Config.load(recipe, [*TINY, *overrides]))
    return job, Checkpoints(folder / "checkpoints"), RunLog(folder / "log.jsonl")


def run(folder, recipe="demo/dal", *overrides):
    job, checkpoints, log = start(folder, recipe, *overrides)
    fit(job.descent, job.pairs, job.schedule, job.plan, checkpoints, log)
    return job


def stop_at(job, step):
    """Let the process receive Ctrl-C while step `step` (from 1) runs."""
    inner, calls = job.descent.objective.method.update, []

    def update(net, batch, descend):
        calls.append(1)
        if len(calls) == step:
            os.kill(os.getpid(), signal.SIGINT)
        return inner(net, batch, descend)

    job.descent.objective.method.update = update


def assert_same_state(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, right[key]), key
        elif isinstance(value, dict):
            assert_same_state(value, right[key])
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for a, b in zip(value, right[key], strict=True):
                assert_same_state(a, b)
        else:
            assert value == right[key], key


def timeless(rows):
    return [{key: value for key, value in row.items() if key != "images_per_second"} for row in rows]


@pytest.mark.parametrize("recipe", ["demo/ce", "demo/oe", "demo/dal"])
def test_interrupted_anywhere_and_resumed_equals_uninterrupted(tmp_path, recipe):
    run(tmp_path / "whole", recipe)
    for step in (2, 6, 9):  # in the middle of an epoch, at its end, and again; 6 steps an epoch
        job, checkpoints, log = start(tmp_path / "cut", recipe)
        done = checkpoints.files()
        stop_at(job, step - (int(done[-1].stem[5:]) if done else 0))
        with pytest.raises(Interrupted, match=f"interrupted after step {step};"):
            fit(job.descent, job.pairs, job.schedule, job.plan, checkpoints, log)
    run(tmp_path / "cut", recipe)
    whole, cut = (load_state(Checkpoints(tmp_path / name / "checkpoints").files()[-1]) for name in ("whole", "cut"))
    assert whole["progress"] == {"step": 12}
    assert_same_state(whole, cut)
    whole_rows, cut_rows = (read_rows(tmp_path / name / "log.jsonl") for name in ("whole", "cut"))
    assert timeless(whole_rows) == timeless(cut_rows)


def test_the_state_is_not_a_function_of_the_seed_alone(tmp_path):
    """Guards the test above: other seeds give other weights, so equality means something."""
    left, right = (run(tmp_path / str(seed), "demo/ce", f"train.seed={seed}") for seed in (0, 1))
    assert not torch.equal(left.net.head.weight, right.net.head.weight)


def test_rows_have_terms_stats_rate_and_learning_rate(tmp_path):
    run(tmp_path)
    rows = read_rows(tmp_path / "log.jsonl")
    assert [row["step"] for row in rows] == [0, 2, 4, 6, 8, 10]
    assert {"epoch", "lr", "ce", "oe", "gamma", "radius", "gain"} <= rows[0].keys()
    assert rows[0]["lr"] == pytest.approx(0.02)
    assert rows[-1]["lr"] < 0.005
    assert rows[-1]["images_per_second"] > 0
    assert all(row["gamma"] == 0 for row in rows)


def test_checkpoints_come_at_epochs_and_every_n_steps_and_only_two_stay(tmp_path):
    run(tmp_path, "demo/ce", "train.checkpoint_every=5")
    assert [path.name for path in Checkpoints(tmp_path / "checkpoints").files()] == [
        "step-00000010.pt",
        "step-00000012.pt",
    ]


@pytest.mark.parametrize(("each", "kept"), [(30.0, [6, 12]), (100.0, [0, 12])])
def test_epochs_that_end_soon_after_a_checkpoint_are_not_saved(tmp_path, monkeypatch, each, kept):
    """Four epochs of three steps; the clock moves by 16 seconds whenever it is read."""
    ticks = itertools.count(0.0, 16.0)
    clock = SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=time.perf_counter)
    monkeypatch.setattr("farout.training.loop.time", clock)
    run(tmp_path, "demo/ce", "train.epochs=4", "data.batch_size=200", f"train.checkpoint_seconds={each}")
    files = Checkpoints(tmp_path / "checkpoints").files()
    assert [int(path.stem.partition("-")[2]) for path in files] == kept


def test_a_row_after_the_checkpoint_is_written_again_not_twice(tmp_path):
    """A kill between a row and the next checkpoint leaves rows that the resumed run repeats."""
    run(tmp_path, "demo/ce")
    log = RunLog(tmp_path / "log.jsonl")
    last = Checkpoints(tmp_path / "checkpoints").files()[-1]
    last.unlink()  # as if the process had died before writing it
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 11, "ce"')  # a line cut off by the kill
    run(tmp_path, "demo/ce")
    assert [row["step"] for row in read_rows(log.path)] == [0, 2, 4, 6, 8, 10]


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    run(tmp_path, "demo/ce")
    with pytest.raises(CheckpointError, match="the checkpoint does not fit this recipe"):
        run(tmp_path, "demo/ce", "net.width=6")


def test_bf16_trains(tmp_path):
    rows_of = {}
    for precision in ("float32", "bf16"):
        run(tmp_path / precision, "demo/ce", f"train.precision={precision}", "train.epochs=1")
        rows_of[precision] = read_rows(tmp_path / precision / "log.jsonl")
    assert rows_of["bf16"][0]["ce"] != rows_of["float32"][0]["ce"]
    assert rows_of["bf16"][0]["ce"] == pytest.approx(rows_of["float32"][0]["ce"], rel=0.05)


def test_linear_probe_trains_the_head_alone_on_features_computed_once(tmp_path):
    run(tmp_path / "pre", "demo/ce")
    before = load_state(Checkpoints(tmp_path / "pre" / "checkpoints").files()[-1])["objective"]
    job = run(tmp_path / "probe", "demo/dal", "train.only_head=true", f"train.init={tmp_path / 'pre'}")
    after = job.net.state_dict()
    assert job.pairs.inliers.x.shape[1:] == (16,)  # embeddings, not images
    assert all(torch.equal(before[f"net.{name}"], value) for name, value in after.items() if "body" in name)
    assert not torch.equal(before["net.head.weight"], after["head.weight"])
    wide = ("train.only_head=true", f"train.init={tmp_path / 'pre'}", "data.outlier_augment=wide")
    with pytest.raises(ConfigError, match="has no images to change"):
        run(tmp_path / "wide", "demo/dal", *wide)


def test_outliers_alone_are_widened(tmp_path):
    plain, wide = (
        run(tmp_path / name, "demo/oe", "train.epochs=1", f"data.outlier_augment={name}") for name in ("same", "wide")
    )
    assert wide.pairs.augments[1] is not wide.pairs.augments[2]
    assert plain.pairs.augments[1] is plain.pairs.augments[2]
    assert not torch.equal(plain.net.head.weight, wide.net.head.weight)


def test_a_method_that_asks_the_host_is_not_recorded(tmp_path):
    with pytest.raises(ConfigError, match="VOS asks the host in every step, a recording cannot; use eager"):
        start(tmp_path, "demo/ce", "method.name=vos", "train.engine=graphed")
