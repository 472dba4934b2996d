"""From run folders to a report: what the networks say, and what is said when they cannot be asked."""

import shutil

import numpy as np
import pytest
import torch
from synthetic_runs import write_run

import farout.cli.see
from farout import see
from farout.data.named import open_named
from farout.detector import Detector
from farout.errors import CheckpointError
from farout.report.chart import Arrows, Points


def test_every_part_is_there(seen):
    drawn = {figure.key for figure in seen.figures if figure.charts}
    assert drawn == {"fpr95", "histograms", "roc", "embedding", "training", "risk", "discrepancy"}
    assert "several values" in seen.radius[0].why_missing
    assert len(seen.galleries) == 4
    assert "farout" in seen.versions["Report made with"]


def test_the_map_moves_outliers_by_the_runs_own_search(seen, trained):
    before, after = seen.embedding[0].charts
    assert before.title == "dal, before (random weights)"
    assert after.title == "dal, after"
    assert any(isinstance(mark, Arrows) for mark in after.marks)
    inliers = next(mark for mark in after.marks if isinstance(mark, Points))
    assert all(tip.startswith("ID: class ") for tip in inliers.tips)


def test_the_mistakes_are_the_extremes_of_the_saved_scores(seen, trained):
    scores = np.load(trained / "dal" / "s0" / "scores.npz", allow_pickle=False)
    trusted, doubted = seen.galleries[2:]
    assert trusted.title == "dal: OOD images trusted most"
    outliers = np.concatenate([scores[key] for key in scores.files if key.startswith("msp|")][1:])
    assert [m.score for m in trusted.mistakes] == pytest.approx(sorted(outliers)[:-9:-1])
    assert [m.score for m in doubted.mistakes] == pytest.approx(sorted(scores["msp|demo/digits"])[:8])
    worst = doubted.mistakes[0]
    image, label = open_named("demo/digits", split="test").read(torch.tensor([worst.number]))
    verdict = Detector.load(trained / "dal" / "s0" / "detector")(image)
    assert verdict.score.item() == pytest.approx(worst.score, abs=1e-5)
    assert worst.label == str(label.item())
    assert not worst.accepted


def test_the_certificate_holds_and_grows(seen):
    rows = seen.worst_case[0].table.rows
    dal = [[float(value) for value in row[1:]] for row in rows if row[0] == "dal"]
    assert all(low <= high + 1e-6 <= reals + 2e-3 for _, low, high, reals in dal)
    assert [row[2] for row in dal] == sorted(row[2] for row in dal)
    assert any("ce: its recipe names no auxiliary outliers" in note for note in seen.worst_case[0].notes)


def test_the_report_is_small_and_whole(report_file):
    text = report_file.read_text()
    assert report_file.stat().st_size < 6e6
    assert text.startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    assert "alert('x')</script>" not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(&#x27;x&#x27;)" in text  # the class name, as text


def test_without_data_or_network_the_parts_say_why(tmp_path):
    write_run(tmp_path / "run")
    report = see.make_report([tmp_path], samples=50)
    for figure in (*report.embedding, *report.worst_case):
        assert "dal: " in figure.why_missing
        assert "detector" in figure.why_missing
    assert "detector" in report.galleries[0].why_missing
    assert report.scores[0].charts


def test_data_that_moved_away(trained, tmp_path):
    shutil.copytree(trained / "dal" / "s0", tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("demo/outliers", "nowhere/outliers"))
    report = see.make_report([tmp_path], samples=20)
    assert "nowhere/outliers" in report.embedding[0].why_missing
    assert "nowhere/outliers" in report.worst_case[0].why_missing


def test_the_network_can_be_left_alone(trained):
    report = see.make_report([trained], samples=0)
    assert "left out on request" in report.embedding[0].why_missing
    assert report.scores[0].charts


def test_the_start_named_by_the_run_is_what_was_before(trained, tmp_path):
    shutil.copytree(trained / "dal" / "s0", tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("init: null", f"init: {trained / 'ce' / 's0'}"))
    config = see.read_run(tmp_path / "run").config
    assert see._light_start(config).train.init == str(trained / "ce" / "s0" / "detector")


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(CheckpointError, match="no runs in .*farout train"):
        see.make_report([tmp_path])


def test_the_commands(cli, three, tmp_path):
    assert farout.cli.see  # registers them
    code, out, err = cli("report", three, "--samples", 0)
    assert (code, err) == (0, "")
    assert f"{three / 'report.html'} (0." in out
    run = write_run(tmp_path / "one", "oe", sets=["a"], scores=["msp"])
    code, out, _ = cli("figures", run, "--to", "svg", "--out", tmp_path / "f", "--samples", 0)
    assert code == 0
    for name in ("fpr95", "histograms", "roc", "training"):
        assert str(tmp_path / "f" / f"{name}.svg") in out
        assert (tmp_path / "f" / f"{name}.svg").is_file()
    code, _, err = cli("report", tmp_path / "nowhere")
    assert code == 1
    assert "no such folder" in err
