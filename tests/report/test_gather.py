"""Run folders are found, read as far as they go, and put together by method."""

import json

import pytest
from synthetic_runs import write_run

from farout.errors import CheckpointError
from farout.report.gather import differences, find_runs, find_trials, group_runs, read_run


def groups(*paths):
    return group_runs([read_run(path) for path in find_runs(paths)])


def test_runs_are_found_below_a_folder_each_once_and_in_order(tmp_path):
    for seed in (10, 2, 0):
        write_run(tmp_path / "dal" / f"s{seed}", "dal", seed)
    assert [path.name for path in find_runs([tmp_path])] == ["s0", "s2", "s10"]
    assert len(find_runs([tmp_path, tmp_path / "dal" / "s2"])) == 3


def test_links_to_runs_are_followed(tmp_path):
    """Comparisons lay out links to cached runs."""
    write_run(tmp_path / "cache" / "abc")
    (tmp_path / "out" / "dal").mkdir(parents=True)
    (tmp_path / "out" / "dal" / "s0").symlink_to(tmp_path / "cache" / "abc", target_is_directory=True)
    assert find_runs([tmp_path / "out"]) == [tmp_path / "out" / "dal" / "s0"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder: .*nowhere"):
        find_runs([tmp_path / "nowhere"])


def test_seeds_of_one_recipe_are_one_group(three):
    oe, dal = sorted(groups(three), key=lambda group: group.label, reverse=True)
    assert [oe.label, dal.label] == ["oe", "dal"]
    assert [run.seed for run in dal.runs] == [0, 1]
    assert len(dal.rows) == 2 * 2 * 2
    assert dal.score == "msp"


def test_a_method_twice_is_named_by_what_differs(tmp_path):
    for rho in (1, 5):
        write_run(tmp_path / f"dal{rho}", "dal", 0, settings={"rho": rho})
    write_run(tmp_path / "oe", "oe", 0)
    found = groups(tmp_path)
    assert [group.label for group in found] == ["dal (rho=1)", "dal (rho=5)", "oe"]
    assert dict(differences(found))["method.rho"] == ["1", "5", "–"]


def test_starts_from_the_same_seed_of_another_run_are_the_same_start(tmp_path):
    for seed in (0, 1):
        folder = write_run(tmp_path / f"s{seed}", "dal", seed)
        text = (folder / "config.yaml").read_text().replace("init: null", f"init: runs/ce/s{seed}")
        (folder / "config.yaml").write_text(text)
    assert len(groups(tmp_path)) == 1


def test_what_is_missing_or_damaged_is_named(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "results.jsonl").unlink()
    (folder / "scores.npz").write_bytes(b"PK\x03\x04 not really")
    (folder / "log.jsonl").write_text('{"step": 0, "ce": 1.0}\n{"step": 1')
    run = read_run(folder)
    assert len(run.log) == 1  # the line that was cut off is left out
    assert "farout eval" in run.why["results"]
    assert "cannot be read" in run.why["scores"]
    assert "not finished" in run.why["card"]
    assert run.about == {}
    assert str(folder) in run.why["card"]


def test_trials_are_found_below(tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "trials.jsonl").write_text(json.dumps({"rho": 1}) + "\n" + json.dumps({"rho": 2}) + "\n")
    assert [row["rho"] for row in find_trials([tmp_path])] == [1, 2]
