"""The best epoch is kept: chosen on held-out data, without a trace in training, through any kill."""

import json
import os
import signal
from dataclasses import replace

import pytest
import torch

import farout
from farout import build, validation
from farout.config import Config, DataConfig
from farout.data.arrays import ArraySet, Subset
from farout.data.synthetic import SYNTHETIC, synthetic_sets
from farout.errors import ConfigError, DataError
from farout.metrics import auroc, fpr_at_tpr
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


# On which sets


def with_data(config, **changes):
    return replace(config, data=replace(config.data, **changes))


def test_what_is_validated_on_is_named_once():
    assert validation.wanted(DataConfig()) == ["outliers"]
    assert validation.wanted(DataConfig(validation=["noise", "outliers"])) == ["noise", "outliers"]
    found = validation.wanted(DataConfig(validation=["mean", "synthetic"]))
    assert found[0] == "mean"
    assert sorted(found) == sorted(SYNTHETIC)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["jigsow"], "unknown validation set 'jigsow'; did you mean 'jigsaw'?"),
        (["synthetic", {"a": 1}], "unknown validation set"),
        ([], "names nothing to validate on"),
    ],
)
def test_a_wrong_name_is_told(names, message):
    with pytest.raises(ConfigError) as error:
        validation.wanted(DataConfig(validation=names))
    assert message in str(error.value)


def test_a_row_has_the_means_of_its_sets(tiny_run):
    """Each set counts the same, however many samples it has."""
    net, config = tiny_run.detector.net, with_data(tiny_run.config, outlier_held_out=0.1)
    parts = [with_data(config, validation=[name]) for name in ("outliers", "noise", "jigsaw")]
    rows = [validation.validate(part, net) for part in parts]
    row = validation.validate(with_data(config, validation=["outliers", "noise", "jigsaw"]), net)
    for key in ("fpr95_id", "auroc"):
        assert row[key] == pytest.approx(sum(part[key] for part in rows) / 3)
    assert list(row["by_set"]) == ["demo/outliers", "synthetic noise", "synthetic jigsaw"]
    assert list(row["by_set"].values()) == [part["fpr95_id"] for part in rows]
    assert row["ood_count"] == sum(part["ood_count"] for part in rows)
    assert rows[0]["ood_count"] != rows[1]["ood_count"]
    assert all("by_set" not in part for part in rows)


def test_synthetic_sets_are_made_of_held_out_id_images_and_need_no_outliers(tiny_run, monkeypatch):
    monkeypatch.setattr(build, "held_out_outliers", lambda *_: pytest.fail("outliers were opened"))
    config = with_data(tiny_run.config, validation=["speckle"], outliers=None)
    row = validation.validate(config, tiny_run.detector.net)
    held_out = build.id_splits(config.data).held_out
    order = torch.randperm(len(held_out), generator=validation.seeds.generator(validation.VALIDATION_STREAM))
    made = synthetic_sets(Subset(held_out, order), ["speckle"], validation.VALIDATION_STREAM)["synthetic speckle"]
    scores = {"id_scores": tiny_run.detector.scores(held_out), "ood_scores": tiny_run.detector.scores(made)}
    assert row["fpr95_id"] == pytest.approx(fpr_at_tpr(**scores))
    assert row["auroc"] == pytest.approx(auroc(**scores))
    assert row["ood_count"] == row["id_count"] == len(held_out)


def test_synthetic_sets_judge_epochs_and_outliers_that_are_not_held_out_do_not(tmp_path):
    overrides = [*TINY, "train.epochs=2", LOOK, "data.validation=[outliers, noise, invert]"]
    folder = farout.train("demo/ce", overrides, run=tmp_path / "run").folder
    rows = read_rows(folder / "validation.jsonl")
    assert [list(row["by_set"]) for row in rows] == [["synthetic noise", "synthetic invert"]] * 2
    best = load_state(folder / "checkpoints" / "best.pt")["validation"]
    assert best == max(rows, key=lambda row: (-row["fpr95_id"], row["auroc"]))


def test_embeddings_are_refused_before_training(tmp_path, monkeypatch):
    embeddings = ArraySet("features", torch.randn(50, 4), torch.arange(50) % 2)
    monkeypatch.setattr(build, "_open", lambda *_: embeddings)
    config = Config.load("demo/ce", [*TINY, LOOK, "data.validation=[synthetic]"])
    with pytest.raises(DataError, match="made of uint8 images"):
        validation.Best(config, tmp_path)
