"""Rows on disk: cut, foreign and hostile ones."""

import json

import pytest

from farout.errors import CheckpointError, DataError
from farout.training.log import RunLog, read_rows


def test_log_rows_are_json(tmp_path):
    log = RunLog(tmp_path / "log.jsonl")
    log.write({"step": 0, "loss": 1.5})
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {"step": 0, "loss": 1.5}


@pytest.mark.parametrize(
    "line", ["rubbish", "[" * 100_000, '{"step": ' + "1" * 5000 + "}", '{"step"', '{"a": "\udc80"}', "\0\0\0"]
)
def test_a_broken_line_is_named_and_left_out_at_the_end_alone(tmp_path, line):
    path = tmp_path / "log.jsonl"
    broken = line.encode(errors="surrogateescape")
    path.write_bytes(b'{"step": 0}\n' + broken + b'\n{"step": 1}\n')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        read_rows(path, broken_tail=True)
    path.write_bytes(b'{"step": 0}\n' + broken)
    assert read_rows(path, broken_tail=True) == [{"step": 0}]
    with pytest.raises(DataError, match="line 2 is not JSON"):
        read_rows(path)


@pytest.mark.parametrize("line", ["3", "[]", "null", '"text"'])
def test_what_is_no_row_is_named(tmp_path, line):
    (tmp_path / "log.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="line 1 is not a row but a"):
        read_rows(tmp_path / "log.jsonl", broken_tail=True)


def test_only_newlines_end_a_row(tmp_path):
    row = {"set": "one\u2028two\x85three"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n\n", encoding="utf-8")
    assert read_rows(tmp_path / "rows.jsonl") == [row]


def test_keeping_rows_before_a_step(tmp_path):
    log = RunLog(tmp_path / "log.jsonl")
    log.keep_before(3)
    assert not log.path.exists()
    for step in range(5):
        log.write({"step": step})
    with log.path.open("a") as file:
        file.write('{"step": 5')
    log.keep_before(3)
    assert [row["step"] for row in read_rows(log.path)] == [0, 1, 2]
    log.path.write_text('{"ood": "textures"}\n')
    with pytest.raises(DataError, match="is not a training log: a row has no step"):
        log.keep_before(3)


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*the last checkpoint is intact"):
        RunLog(tmp_path / "file" / "log.jsonl").write({"step": 0})
