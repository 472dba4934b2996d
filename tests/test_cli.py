"""The command line: what it prints, what it leaves, and its exit codes."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from farout.catalogue import KINDS
from farout.data.named import open_named
from farout.methods import OE

TINY = ["net.width=4", "data.batch_size=100", "data.outlier_batch_size=50", "train.epochs=1", "train.device=cpu"]


def test_train_eval_score(cli, tmp_path, tiny_run):
    run = tmp_path / "run"
    code, out, err = cli("train", "demo/oe", *TINY, "--run", run)
    assert code == 0, err
    assert f"farout eval {run}" in out
    code, out, _ = cli("eval", run, "--scores", "msp,energy")
    assert code == 0
    assert "unseen-digits" in out
    assert "energy" in out
    assert (run / "results.jsonl").is_file()


def example_images(folder):
    folder.mkdir()
    for name in ("demo/digits", "demo/flower"):
        images, _ = open_named(name, split="test").read(torch.arange(3))
        for number, image in enumerate(images):
            Image.fromarray(image[0].numpy()).save(folder / f"{name[5:]}-{number}.png")
    return folder


def test_score_prints_csv_that_agrees_with_the_detector(cli, tmp_path, tiny_run):
    folder = example_images(tmp_path / "images")
    code, out, _ = cli("score", tiny_run.folder, folder)
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["file", "label", "score", "verdict", "p_value", "reason"]
    images, _ = open_named("demo/digits", split="test").read(torch.arange(3))
    verdict = tiny_run.detector(images)
    for number, row in enumerate(row for row in rows if "digits" in row["file"]):
        assert float(row["score"]) == pytest.approx(verdict.score[number].item(), abs=1e-6)
        assert row["label"] == str(verdict.label[number].item())
        assert row["verdict"] == ("OOD" if verdict.is_ood[number] else "ID")


def test_score_reports_a_broken_image_and_goes_on(cli, tmp_path, tiny_run):
    folder = example_images(tmp_path / "images")
    (folder / "broken.png").write_bytes(b"no image")
    code, out, err = cli("score", tiny_run.folder / "detector", folder)
    assert code == 1
    rows = {row["file"]: row["verdict"] for row in csv.DictReader(io.StringIO(out))}
    assert rows[str(folder / "broken.png")] == "error"
    assert len(rows) == 7
    assert "broken.png" in err
    assert "1 of the images could not be read" in err
    code, _, err = cli("score", tiny_run.folder, tmp_path / "nowhere.png")
    assert code == 1
    assert "no such image or folder" in err


def test_certify(cli, tiny_run, tmp_path):
    code, out, err = cli(
        "certify", tiny_run.folder, "--data", "demo/outliers", "--rho", "0,1", "--picture", tmp_path / "c.png"
    )
    assert code == 0, err
    assert "worst-case risk around demo/outliers" in out
    assert (tmp_path / "c.png").is_file()
    assert cli("certify", tiny_run.folder, "--data", "demo/outliers", "--rho", "one")[0] == 2
    code, _, err = cli("certify", tiny_run.folder, "--data", "demo/outliers", "--domain", "moon")
    assert code == 1
    assert "moon" in err


def test_discrepancy(cli, tiny_run):
    arguments = ["discrepancy", "demo/outliers", "demo/noise", "--detector", tiny_run.folder, "--size", 100]
    code, out, err = cli(*arguments, "--json")
    assert code == 0, err
    row = json.loads(out)
    assert row["least"] <= row["high"]
    assert row["floor"] < row["w1"]
    assert all(row["risk"] <= bound["bound"] for bound in row["bounds"])
    code, out, _ = cli(*arguments)
    assert code == 0
    assert "Theorem 3" in out


@pytest.mark.parametrize("kind", KINDS)
def test_list(cli, kind):
    code, out, _ = cli("list", kind, "--json")
    assert code == 0
    names = [row["name"] for row in json.loads(out)]
    assert len(names) >= 2
    code, text, _ = cli("list", kind)
    assert code == 0
    assert names[0] in text


def test_data_check(cli, tmp_path):
    code, out, _ = cli("data", "check", "demo/flower")
    assert code == 0
    assert "700" in out
    folder = example_images(tmp_path / "mine")
    code, out, _ = cli("data", "check", folder)
    assert code == 0
    assert "Samples    6" in out
    (folder / "broken.png").write_bytes(b"no image")
    code, out, _ = cli("data", "check", folder)
    assert code == 1
    assert "broken.png" in out
    code, _, err = cli("data", "check", "cifar10", "--root", tmp_path)
    assert code == 1
    assert "cifar-10-batches-bin" in err


def test_data_check_of_a_part(cli, tmp_path):
    """A shortened copy of a public set is fine, and said to be one; --strict wants all of it."""
    np.savez(tmp_path / "isun.npz", images=np.zeros((12, 32, 32, 3), np.uint8))
    code, out, _ = cli("data", "check", "isun", "--root", tmp_path)
    assert code == 0
    assert "Verdict    fine; 12 images, and the published set has 8,925: a part" in out
    assert cli("data", "check", "isun", "--root", tmp_path, "--strict")[0] == 1
    np.savez(tmp_path / "isun.npz", images=np.zeros((8925, 2, 2, 3), np.uint8))
    code, out, _ = cli("data", "check", "isun", "--root", tmp_path, "--strict")
    assert (code, out.splitlines()[-1]) == (0, "Verdict    fine")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "demo/dall"], 1, "error: no recipe or file 'demo/dall'; did you mean 'demo/dal'?"),
        (["train", "demo/dal", "method.rh0=5"], 1, "error: method 'dal' has no argument 'rh0'"),
        (["train", "demo/dal", "rho5"], 1, "error: cannot read the override 'rho5'"),
        (["eval", "nowhere"], 1, "error: nowhere is not a run"),
        (["list", "cheeses"], 2, "cheeses"),
        (["nonsense"], 2, "nonsense"),
        (["train"], 2, "RECIPE"),
    ],
)
def test_errors_are_one_line_and_have_their_exit_code(cli, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    got, _, err = cli(*arguments)
    assert got == code
    assert message.lower() in err.lower()
    assert "Traceback" not in err
    if code == 1:
        assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())  # what failed before it began leaves no folder behind


def test_debug_shows_the_traceback(cli):
    with pytest.raises(ValueError, match="no recipe"):
        cli("--debug", "train", "demo/dall")


def test_ctrl_c_saves_exits_130_and_names_the_command_that_resumes(cli, tmp_path, monkeypatch):
    run, calls = tmp_path / "run", []

    def update(self, net, batch, descend):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return descend(self.loss)

    monkeypatch.setattr(OE, "update", update)
    code, _, err = cli("train", "demo/oe", *TINY, "--run", run)
    assert code == 130
    assert f"--run {run} --resume" in err
    assert (run / "checkpoints" / "step-00000003.pt").is_file()
    code, _, err = cli("train", "demo/oe", *TINY, "--run", run, "--resume")
    assert code == 0, err
    assert len(calls) == 6  # three of them before, three after


def test_every_command_has_an_example(cli):
    for command in (
        ["demo"],
        ["train"],
        ["eval"],
        ["score"],
        ["certify"],
        ["discrepancy"],
        ["calibrate"],
        ["export"],
        ["compare"],
        ["table"],
        ["reproduce"],
        ["report"],
        ["figures"],
        ["serve"],
        ["tune"],
        ["data", "fetch"],
        ["data", "overlap"],
        ["data", "fingerprint"],
        ["list"],
        ["data", "check"],
    ):
        code, out, _ = cli(*command, "--help")
        assert code == 0
        assert "Example" in out, command


def test_version_and_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "farout", "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip()[0].isdigit()


def test_help_does_not_load_torch():
    code = "import sys\nfrom farout.cli import main\nsys.argv = ['farout', '--help']\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    check = "assert not {'torch', 'numpy', 'sklearn', 'scipy'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code + check], capture_output=True, check=True)


def test_demo_end_to_end(cli, tmp_path, monkeypatch):
    """The real demonstration with one seed and fewer epochs: everything it names exists."""
    from farout.config import Config

    load = Config.load.__func__
    monkeypatch.setattr(
        Config, "load", classmethod(lambda cls, recipe, overrides=(): load(cls, recipe, [*overrides, "train.epochs=1"]))
    )
    folder = tmp_path / "demo"
    code, out, err = cli("demo", "--seeds", 1, "--run", folder)
    assert code == 0, err
    for name in ("results.jsonl", "table.md", "histograms.png"):
        assert (folder / name).stat().st_size > 500
        assert name in out
    assert "average" in out
    command = out[out.index("farout score") :].split()
    code, out, _ = cli(*command[1:4])
    assert code == 0
    assert len(out.splitlines()) == 16
    shutil.rmtree(folder)
