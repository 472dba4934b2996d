"""What the benchmarks reckon with: fits, rates, verdicts. The benchmarks themselves run by `make bench`."""

import importlib
import math
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """A benchmark as a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_a_fit_finds_the_line_it_was_made_from(script):
    found = script("recording").fit([(n, 2.0 + 0.5 * n) for n in (1, 3, 10, 40)], "linear")
    assert (found["a"], found["b"], found["r2"]) == pytest.approx((2.0, 0.5, 1.0))
    assert found["worst_residual"] < 1e-12


def test_a_fit_of_the_wrong_law_is_seen(script):
    fit = script("recording").fit
    points = [(n, n * math.log(n)) for n in (10, 100, 1000, 10_000, 100_000)]
    assert fit(points, "n log n")["r2"] == pytest.approx(1.0)
    assert fit(points, "n log n")["worst_residual"] < 1e-9
    assert fit(points, "linear")["worst_residual"] > 0.5
    assert fit([(1, 1.0), (2, 4.0), (3, 1.0)], "linear")["r2"] == pytest.approx(0.0)


def test_a_table_has_its_columns_under_each_other(script):
    lines = script("recording").table(["name", "ms"], [["a", 1.5], ["longer", 12]]).splitlines()
    assert lines == ["name     ms", "a       1.5", "longer   12"]


def test_results_are_written_under_date_device_and_subject(script, tmp_path):
    recording = script("recording")
    recording.write(recording.about() | {"rows": [1]}, "subject", tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-cpu-subject.json")
    assert '"rows"' in path.read_text()
    recording.write(recording.about(), "other", None)
    assert len(list(tmp_path.iterdir())) == 1


def seen(epochs=2):
    rows = [[0, 30.0, 2.0], [50, 31.0, 1.5], [100, 32.0, 1.0], [150, 33.0, 1.0]]
    parts = {"checkpoints": {"seconds": 0.5, "calls": epochs + 1}}
    return {
        "epochs": epochs, "rows": rows, "seconds": 40.0, "parts": parts, "batch": [128, 256], "steps_per_epoch": 100,
        "first_step_s": 30.0, "imported_s": 2.0, "evaluation_s": 5.0, "results": [{"accuracy": 0.9}],
    }  # fmt: skip


def test_a_whole_run_is_reckoned_from_a_part_of_it(script):
    runs = script("bench_runs")
    assert runs.steady(seen()["rows"]) == pytest.approx(0.02)  # 100 steps in 2 s, the first row left out
    row = runs.reckoned(seen(), 50)
    assert row["seconds_whole"] == pytest.approx(40 + 48 * 100 * 0.02)
    assert (row["fraction"], row["images_per_second"]) == pytest.approx((0.04, 384 / 0.02))
    assert row["ready_s"] == 31.0
    assert runs.reckoned(seen(50), 50)["seconds_whole"] == 40.0


def test_the_loader_says_what_limits_it(script):
    limit = script("bench_loader").limit
    assert limit([{"workers": 16, "images_per_second": 5000.0}], 320.0, 16).startswith("nothing")
    assert limit([{"workers": 16, "images_per_second": 3900.0}], 250.0, 16).startswith("decoding")
    assert limit([{"workers": 16, "images_per_second": 1000.0}], 250.0, 16).startswith("the way from the workers")


def test_bits_are_compared_and_not_values(script):
    same = script("check_determinism").same
    assert same(torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]))
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same(torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64))
    assert same({"a": [torch.ones(2), None]}, {"a": [torch.ones(2), None]})
    assert not same({"a": [torch.ones(2)]}, {"a": [torch.ones(2), None]})
    assert not same({"a": 1}, {"b": 1})
