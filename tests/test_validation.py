"""The best epoch is kept: chosen on held-out data, without a trace in training, through any kill."""

import json
import os
import signal

import pytest
import torch

import farout
from farout import build, validation
from farout.config import Config
from farout.errors import ConfigError
from farout.training import Checkpoints, Interrupted, load_state, read_rows

TINY = ["net.width=4", "data.batch_size=100", "data.outlier_batch_size=50", "train.epochs=3", "train.device=cpu"]
HELD = [*TINY, "data.outlier_held_out=0.1", "method.pool=300", "method.keep=120"]
LOOK = "train.validate_every=1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return farout.train("demo/poem", [*HELD, LOOK], run=tmp_path_factory.mktemp("best") / "run").folder


def last(folder):
    return Checkpoints(folder / "checkpoints").latest()


def assert_same(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value, right[key]), key


def test_the_best_row_is_the_one_whose_state_is_kept(whole):
    rows = read_rows(whole / "validation.jsonl")
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all({"fpr95_id", "auroc", "accuracy", "ood_count"} <= row.keys() for row in rows)
    best = load_state(whole / "checkpoints" / "best.pt")
    assert best["validation"] == max(rows, key=lambda row: (-row["fpr95_id"], row["auroc"]))
    assert best["progress"] == {"step": best["validation"]["step"]}
    assert len(Checkpoints(whole / "checkpoints").files()) == 2


def test_the_kept_state_has_the_validation_that_it_says(whole):
    best = load_state(whole / "checkpoints" / "best.pt")
    overrides = [*HELD, f"train.init={whole / 'checkpoints' / 'best.pt'}", "train.epochs=0"]
    config = Config.load("demo/poem", overrides)
    found = validation.validate(config, build.job(config).net)
    assert found == {key: best["validation"][key] for key in found}


def test_looking_changes_nothing_in_training(whole, tmp_path):
    blind = farout.train("demo/poem", HELD, run=tmp_path / "blind").folder
    assert_same(last(whole)["objective"], last(blind)["objective"])
    assert not (blind / "checkpoints" / "best.pt").exists()
    assert not (blind / "validation.jsonl").exists()


class Killed(BaseException):
    """As abrupt as a signal: nothing catches it."""


def die(*_):
    raise Killed


def die_at_the_row(self, row, inner=validation.RunLog.write):
    return die() if self.path.stem == "validation" else inner(self, row)


@pytest.mark.parametrize("moment", ["state", "row"])
def test_killed_at_a_look_and_resumed(whole, tmp_path, moment):
    """Dead while the first look is written: the resumed run looks again, and ends with the same bits and rows."""
    with pytest.MonkeyPatch.context() as patch:
        if moment == "state":
            patch.setattr(validation, "write_state", die)
        else:
            patch.setattr(validation.RunLog, "write", die_at_the_row)
        with pytest.raises(Killed):
            farout.train("demo/poem", [*HELD, LOOK], run=tmp_path / "cut")
    assert (tmp_path / "cut" / "checkpoints" / "best.pt").exists() == (moment == "row")
    _compare(whole, farout.train("demo/poem", [*HELD, LOOK], run=tmp_path / "cut", resume=True).folder)


def _compare(whole, cut):
    assert (whole / "validation.jsonl").read_text() == (cut / "validation.jsonl").read_text()
    best = [load_state(folder / "checkpoints" / "best.pt") for folder in (whole, cut)]
    assert best[0]["validation"] == best[1]["validation"]
    assert_same(best[0]["objective"], best[1]["objective"])
    assert_same(last(whole)["objective"], last(cut)["objective"])


def test_interrupted_at_the_end_of_an_epoch_and_gone_back_to_an_earlier_one(whole, tmp_path, monkeypatch):
    """The look that the interrupt skipped is made up for; rows of an epoch that is trained again go."""
    steps = read_rows(whole / "validation.jsonl")[0]["step"]
    cut, inner, calls = tmp_path / "cut", farout.methods.METHODS["poem"].update, []

    def update(self, net, batch, descend):
        calls.append(1)
        if len(calls) == 2 * steps:
            os.kill(os.getpid(), signal.SIGINT)
        return inner(self, net, batch, descend)

    monkeypatch.setattr(farout.methods.METHODS["poem"], "update", update)
    with pytest.raises(Interrupted):
        farout.train("demo/poem", [*HELD, LOOK], run=cut)
    assert [row["epoch"] for row in read_rows(cut / "validation.jsonl")] == [1]
    with (cut / "validation.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3 * steps, "epoch": 3, "fpr95_id": 0.0, "auroc": 1.0}) + "\n")
    _compare(whole, farout.train("demo/poem", [*HELD, LOOK], run=cut, resume=True).folder)


def test_without_held_out_outliers_accuracy_decides_and_the_last_epoch_is_looked_at(tmp_path):
    overrides = [*TINY, "train.epochs=3", "train.validate_every=2"]
    folder = farout.train("demo/ce", overrides, run=tmp_path / "run").folder
    rows = read_rows(folder / "validation.jsonl")
    assert [row["epoch"] for row in rows] == [2, 3]
    assert load_state(folder / "checkpoints" / "best.pt")["validation"] == max(rows, key=lambda row: row["accuracy"])
    assert "fpr95_id" not in rows[0]


def test_a_wrong_interval_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="validate_every take 1 or more"):
        farout.train("demo/ce", [*TINY, "train.validate_every=0"], run=tmp_path / "run")
