"""The sentence says what the rows say."""

import numpy as np
import pytest
from synthetic_runs import write_run

from farout.report.gather import find_runs, group_runs, read_run
from farout.report.glance import METRICS, estimate, metric_tables, paired, verdict


def groups(path):
    return group_runs([read_run(folder) for folder in find_runs([path])])


def by_label(found):
    return {group.label: group for group in found}


def test_the_tables_average_over_seeds_and_mark_the_best(three):
    found = groups(three)
    table = metric_tables(found)[0]
    assert table.columns == ("far/noise", "near/other", "average", "ID accuracy")
    dal = next(line for line in table.lines if (line.label, line.score) == ("dal", "msp"))
    rows = [row for row in by_label(found)["dal"].rows if row["score"] == "msp"]
    noise = [row["fpr95_id"] for row in rows if row["ood"] == "far/noise"]
    assert dal.cells[0].value == pytest.approx(np.mean(noise))
    assert dal.cells[2].value == pytest.approx(np.mean([row["fpr95_id"] for row in rows]))
    assert table.best(2) == min(line.cells[2].value for line in table.lines)
    assert metric_tables(found)[1].best(2) == max(line.cells[2].value for line in metric_tables(found)[1].lines)


def test_the_verdict_names_the_best_its_interval_and_the_paired_difference(three):
    found = groups(three)
    text = verdict(found)
    best = estimate(by_label(found)["dal"], "msp", ["far/noise", "near/other"], METRICS[0])
    assert "95 % of digits is accepted, dal (score msp) lets" in text
    assert f"{100 * best.value:.1f} % [{100 * best.low:.1f} to {100 * best.high:.1f}]" in text
    assert "The next is oe" in text
    assert "paired over 2 seeds" in text


def test_the_paired_difference_is_by_seed(three):
    found = by_label(groups(three))
    apart = paired(found["dal"], found["oe"], ["far/noise"])
    values = {
        label: {
            row["seed"]: row["fpr95_id"] for row in group.rows if row["score"] == "msp" and row["ood"] == "far/noise"
        }
        for label, group in found.items()
    }
    assert apart.seeds == pytest.approx([values["oe"][seed] - values["dal"][seed] for seed in (0, 1)])


def test_a_single_run_has_an_interval_from_its_samples(tmp_path):
    write_run(tmp_path / "run")
    text = verdict(groups(tmp_path))
    assert "bootstrap over test samples" in text
    assert "next" not in text


def test_an_average_is_over_the_sets_that_all_were_tested_on(tmp_path):
    write_run(tmp_path / "a", "oe", sets=["x", "y"])
    write_run(tmp_path / "b", "dal", sets=["y", "z"])
    found = groups(tmp_path)
    line = metric_tables(found)[0].lines[0]
    assert metric_tables(found)[0].columns[:3] == ("x", "y", "z")
    assert line.cells[2] is None
    assert line.cells[3].value == line.cells[1].value
    assert "of y" in verdict(found)


def test_runs_of_different_id_sets_are_not_ranked(tmp_path):
    write_run(tmp_path / "a", "oe", inlier="one")
    write_run(tmp_path / "b", "dal", inlier="two")
    assert "different ID sets (one, two)" in verdict(groups(tmp_path))


def test_without_results_the_verdict_says_what_to_do(tmp_path):
    (write_run(tmp_path / "run") / "results.jsonl").unlink()
    assert "farout eval" in verdict(groups(tmp_path))
    assert metric_tables(groups(tmp_path)) == []
