"""Batch scoring: every kind of source, every kind of output, resuming, shards and broken inputs."""

import csv
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import farout.cli.ship  # registers the commands
from farout import examples
from farout.data.named import open_named
from farout.errors import ConfigError, DataError
from farout.export import export
from farout.scoring import judge, samples
from farout.verdict_files import COLUMNS, CsvFile, JsonlFile, continue_file, kind_of

assert farout.cli.ship


@pytest.fixture
def digits():
    return open_named("demo/digits", split="test").read(torch.arange(7))[0]


@pytest.fixture
def folder(tmp_path, digits):
    where = tmp_path / "images"
    where.mkdir()
    for number, image in enumerate(digits):
        Image.fromarray(image[0].numpy()).save(where / f"{number}.png")
    return where


def same(rows, judged):
    assert len(rows) == len(judged.label)
    for number, row in enumerate(rows):
        assert row["label"] == str(judged.label[number].item())
        assert float(row["score"]) == pytest.approx(judged.score[number].item(), abs=1e-6)
        assert row["verdict"] == ("OOD" if judged.is_ood[number] else "ID")
        assert float(row["p_value"]) == pytest.approx(judged.p_value[number].item())


def test_folder_glob_npz_parquet_and_list_give_the_detectors_verdicts(tiny_run, folder, digits, tmp_path, cli):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    wanted = tiny_run.detector.judge(digits)
    arrays = tmp_path / "a.npz"
    np.savez(arrays, images=digits.permute(0, 2, 3, 1).numpy())
    content = [file.read_bytes() for file in sorted(folder.iterdir())]
    plain, nested = tmp_path / "plain.parquet", tmp_path / "nested.parquet"
    parquet.write_table(pyarrow.table({"id": range(7), "image": content}), plain)
    parquet.write_table(pyarrow.table({"image": [{"bytes": b, "path": None} for b in content]}), nested)
    for source in (folder, f"{folder}/*.png", arrays, plain, nested):
        same(list(judge(tiny_run.detector, [source])), wanted)
    assert [sample.name for sample in samples([arrays])][:2] == [f"{arrays}#0", f"{arrays}#1"]
    listing = "\n".join([*map(str, sorted(folder.iterdir())), "", ""])
    code, out, err = cli("score", tiny_run.folder, "-", stdin=listing)
    assert code == 0
    same(list(csv.DictReader(io.StringIO(out))), wanted)
    assert "7 images in" in err
    assert "images/s" in err


