"""Layouts of result rows: right numbers, right order, best in bold, nothing unescaped, nothing hidden."""

import csv
import io
import json

import pytest

from farout.errors import CheckpointError, ConfigError
from farout.report.layouts import LAYOUTS, escape, latex, leaderboard, markdown, openood_files, tidy_csv, wide
from farout.report.rows import find_rows


def row(method, ood, fpr, auroc, seed=0, group="far", **more):
    shared = {"score": "msp", "id": "digits", "accuracy": 0.9, "aupr_id": 0.8, "aupr_ood": 0.7}
    return {
        **shared,
        "method": method,
        "ood": ood,
        "group": group,
        "seed": seed,
        "fpr95_id": fpr,
        "fpr95_ood": fpr / 2,
        "auroc": auroc,
        **more,
    }


ROWS = [
    row("oe_1", "near/a&b", 0.20, 0.90, 0, "near"),
    row("oe_1", "far/c", 0.10, 0.95),
    row("oe_1", "near/a&b", 0.30, 0.92, 1, "near"),
    row("oe_1", "far/c", 0.20, 0.97, 1),
    row("dal", "near/a&b", 0.10, 0.91, 0, "near"),
    row("dal", "far/c", 0.16, 0.95),
    row("dal", "near/a&b", 0.12, 0.91, 1, "near"),
    row("dal", "far/c", 0.14, 0.97, 1),
]


def test_wide_has_the_papers_columns_and_averages_within_seeds():
    table = wide(ROWS)
    assert table.columns()[:3] == [("near/a&b", "fpr95_id"), ("near/a&b", "auroc"), ("far/c", "fpr95_id")]
    assert table.cells["oe_1", "msp"]["average", "fpr95_id"] == pytest.approx([0.15, 0.25])
    assert wide(ROWS, "ood").cells["dal", "msp"]["far/c", "fpr95_ood"] == pytest.approx([0.08, 0.07])


def test_best_is_bold_in_its_own_direction_and_ties_are_shared():
    lines = {line.split("|")[1].strip(): line for line in markdown(ROWS).splitlines() if "±" in line and "|" in line}
    oe, dal = ([cell.strip() for cell in lines[name].split("|")[2:-1]] for name in ("oe_1", "dal"))
    assert dal[0] == "**11.00 ± 1.41**"  # FPR95: the lowest
    assert oe[0] == "25.00 ± 7.07"
    assert dal[1].startswith("**91.00")  # AUROC: a tie of the means
    assert oe[3].startswith("**96.00")
    assert dal[3].startswith("**96.00")


def test_a_method_that_misses_a_set_has_no_average():
    table = wide(ROWS[:7])  # dal's second seed lacks far/c
    assert ("average", "auroc") not in table.cells["dal", "msp"]
    assert table.cells["dal", "msp"]["far/c", "auroc"] == [0.95]
    table = wide([*ROWS[:4], ROWS[4], ROWS[6]])
    assert ("average", "auroc") not in table.cells["dal", "msp"]
    assert "| – |" in markdown([*ROWS[:4], ROWS[4], ROWS[6]])
    assert table.best(("average", "auroc")) == 93.5


def test_notes_say_the_side_the_seeds_and_what_is_left_out():
    text = markdown([{**one, "protocol": "p", "left_out": ["svhn"]} for one in ROWS], "ood")
    assert "Protocol p." in text
    assert "over 2 seeds" in text
    assert "OOD as the positive side" in text
    assert "Left out because absent: svhn" in text
    assert "Left out" not in markdown(ROWS)


def test_latex_is_booktabs_escaped_and_balanced():
    text = latex(ROWS)
    assert r"\multicolumn{2}{c}{a\&b}" in text
    assert r"oe\_1 &" in text
    assert r"\textbf{11.00 $\pm$ 1.41}" in text
    for mark in (r"\toprule", r"\midrule", r"\bottomrule", r"\cmidrule(lr){2-3}", r"FPR95 $\downarrow$"):
        assert mark in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in body[1:]} == {6}
    assert text.count("{") == text.count("}")
    assert escape("50% #1_{x}^~\\") == r"50\% \#1\_\{x\}\textasciicircum{}\textasciitilde{}\textbackslash{}"


