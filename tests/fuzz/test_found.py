"""What the fuzzer found, and what was found by asking what it could not reach: each is a test by itself."""

import itertools
import json
import os
import pickle
import shutil
import struct
import zlib

import numpy as np
import pytest
import torch
from targets import make_detectors

from farout.config import Config
from farout.data.arrays import ArraySet, read_arrays
from farout.data.cifar import read_cifar10
from farout.data.folders import FolderSet
from farout.data.image_lists import read_list
from farout.data.pickles import load_plain
from farout.data.svhn import read_svhn
from farout.data.tiny_images import TinyImages
from farout.detector import Detector
from farout.errors import CheckpointError, ConfigError, DataError

# Recipes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train: {epochs: !!timestamp soon}", "holds a value that is none"),
        ("train: {epochs: 2001-13-45}", "holds a value that is none"),
        (f"train: {{epochs: {'9' * 5000}}}", "holds a value that is none"),
        (f"extends: {'a' * 5000}", "names no recipe: .*File name too long"),
        ("extends: [demo/ce]", "names no recipe"),
        ("net: &a [*a]", "nested too deeply"),
        ("net: !!python/object/apply:os.system [touch made]", "not valid YAML"),
    ],
)
def test_recipes(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        Config.load("recipe.yaml")
    assert not (tmp_path / "made").exists()


def test_a_recipe_of_ten_lines_that_means_a_billion_values(tmp_path):
    names = "abcdefghi"
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]" for below, name in itertools.pairwise(names)]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="holds more than 10,000 values"):
        Config.load(tmp_path / "recipe.yaml")


# Arrays


def test_a_npy_header_that_does_not_end(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 4, 4, 3), np.uint8))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data.replace(b"), }", b"(((("))
    with pytest.raises(DataError, match="cannot be read as a plain array file"):
        read_arrays(tmp_path / "a.npy")


def test_a_npz_packed_in_an_unknown_way(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((2, 4, 4, 3), np.uint8))
    data = (tmp_path / "a.npz").read_bytes()
    changed = data.replace(b"PK\x01\x02\x2d\x03\x2d\x00", b"PK\x01\x02\x2d\x03\xff\x00")
    assert changed != data
    (tmp_path / "a.npz").write_bytes(changed)
    with pytest.raises(DataError, match="NotImplementedError"):
        read_arrays(tmp_path / "a.npz")


def test_a_npz_that_unfolds_to_a_thousand_times_its_size(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((100_000, 32, 32, 3), np.uint8))
    assert (tmp_path / "a.npz").stat().st_size < 400_000
    with pytest.raises(DataError, match=r"unfolds to 307,200,\d+: refused as a decompression bomb"):
        read_arrays(tmp_path / "a.npz")


def test_a_class_beyond_a_million_is_no_class():
    """Names are made up for unnamed classes, one for each number up to the largest."""
    with pytest.raises(DataError, match=r"labels run from 0 to 10000000; expected .* 0 .. 999999"):
        ArraySet("a", np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 10_000_000]))


# Pickles


def refuse(tmp_path, data: bytes, says: str) -> None:
    (tmp_path / "batch").write_bytes(data)
    with pytest.raises(DataError, match=says):
        load_plain(tmp_path / "batch")


def test_a_memo_of_two_billion_places(tmp_path):
    """Python's own unpickler sets aside, and fills, 32 GB for these seven bytes."""
    refuse(tmp_path, b"\x80\x02]r\xff\xff\xff\x7f.", "it numbers its 2-th part 2147483647")


@pytest.mark.parametrize("name", ["bytearray", "bytes"])
def test_a_hundred_gigabytes_of_zeros(tmp_path, name):
    refuse(tmp_path, f"cbuiltins\n{name}\n(I99999999999\ntR.".encode(), "is damaged")


def test_an_array_type_whose_flags_would_make_numpy_follow_its_numbers_as_pointers(tmp_path):
    """The state of a dtype ends in its flags; 63 says that items are objects. Here only the byte order is read."""
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    data = pickle.dumps(array, protocol=2)
    plain = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
    assert plain in data
    (tmp_path / "batch").write_bytes(data.replace(plain, plain.replace(b"K\x00t", b"K\x3ft")))
    assert np.array_equal(load_plain(tmp_path / "batch"), array)
    refuse(tmp_path, pickle.dumps(np.array([{}, []], dtype=object), protocol=2), "arrays of 'O8'")


def test_lists_that_share_lists_are_not_written_out(tmp_path):
    """40 levels of two: 2^40 numbers, if anyone were to visit them all."""
    nested = [1, 1]
    for _ in range(40):
        nested = [nested, nested]
    pixels = np.zeros((1, 3072), np.uint8)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": pixels, "labels": nested}, protocol=2))
    with pytest.raises(DataError, match="its labels are not a list of integers"):
        read_cifar10(tmp_path, "test")