def test_outputs_agree_and_broken_inputs_are_rows_of_their_own(tiny_run, folder, tmp_path, cli):
    parquet = pytest.importorskip("pyarrow.parquet")
    (folder / "3a.png").write_bytes(b"no image")
    for ending in ("csv", "jsonl", "parquet"):
        code, out, err = cli("score", tiny_run.folder, folder, "--out", tmp_path / f"v.{ending}")
        assert code == 1
        assert out == ""
        assert "1 of the images could not be read" in err
        assert "3a.png" in err
    with (tmp_path / "v.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert rows[4]["verdict"] == "error"
    assert "cannot be decoded" in rows[4]["reason"]
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    table = parquet.read_table(tmp_path / "v.parquet").to_pylist()
    assert lines == table
    for row, line in zip(rows, lines, strict=True):
        assert row == {key: "" if value is None else str(value) for key, value in line.items()}


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("cut", [0, 10, 120, 10_000])
def test_a_cut_output_is_continued_to_the_same_rows(tiny_run, folder, tmp_path, cli, ending, cut):
    whole, part = tmp_path / f"whole.{ending}", tmp_path / f"part.{ending}"
    assert cli("score", tiny_run.folder, folder, "--out", whole)[0] == 0
    part.write_bytes(whole.read_bytes()[:-cut] if 0 < cut < 10_000 else whole.read_bytes()[: 10_000 - cut])
    code, _, err = cli("score", tiny_run.folder, folder, "--out", part, "--resume")
    assert code == 0, err
    kind = kind_of(None, whole)
    for row, again in zip(kind.rows(whole), kind.rows(part), strict=True):
        # A batch of another size may round the last bit differently.
        assert float(row.pop("score")) == pytest.approx(float(again.pop("score")), abs=1e-6)
        assert row == again
    assert {0: "0 images", 10: "1 images", 120: "images", 10_000: "7 images"}[cut] in err


def test_resume_refuses_another_list_and_plain_overwriting(tiny_run, folder, tmp_path, cli):
    out = tmp_path / "v.csv"
    assert cli("score", tiny_run.folder, folder, "--out", out)[0] == 0
    before = out.read_bytes()
    code, _, err = cli("score", tiny_run.folder, folder, "--out", out)
    assert code == 1
    assert "exists; continue it with --resume" in err
    code, _, err = cli("score", tiny_run.folder, folder / "1.png", "--out", out, "--resume")
    assert code == 1
    assert "does not continue the output: its row 1 is" in err
    assert out.read_bytes() == before
    assert "name it with --out" in cli("score", tiny_run.folder, folder, "--resume")[2]
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    code, _, err = cli("score", tiny_run.folder, folder, "--out", other, "--resume")
    assert code == 1
    assert "is no output to continue" in err
    assert other.read_text() == "a,b\n1,2\n"


def test_an_old_error_still_counts_after_resuming(tiny_run, folder, tmp_path, cli):
    (folder / "0.png").write_bytes(b"no image")
    out = tmp_path / "v.jsonl"
    assert cli("score", tiny_run.folder, folder, "--out", out)[0] == 1
    assert cli("score", tiny_run.folder, folder, "--out", out, "--resume")[0] == 1


def test_ranks_share_the_inputs(tiny_run, folder, tmp_path, cli, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        assert cli("score", tiny_run.folder, folder, "--out", tmp_path / "v.csv")[0] == 0
    parts = [list(CsvFile.rows(tmp_path / f"v.rank{rank}.csv")) for rank in range(3)]
    assert [len(part) for part in parts] == [3, 2, 2]
    names = [row["file"] for part in parts for row in part]
    assert sorted(names) == sorted(map(str, folder.iterdir()))
    assert "name a file with --out" in cli("score", tiny_run.folder, folder)[2]


def test_names_with_commas_quotes_and_newlines_come_back(tmp_path):
    names = ['a,"b".png', "two\nlines.png", "üñ.png"]
    rows = [{**dict.fromkeys(COLUMNS, ""), "file": name, "score": "1.5"} for name in names]
    for kind in (CsvFile, JsonlFile):
        path = tmp_path / "v"
        sink = kind.open(path)
        sink.write(rows)
        sink.close()
        assert [row["file"] for row in kind.rows(path)] == names
        content = path.read_bytes()
        for end in range(len(content)):  # wherever it was cut, the whole rows remain and no other
            path.write_bytes(content[:end])
            kept = [row["file"] for row in kind.rows(path)]
            assert kept == names[: len(kept)]
        continue_file(kind, path)
        assert [row["file"] for row in kind.rows(path)] == names[:2]


@pytest.mark.parametrize("way", ["folder", "glob", "list", "argument"])
def test_names_that_are_not_utf8_are_escaped(tiny_run, folder, tmp_path, cli, way):
    r"""A byte that is not UTF-8 is written as \xNN, in every output and in the reason."""
    where = tmp_path / "latin"
    where.mkdir()
    good, bad = (os.path.join(os.fsencode(where), name) for name in (b"caf\xe9.png", b"na\xefve.png"))
    try:
        Path(os.fsdecode(good)).write_bytes((folder / "0.png").read_bytes())
        Path(os.fsdecode(bad)).write_bytes(b"no image")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    names = {"folder": [where], "glob": [f"{where}/*.png"], "list": ["-"]}
    names["argument"] = [os.fsdecode(good), os.fsdecode(bad)]
    for ending in ("csv", "jsonl", "parquet"):
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        listing = io.TextIOWrapper(io.BytesIO(good + b"\n" + bad + b"\n"), encoding="utf-8")
        code, _, err = cli("score", tiny_run.folder, *names[way], "--out", tmp_path / f"v.{ending}", stdin=listing)
        assert code == 1, err
    rows = list(CsvFile.rows(tmp_path / "v.csv"))
    assert [row["file"] for row in rows] == [rf"{where}/caf\xe9.png", rf"{where}/na\xefve.png"]
    assert [row["verdict"] for row in rows] == ["ID", "error"]
    assert r"na\xefve.png" in rows[1]["reason"]
    assert [row["file"] for row in JsonlFile.rows(tmp_path / "v.jsonl")] == [row["file"] for row in rows]
    code, *_ = cli("score", tiny_run.folder, where, "--out", tmp_path / "v.csv", "--resume")
    assert code == 1  # the old error counts, and both rows are known again
    assert len(list(CsvFile.rows(tmp_path / "v.csv"))) == 2


def test_an_exported_file_scores_the_same(tiny_run, folder, digits, tmp_path):
    path = export(tiny_run.detector, tmp_path / "d.pt2", "torch")
    same(list(judge(path, [folder])), tiny_run.detector.judge(digits))


def test_an_export_for_any_size_scores_and_one_for_another_size_is_refused(tiny_run, folder, digits, tmp_path, cli):
    for size, name in (("any", "any.pt2"), ("16x16", "wide.pt2")):
        assert cli("export", tiny_run.folder, "--to", "torch", "--input", size, "--out", tmp_path / name)[0] == 0
    code, out, _ = cli("score", tmp_path / "any.pt2", folder)
    assert code == 0
    same(list(csv.DictReader(io.StringIO(out))), tiny_run.detector.judge(digits))
    code, out, err = cli("score", tmp_path / "wide.pt2", folder)
    assert code == 1
    assert "was exported for inputs of [1, 16, 16]" in err
    assert "export without --input, or with --input any" in err


def test_memory_does_not_grow_with_the_list(tiny_run, folder):
    """The stream is pulled a batch at a time: nothing is read ahead of the rows that were taken."""
    pulled = []

    def endless():
        while True:
            pulled.append(1)
            yield folder / "1.png"

    stream = judge(tiny_run.detector, endless())
    for _ in range(300):
        next(stream)
    assert len(pulled) <= 512


def test_what_is_wrong_is_named(tiny_run, tmp_path, folder):
    with pytest.raises(DataError, match="no such image or folder"):
        list(judge(tiny_run.detector, [tmp_path / "none"]))
    with pytest.raises(DataError, match="no such image or folder"):
        list(judge(tiny_run.detector, [f"{tmp_path}/*.gif"]))
    with pytest.raises(ConfigError, match="unknown output format 'xml'"):
        kind_of("xml", None)
    with pytest.raises(ConfigError, match="name a file with --out"):
        kind_of("parquet", None).open(None)
    with pytest.raises(ConfigError, match="cannot be continued"):
        continue_file(kind_of(None, tmp_path / "a.parquet"), tmp_path / "a.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(judge(tiny_run.detector, [tmp_path / "bad.parquet"]))
    parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="no column of bytes; its columns are a"):
        list(judge(tiny_run.detector, [tmp_path / "b.parquet"]))
    parquet.write_table(pyarrow.table({"a": [b"junk", None]}), tmp_path / "c.parquet")
    rows = list(judge(tiny_run.detector, [tmp_path / "c.parquet"]))
    assert [row["verdict"] for row in rows] == ["error", "error"]
    assert "c.parquet#0" in rows[0]["reason"]


def test_calibrate(tiny_run, tmp_path, cli):
    from farout.detector import Detector

    out = tmp_path / "c"
    code, text, err = cli("calibrate", tiny_run.folder, "--data", "demo/digits", "--alpha", "0.05", "--out", out)
    assert code == 0, err
    assert "alpha 0.05" in text
    assert Detector.load(out).calibrated_on["alpha"] == 0.05
    assert not (out / "examples.safetensors").exists()
    assert cli("calibrate", out, "--data", "demo/digits", "--keep-examples", "30")[0] == 0
    assert len(examples.load(out, Detector.load(out)).labels) == 30
    budget = ["--alarms-per-day", "20", "--images-per-day", "1000"]
    assert cli("calibrate", out, "--data", "demo/digits", *budget)[0] == 0
    assert Detector.load(out).calibrated_on["alarms_per_day"] == 20
    code, _, err = cli("calibrate", out, "--data", "demo/digits", "--alarms-per-day", "1", "--images-per-day", "1e6")
    assert code == 1
    assert "needs at least 999,999 calibration samples" in err
    code, _, err = cli("calibrate", out, "--data", "demo/digits", "--split", "train")
    assert code == 1
    assert "was trained on demo/digits" in err
    assert cli("calibrate", out, "--data", "demo/digits", "--alpha", "0.1", "--tpr", "0.9")[0] == 2
    assert cli("calibrate", out, "--data", "demo/digits", "--alarms-per-day", "1")[0] == 2


def test_export_command(tiny_run, tmp_path, cli):
    out = tmp_path / "d.pt2"
    code, text, err = cli("export", tiny_run.folder, "--to", "torch", "--out", out, "--data", "demo/digits")
    assert code == 0, err
    assert str(out) in text
    assert out.is_file()
    assert "unknown export format" in cli("export", tiny_run.folder, "--to", "caffe")[2]
    for wrong in ("big", "0x8", "8x", "²x8"):
        assert cli("export", tiny_run.folder, "--input", wrong)[0] == 2
    for command in ("score", "calibrate", "export"):
        assert "Example" in cli(command, "--help")[1]
