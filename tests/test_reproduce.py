"""The paper's tables again: the printed numbers are the paper's, plans name its lines, two tables from end to end."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

import farout.cli.bench
from farout import build
from farout.compare import How
from farout.config import Config
from farout.errors import ConfigError
from farout.paper import Printed, corrections, printed
from farout.plans import PLANS, paper_id
from farout.protocols import load_protocol
from farout.reproduce import lines, reproduce, shown

TABLES = [name for name in PLANS if name != "figures"]
TINY = ("net.width=4", "data.batch_size=100", "data.outlier_batch_size=50", "train.device=cpu")
ROOT = Path(__file__).resolve().parent


# ---- what the paper prints


@pytest.mark.parametrize("name", ["table1", "imagenet", "trials"])
def test_printed_numbers_are_those_of_the_golden_files(name):
    text = (ROOT / "golden" / f"paper_{name}.csv").read_text().splitlines()
    for line in csv.DictReader(text[1:]):
        row = line["method"] + (f" {line['trial']}" if "trial" in line else "")
        cells = printed(name)[line["id"], row]
        for column, value in line.items():
            if column not in ("id", "method", "trial"):
                where, _, metric = column.partition(" ")
                assert cells[where, metric].value == float(value), (row, column)


def test_spot_checks_of_the_other_tables():
    assert printed("hard")["CIFAR-10", "POEM"]["LSUN-Fix", "FPR95"].value == 1.24
    assert printed("accuracy")["CIFAR-100", "DAL"]["average", "accuracy"].value == 76.13
    assert printed("scores")["CIFAR-100", "w/ DAL, ASH"]["average", "AUROC"].value == 94.05
    assert ("average", "FPR95") not in printed("scores")["CIFAR-100", "w/ OE, Mahalanobis"]  # a dash in the paper
    assert printed("hyper")["CIFAR-10", "gamma_max=10 beta=1e-2 rho=10"]["average", "FPR95"].value == 2.58
    assert printed("hyper")["CIFAR-100", "ps=100"]["average", "FPR95"].value == 95.07
    assert printed("hyper")["CIFAR-100", "num_search=0"]["average", "AUROC"].value == 91.75
    assert printed("epochs")["CIFAR-100", "OE"]["average", "FPR95"].value == 37.35
    assert printed("fnr")["CIFAR-10", "MSP"]["CIFAR-100", "FPR95 (OOD+)"].value == 43.01
    assert len(printed("hyper")) == 2 * (6 * 8 * 5 + 9 + 9)


def test_printed_pairs_satisfy_the_bounds_or_are_marked():
    """0.95 (1 - f) <= AUROC <= 1 - 0.05 f, to the printed digits."""
    for name in TABLES:
        for place, cells in printed(name).items():
            for where in {where for where, _ in cells}:
                if place[1].endswith(" std") or (where, "FPR95") not in cells or (where, "AUROC") not in cells:
                    continue
                fpr, auroc = cells[where, "FPR95"], cells[where, "AUROC"]
                fits = 0.95 * (100 - fpr.value) - 0.02 <= auroc.value <= 100 - 0.05 * fpr.value + 0.02
                assert fits or auroc.why, (name, place, where)


def test_every_correction_concerns_a_printed_number_and_is_on_the_errata_page():
    places = {
        (name, *place, " ".join(column))
        for name in TABLES
        for place, cells in printed(name).items()
        for column in cells
    }
    assert set(corrections()) <= places
    page = (ROOT.parent / "docs" / "paper-errata.md").read_text()
    for (table, *_), (right, _) in corrections().items():
        if right is not None and table in ("table1", "imagenet", "trials"):
            assert re.search(rf"(?<![\d.]){right:.2f}(?!\d)", page), (table, right)


def test_corrections_are_marked():
    assert printed("table1")["CIFAR-10", "DAL"]["average", "FPR95"].text() == "2.68 [2.67]"
    assert Printed(96.87, None, "impossible").text() == "96.87 [?]"
    assert Printed(1.0, None, "").text() == "1.00"
    assert Printed(2.68, 2.67, "mean").best == 2.67


# ---- plans


@pytest.mark.parametrize("name", PLANS)
def test_every_table_has_its_plan_and_every_line_its_printed_numbers(name):
    plan = PLANS[name]
    for protocol in [*map(load_protocol, plan.protocols), load_protocol("demo")]:
        entries = lines(plan, protocol)
        assert entries
        assert len({entry.label for entry in entries}) == len(entries)
        if name != "figures":
            table = printed(name)
            labels = {row for identity, row in table if identity == paper_id(table, protocol)}
            suffix = " #1" if plan.by_seed else ""
            assert {entry.label + suffix for entry in entries} <= labels
            if not plan.by_seed:
                assert {entry.label for entry in entries} == labels
        assert len(lines(plan, protocol, quick=True)) <= 16


def test_a_plan_follows_the_chosen_dal_and_the_chosen_lines():
    plan, demo = PLANS["table1"], load_protocol("demo")
    assert lines(plan, demo, dal="dal-proximal")[-1].method == "dal-proximal"
    assert [entry.label for entry in lines(plan, demo, only=["OE", "DAL"])] == ["OE", "DAL"]
    with pytest.raises(ConfigError, match="no line OEE; it has MSP"):
        lines(plan, demo, only=["OEE"])
    [oe, dal] = lines(PLANS["epochs"], load_protocol("paper-cifar10"))
    assert (oe.changes, dal.changes) == (("train.epochs=50",), ())
    assert lines(PLANS["epochs"], load_protocol("paper-cifar10"), quick=True)[0].changes == ()
    given = lines(PLANS["epochs"], load_protocol("paper-cifar10"), overrides=["train.epochs=3"])
    assert [entry.changes for entry in given] == [(), ()]  # as long as DAL, which the override is for, too
    assert lines(PLANS["hyper"], demo)[0].changes == ("method.gamma_max=50", "method.beta=1e-3", "method.rho=1e-2")


# ---- from end to end on the demo's data


@pytest.fixture(scope="module")
def how(tmp_path_factory):
    return How(overrides=TINY, cache=tmp_path_factory.mktemp("reproduce"), resamples=40)


def test_fnr_from_end_to_end(how, tmp_path):
    done = reproduce("fnr", "demo", how, quick=True, folder=tmp_path)
    cells = {(row["row"], row["set"]): row for row in done.rows}
    assert cells["OE", "average"]["printed"] == 5.04
    assert cells["OE", "demo/noise"]["printed"] is None
    far = [cells["OE", f"demo/{name}"]["ours"] for name in ("flower", "noise", "gratings")]
    assert cells["OE", "average"]["ours"] == pytest.approx(sum(far) / 3)  # the paper's sets are far ones
    assert cells["OE", "average"]["difference"] is None  # the demo's data are not the paper's
    text = (tmp_path / "fnr" / "table.md").read_text()
    assert "OOD as the positive side" in text
    assert "not the paper's data" in text
    assert "does not test: CIFAR-100" in text
    assert [json.loads(line) for line in (tmp_path / "fnr" / "rows.jsonl").read_text().splitlines()] == done.rows
    assert (tmp_path / "fnr" / "demo" / "DAL" / "s0" / "config.yaml").is_file()


def test_trials_and_accuracy_use_the_same_runs(how, tmp_path):
    done = reproduce("trials", "demo", how, quick=True, folder=tmp_path)
    labels = {row["row"] for row in done.rows}
    assert labels == {"OE #1", "OE mean", "DAL #1", "DAL mean"}
    average = {(row["row"], row["metric"]): row for row in done.rows if row["set"] == "average"}
    assert average["OE #1", "FPR95"]["printed"] == 3.92
    assert average["OE mean", "FPR95"]["paper"] == "3.40 [4.00]"
    assert average["OE mean", "FPR95"]["ours"] == average["OE #1", "FPR95"]["ours"]
    accuracy = reproduce("accuracy", "demo", how, quick=True, only=["ERM", "DAL"], folder=tmp_path)
    assert [(row["row"], row["set"], row["printed"]) for row in accuracy.rows] == [
        ("ERM", "average", 94.28),
        ("DAL", "average", 95.01),
    ]
    header, texts = shown(accuracy.rows)
    assert len(header) == len(texts[0])


SOME = {
    "table1": ["MSP", "OE", "DAL"],
    "hard": ["OE", "DAL"],
    "scores": ["w/o train, Free Energy", "w/ DAL, MSP"],
    "hyper": ["gamma_max=50 beta=1e-3 rho=1e-2"],
    "epochs": ["OE", "DAL"],
    "norms": ["l1", "l2"],
    "probe": ["OE, linear probe", "OE, fine tune"],
    "imagenet": ["OE", "DAL-Energy"],
}


@pytest.mark.parametrize("name", SOME)
def test_every_other_table_from_end_to_end(how, tmp_path, name):
    """Some lines of each: ours beside what is printed, with our corrections."""
    done = reproduce(name, "demo", how, quick=True, only=SOME[name], folder=tmp_path)
    assert not done.problems
    averages = [row for row in done.rows if row["set"] == "average"]
    assert {row["row"] for row in averages} == set(SOME[name])
    theirs = printed(name)
    identity = paper_id(theirs, load_protocol("demo"))
    text = (tmp_path / name / "table.md").read_text()
    for row in averages:
        cell = theirs[identity, row["row"]].get(("average", row["metric"]), Printed(None, None, ""))
        assert (row["printed"], row["right"]) == (cell.value, cell.right)
        shown_cell = "" if cell.value is None else cell.text()
        assert f"| {row['metric']} | {shown_cell} | {row['ours']:.2f} |" in text
    assert any(row["printed"] is not None for row in averages) or name == "hard"  # which prints no average


def test_networks_that_are_trained_already_are_started_from(how, tmp_path):
    """train.init with {seed} goes to every line that has a start, and train.epochs to all lines alike."""
    net = build.net(Config.load("demo/ce", TINY), 6)
    for seed in (0, 1):
        (tmp_path / f"s{seed}").mkdir()
        save_file({f"net.{name}": t for name, t in net.state_dict().items()}, tmp_path / f"s{seed}/model.safetensors")
    given = (*TINY, "train.epochs=1", f"train.init={tmp_path}/s{{seed}}")
    own = replace(how, seeds=2, overrides=given, cache=tmp_path / "cache")
    done = reproduce("epochs", "demo", own, folder=tmp_path / "out")
    assert not done.problems
    configs = [Config.load(path) for path in sorted((tmp_path / "cache").glob("*/config.yaml"))]
    wanted = [(name, str(tmp_path / f"s{seed}"), 1) for name in ("demo/dal", "demo/oe") for seed in (0, 1)]
    assert [(config.name, config.train.init, config.train.epochs) for config in configs] == wanted  # and no demo/ce


def test_a_set_of_the_papers_name_has_its_printed_number_beside_it(how, tmp_path):
    text = "id: demo/digits\noutliers: demo/outliers\nrecipes: demo\nsize: 8\nheld_out: 0.25\n"
    (tmp_path / "mine.yaml").write_text(text + "test: {far: [{name: cifar100, path: demo/noise}]}\n")
    done = reproduce("hard", tmp_path / "mine.yaml", how, quick=True, only=["OE"], folder=tmp_path)
    [fpr] = [row for row in done.rows if (row["set"], row["metric"]) == ("cifar100", "FPR95")]
    assert fpr["printed"] == printed("hard")["CIFAR-10", "OE"]["CIFAR-100", "FPR95"].value


def test_a_table_has_the_sets_of_its_group_and_those_that_the_paper_prints(how, tmp_path):
    text = "id: demo/digits\noutliers: demo/outliers\nrecipes: demo\nsize: 8\nheld_out: 0.25\npaper: CIFAR-10\ntest:\n"
    near = "  near: [{name: cifar100, path: demo/noise}, demo/flower]\n"
    (tmp_path / "mine.yaml").write_text(text + near + "  far: [demo/gratings]\n")
    for name, wanted in (
        ("hard", ["cifar100", "demo/flower", "average"]),
        ("fnr", ["cifar100", "demo/gratings", "average"]),  # beside the far sets of its averages it prints CIFAR-100
    ):
        done = reproduce(name, tmp_path / "mine.yaml", how, quick=True, only=["OE"], folder=tmp_path)
        assert list(dict.fromkeys(row["set"] for row in done.rows)) == wanted
        assert f"Averages are over the sets of group {'near' if name == 'hard' else 'far'}." in done.notes


def test_the_tables_that_are_run_are_all():
    assert {*SOME, "fnr", "trials", "accuracy", "figures"} == set(PLANS)


def test_the_figures_runs_from_end_to_end(how, tmp_path):
    done = reproduce("figures", "demo", how, quick=True, only=["ps=1 rho=1", "ps=1 rho=10"], folder=tmp_path)
    assert {row["row"] for row in done.rows} == {"ps=1 rho=1", "ps=1 rho=10"}
    trials = [json.loads(line) for line in (tmp_path / "figures" / "demo" / "trials.jsonl").read_text().splitlines()]
    assert [(row["ps"], row["rho"]) for row in trials] == [(1, 1), (1, 10)]
    assert all(0 <= row["fpr95"] <= 100 for row in trials)


def test_lines_with_commas_in_their_names():
    plan, demo = PLANS["scores"], load_protocol("demo")
    found = lines(plan, demo, only=["w/ OE, MSP", "w/ DAL, ASH"])
    assert [entry.label for entry in found] == ["w/ OE, MSP", "w/ DAL, ASH"]
    assert [entry.label for entry in lines(PLANS["table1"], demo, only=["MSP, OE", "DAL"])] == ["MSP", "OE", "DAL"]


def test_unknown_tables_are_named(how):
    with pytest.raises(ConfigError, match="unknown table 'table2'; did you mean 'table1'"):
        reproduce("table2", "demo", how)


def test_the_command(how, monkeypatch, capsys, tmp_path):
    from farout.cli import main

    arguments = ["reproduce", "accuracy", *TINY, "--protocol", "demo", "--quick", "--only", "ERM"]
    places = ["--cache", str(how.cache), "--run", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["farout", *arguments, *places])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "Table 4: ID accuracy" in out
    assert "94.28" in out
    assert set(PLANS) == {kind.value for kind in farout.cli.bench.PaperTable}
