"""MATLAB files in plain Python, against scipy's reader and by hand."""

import struct

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from farout.data.mat import read_mat


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_every_numeric_type_as_scipy_reads_it(tmp_path, kind, packed):
    array = np.arange(-3, 21).astype(kind).reshape(2, 3, 4)
    path = tmp_path / "a.mat"
    savemat(path, {"skip": "text", "X": array, "y": np.arange(3.0), "small": np.uint8([[7]])}, do_compression=packed)
    found, expected = read_mat(path, ("X", "y", "small", "skip2")), loadmat(path)
    assert set(found) == {"X", "y", "small"}
    for name, value in found.items():
        assert value.dtype == expected[name].dtype
        assert np.array_equal(value, expected[name])


def element(kind: int, content: bytes, order: str) -> bytes:
    return struct.pack(f"{order}II", kind, len(content)) + content + bytes(-len(content) % 8)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_file_written_by_hand_in_either_byte_order(tmp_path, order):
    """A double array whose values are kept as bytes, as MATLAB does where they fit."""
    parts = element(6, struct.pack(f"{order}II", 6, 0), order) + element(5, struct.pack(f"{order}ii", 1, 3), order)
    parts += element(1, b"y", order) + element(2, bytes([10, 2, 3]), order)
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    (tmp_path / "a.mat").write_bytes(header + element(14, parts, order))
    found = read_mat(tmp_path / "a.mat", ("y",))["y"]
    assert found.dtype == np.float64
    assert found.tolist() == [[10.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: b"\x89HDF\r\n\x1a\n" + data, "version 7.3, which is HDF5"),
        (lambda data: data[:100], "no MATLAB header"),
        (lambda data: data[:-9], "within an element"),
        (lambda data: data.replace(struct.pack("<ii", 2, 3), struct.pack("<ii", 2, -3)), r"has the shape \[2, -3\]"),
        (lambda data: data.replace(struct.pack("<ii", 2, 3), struct.pack("<ii", 2, 9)), "cannot reshape"),
    ],
)
def test_damage_is_named(tmp_path, change, says):
    savemat(tmp_path / "a.mat", {"X": np.zeros((2, 3), np.uint8)})
    (tmp_path / "a.mat").write_bytes(change((tmp_path / "a.mat").read_bytes()))
    with pytest.raises(ValueError, match=says):
        read_mat(tmp_path / "a.mat", ("X",))


def test_a_wanted_name_that_is_no_array_of_numbers(tmp_path):
    savemat(tmp_path / "a.mat", {"X": "text"})
    with pytest.raises(ValueError, match="its 'X' is not an array of numbers"):
        read_mat(tmp_path / "a.mat", ("X",))