@pytest.mark.parametrize("names", [3, None, [1] * 10, {"a": 1}])
def test_class_names_that_are_none(tmp_path, names):
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1]}))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    with pytest.raises(DataError, match="0 class names found, 10 expected"):
        read_cifar10(tmp_path, "test")


# Other sets


def test_an_excluded_image_beyond_all_numbers(tmp_path):
    (tmp_path / "tiny_images.bin").write_bytes(bytes(3072))
    (tmp_path / "list.txt").write_text("9" * 30)
    with pytest.raises(DataError, match="is not a list of image numbers"):
        TinyImages(tmp_path / "tiny_images.bin", tmp_path / "list.txt")


@pytest.mark.parametrize("line", [f"a.png {'9' * 30}", "a.png 99999999999", "a\0.png 1", "loop.png 1", "../a.png 1"])
def test_image_lists(tmp_path, line):
    os.symlink("loop.png", tmp_path / "loop.png")
    (tmp_path / "list.txt").write_text(line + "\n")
    with pytest.raises(DataError, match=r"list.txt, line 1"):
        read_list(tmp_path / "list.txt", tmp_path)


def test_a_link_to_itself_in_a_folder(tmp_path):
    os.symlink("loop.png", tmp_path / "loop.png")
    with pytest.raises(DataError, match="loop.png is a link that leaves"):
        FolderSet("loop", tmp_path)


def test_a_mat_file_that_unfolds_without_end(tmp_path):
    """300 MB of zeros in 300 kB."""
    packed = zlib.compress(bytes(300 * 2**20), 9)
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    (tmp_path / "a.mat").write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(DataError, match="refused as a decompression bomb"):
        read_svhn(tmp_path / "a.mat")


# Detectors


@pytest.fixture(scope="module")
def detectors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detectors")
    make_detectors(folder)
    return folder


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (["net"], {"name": "mlp", "in_features": 4}, "must be an entry with a name and num_classes"),
        (["net", "hidden"], [10**9], "asks for 1000000000, but no tensor in model.safetensors"),
        (["net", "num_classes"], 10**12, "the two files do not belong together"),
        (["net"], {"name": "wrn", "depth": 10**9, "num_classes": 3}, "asks for 1000000000"),
        (["net", "in_features"], 3, "does not fit its architecture"),
        (["net", "pretrained"], True, "asks for pretrained, which would load another file"),
        (["score", "k"], 10**9, "KNN does not fit its own tensors"),
        (["classes"], ["a", 3], "its classes must be a list of names"),
        (["classes"], list("abcdefgh"), "names 8 classes, and its network tells 3 apart"),
        (["size"], 10**6, "must have a side of 1 to 4096 pixels"),
        (["size"], [], "must have a side of 1 to 4096 pixels"),
        (["format"], 99, "has format 99"),
    ],
)
def test_detector_cards(detectors, tmp_path, place, value, says):
    shutil.copytree(detectors / "knn", tmp_path / "d")
    card = json.loads((tmp_path / "d" / "detector.json").read_text())
    owner = card
    for key in place[:-1]:
        owner = owner[key]
    owner[place[-1]] = value
    (tmp_path / "d" / "detector.json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match=says):
        Detector.load(tmp_path / "d")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("net.head.weight", torch.zeros(3, 5, dtype=torch.int64), "net.head.weight is torch.int64 in the file"),
        ("net.head.weight", torch.zeros(3, 6), "does not fit its architecture"),
        ("score.bank", torch.zeros(20, 6), "KNN does not fit its own tensors"),
        ("score.bank", torch.zeros(20, 5, dtype=torch.int64), "KNN does not fit its own tensors"),
        ("calibration", torch.zeros(2, 2, dtype=torch.float64), r"calibration has the shape \(2, 2\), expected \(n,\)"),
        ("more", torch.zeros(1), r"unexpected \['more'\]"),
    ],
)
def test_detector_tensors(detectors, tmp_path, name, value, says):
    from safetensors.torch import load_file, save_file

    shutil.copytree(detectors / "knn", tmp_path / "d")
    file = tmp_path / "d" / "model.safetensors"
    save_file({**load_file(file), name: value}, file)
    with pytest.raises(CheckpointError, match=says):
        Detector.load(tmp_path / "d")


def test_a_safetensors_file_that_declares_more_than_it_has(detectors, tmp_path):
    shutil.copytree(detectors / "msp", tmp_path / "d")
    header = json.dumps({"net.w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "d" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged"):
        Detector.load(tmp_path / "d")
    (tmp_path / "d" / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged"):
        Detector.load(tmp_path / "d")