def test_csv_reads_back():
    lines = list(csv.DictReader(io.StringIO(tidy_csv(ROWS))))
    assert [line["set"] for line in lines] == ["near/a&b", "far/c", "average"] * 2
    assert float(lines[2]["fpr95_id"]) == pytest.approx(20)
    assert float(lines[2]["fpr95_ood"]) == pytest.approx(10)
    assert float(lines[3]["fpr95_id_std"]) == pytest.approx(2**0.5, abs=1e-4)
    assert lines[0]["seeds"] == "2"


def test_openood_has_its_index_its_columns_and_its_side():
    files = openood_files(ROWS)
    assert list(files) == ["oe_1", "dal"]
    lines = list(csv.reader(io.StringIO(files["dal"])))
    assert lines[0] == ["dataset", "FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC"]
    assert [line[0] for line in lines[1:]] == ["a&b", "nearood", "c", "farood"]
    assert lines[1][1] == "5.50 ± 0.71"  # OOD positive
    assert lines[1][3:] == ["80.00 ± 0.00", "70.00 ± 0.00", "90.00 ± 0.00"]


def test_a_line_for_openoods_leaderboard():
    more = {"trained": "oe", "net": "resnet18"}
    rows = [row("mine", "a", 0.1, auroc, seed, "near", **more) for seed, auroc in ((0, 0.90), (1, 0.92))]
    rows += [row("mine", "b", 0.1, 0.99, seed, "far", **more) for seed in (0, 1)]
    rows += [{**one, "method": "ce", "trained": "ce", "score": "energy"} for one in rows[:2]]
    header, mine, ce = csv.reader(io.StringIO(leaderboard(rows)))
    assert ",".join(header) == (
        "Training,Postprocessor,Near-OOD_AUROC,Far-OOD_AUROC,ID_Accuracy,Outlier_Data,Arch,Additional_Description"
    )
    assert mine == ["mine", "MSP", "91.00 ± 1.41", "99.00 ± 0.00", "90.00 ± 0.00", "Yes", "resnet18", ""]
    assert ce == ["ce", "EBO", "91.00 ± 1.41", "", "90.00 ± 0.00", "No", "resnet18", ""]


def test_every_layout_lays_out_and_jsonl_keeps_all():
    assert [json.loads(line) for line in LAYOUTS["jsonl"](ROWS, "id").splitlines()] == ROWS
    for name, layout in LAYOUTS.items():
        assert layout(ROWS[:2], "id"), name


def test_mixtures_and_nothing_are_refused():
    with pytest.raises(ConfigError, match="mix id digits and letters"):
        wide([*ROWS, row("dal", "far/c", 0.1, 0.9, id="letters")])
    with pytest.raises(ConfigError, match="mix protocol"):
        wide([*ROWS, row("dal", "far/c", 0.1, 0.9, protocol="other")])
    with pytest.raises(ConfigError, match="no rows"):
        wide([])


def test_rows_are_found_in_files_runs_and_folders(tmp_path):
    for name in ("b/s0", "a/s1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "results.jsonl").write_text(json.dumps({"from": name}) + "\n")
    assert [one["from"] for one in find_rows([tmp_path])] == ["a/s1", "b/s0"]
    assert find_rows([tmp_path / "b" / "s0"]) == find_rows([tmp_path / "b" / "s0" / "results.jsonl"])
    (tmp_path / "results.jsonl").write_text(json.dumps({"from": "all"}) + "\n")
    assert find_rows([tmp_path]) == [{"from": "all"}]
    (tmp_path / "empty").mkdir()
    for place, message in (("empty", "no result rows"), ("nowhere", "no such run")):
        with pytest.raises(CheckpointError, match=message):
            find_rows([tmp_path / place])
