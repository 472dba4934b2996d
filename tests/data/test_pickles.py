"""The restricted unpickler: numpy and plain types of either Python come through, nothing else runs."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from farout.data.pickles import load_plain
from farout.errors import DataError


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_containers_of_every_protocol(tmp_path: Path, protocol: int):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    value = {"data": array, "labels": [1, 2.5, None, True], "scalar": np.int64(7), "rest": (b"b", {"s"}, "é")}
    (tmp_path / "batch").write_bytes(pickle.dumps(value, protocol=protocol))
    loaded = load_plain(tmp_path / "batch")
    assert np.array_equal(loaded["data"], array)
    assert loaded["data"].dtype == np.uint8
    assert (loaded["labels"], loaded["scalar"], loaded["rest"]) == (value["labels"], 7, value["rest"])


def test_strings_of_python_2_are_bytes(tmp_path: Path):
    (tmp_path / "batch").write_bytes(b"\x80\x02U\x02\xff\xfe.")
    assert load_plain(tmp_path / "batch") == b"\xff\xfe"


def test_fortran_arrays_keep_their_values(tmp_path: Path):
    array = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    for protocol in (2, 5):
        (tmp_path / "batch").write_bytes(pickle.dumps(array, protocol=protocol))
        assert np.array_equal(load_plain(tmp_path / "batch"), array)


class Call:
    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (Call(Path.touch, Path("ran")), "Path"),
        (Call(open, "ran", "w"), "io.open"),
        (Call(eval, "open('ran', 'w')"), "builtins.eval"),
        (Call(getattr, "text", "upper"), "builtins.getattr"),
        (Call(np.save, "ran.npy", 1), "numpy.save"),
    ],
)
def test_anything_else_is_named_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call, named: str):
    monkeypatch.chdir(tmp_path)
    Path("batch").write_bytes(pickle.dumps({"data": call}, protocol=4))
    with pytest.raises(DataError, match=rf"batch asks for .*{named}.*not run"):
        load_plain(tmp_path / "batch")
    assert [path.name for path in tmp_path.iterdir()] == ["batch"]


def test_a_dotted_way_through_an_allowed_name_is_refused(tmp_path: Path):
    # Protocol 4 lets a name have dots; "dtype.__class__" must not be looked up attribute by attribute.
    (tmp_path / "batch").write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93.")
    with pytest.raises(DataError, match=r"numpy\.dtype\.__class__"):
        load_plain(tmp_path / "batch")


def test_only_latin1_is_encoded(tmp_path: Path):
    (tmp_path / "batch").write_bytes(b"c_codecs\nencode\n(Vtext\nVzip\ntR.")
    with pytest.raises(DataError, match="encoding"):
        load_plain(tmp_path / "batch")


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: b"", lambda data: b"\x00" + data])
def test_damaged_files_are_named_with_their_size(tmp_path: Path, damage):
    data = damage(pickle.dumps({"data": np.zeros(100, np.uint8)}))
    (tmp_path / "batch").write_bytes(data)
    with pytest.raises(DataError, match=rf"batch is damaged.*\({len(data)} bytes found\)"):
        load_plain(tmp_path / "batch")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="batch"):
        load_plain(tmp_path / "batch")
