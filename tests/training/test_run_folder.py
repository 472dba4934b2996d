"""One run, one folder, one version: what is refused, and what comes back after damage."""

import json

import pytest
import torch

import farout
from farout import build
from farout.config import Config
from farout.errors import CheckpointError, ConfigError
from farout.training import Checkpoints
from farout.training.lock import LockedError, RunLock

TINY = ["net.width=4", "data.batch_size=100", "train.epochs=2", "train.device=cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return farout.train("demo/ce", TINY, run=tmp_path_factory.mktemp("finished") / "run")


def test_a_folder_in_use_is_refused_and_left_as_it_is(tmp_path):
    with RunLock(tmp_path / "run"):
        with pytest.raises(LockedError, match="already trains in"):
            farout.train("demo/ce", TINY, run=tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_run_says_which_version_it_belongs_to(finished):
    about = json.loads((finished.folder / "run.json").read_text())
    assert about["format"] == 1
    assert about["farout"] == farout.__version__


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format": 2, "farout": "3.0.0"}', r"is a run of farout 3.0.0 \(format 2\), and this is farout"),
        ("{", "run.json is damaged"),
        ("[]", "run.json is damaged"),
    ],
)
def test_a_run_of_another_version_is_refused(tmp_path, text, says):
    (tmp_path / "run.json").write_text(text)
    for action in (
        lambda: farout.train("demo/ce", TINY, run=tmp_path),
        lambda: farout.train("demo/ce", TINY, run=tmp_path, resume=True),
    ):
        with pytest.raises(CheckpointError, match=says):
            action()
    (tmp_path / "config.yaml").write_text(Config.load("demo/ce", TINY).to_yaml())
    with pytest.raises(CheckpointError, match=says):
        farout.load_run(tmp_path)


def test_a_damaged_checkpoint_costs_a_warning_and_some_steps(tmp_path):
    """Back from the one before it, to the same end."""
    whole = farout.train("demo/ce", TINY, run=tmp_path / "whole")
    cut = farout.train("demo/ce", TINY, run=tmp_path / "cut")
    (tmp_path / "cut" / "detector" / "detector.json").unlink()
    first, last = Checkpoints(cut.folder / "checkpoints").files()
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=f"going back to {first}: {last} is damaged"):
        again = farout.train("demo/ce", TINY, run=tmp_path / "cut", resume=True)
    for left, right in zip(whole.detector.state_dict().values(), again.detector.state_dict().values(), strict=True):
        assert torch.equal(left, right)


def test_with_no_checkpoint_left_the_run_is_not_begun_anew(tmp_path):
    run = farout.train("demo/ce", TINY, run=tmp_path / "run")
    (run.folder / "detector" / "detector.json").unlink()
    for path in Checkpoints(run.folder / "checkpoints").files():
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no checkpoint is left in"):
        farout.train("demo/ce", TINY, run=tmp_path / "run", resume=True)


def test_init_from_a_checkpoint_file(finished):
    file = Checkpoints(finished.folder / "checkpoints").files()[-1]
    job = build.job(Config.load("demo/ce", [*TINY, f"train.init={file}"]))
    assert torch.equal(job.net.head.weight, finished.detector.net.head.weight)


def test_another_recipe_is_refused(finished):
    with pytest.raises(ConfigError, match="was started from a different recipe"):
        farout.train("demo/ce", [*TINY, "train.seed=5"], run=finished.folder, resume=True)


def test_no_epochs_and_no_weights_are_refused(tmp_path):
    """As imagenet/ce without public weights: what came out would be random."""
    with pytest.raises(ConfigError, match=r"train.epochs=0 and no train.init: .* set train.init"):
        farout.train("demo/ce", [*TINY, "train.epochs=0"], run=tmp_path / "run")
