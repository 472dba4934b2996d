"""CIFAR in its binary and Python versions, byte for byte."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from farout.data.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES, read_cifar10, read_cifar100
from farout.errors import DataError

SPLIT_FILES = {"train": 5, "test": 1}


def images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def write_binary_10(folder: Path) -> None:
    """Files of two images each: batch b has labels b and b + 1, the test batch 8 and 9."""
    folder.mkdir()
    for batch in range(1, 7):
        name = f"data_batch_{batch}.bin" if batch < 6 else "test_batch.bin"
        label = batch if batch < 6 else 8
        records = [bytes([label + i]) + images(2, batch)[i].tobytes() for i in range(2)]
        (folder / name).write_bytes(b"".join(records))


def write_binary_100(folder: Path) -> None:
    folder.mkdir()
    for seed, name in enumerate(("train.bin", "test.bin")):
        records = [bytes([3, 40 + i]) + images(2, seed)[i].tobytes() for i in range(2)]
        (folder / name).write_bytes(b"".join(records))


def python2_pickle(data: np.ndarray, key: bytes, labels: list[int]) -> bytes:
    """What Python 2's cPickle wrote at protocol 2, as in the published batches: byte strings throughout."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    kind = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    raw = data.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    array += b"(" + number(1) + number(data.shape[0]) + number(data.shape[1]) + b"\x86" + kind + b"\x89"
    array += b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    items = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + items + b"u."


def write_python_10(folder: Path) -> None:
    folder.mkdir()
    for batch in range(1, 7):
        name = f"data_batch_{batch}" if batch < 6 else "test_batch"
        label = batch if batch < 6 else 8
        (folder / name).write_bytes(python2_pickle(images(2, batch), b"labels", [label, label + 1]))


@pytest.mark.parametrize("write", [write_binary_10, write_python_10])
def test_cifar10_pixels_and_labels(tmp_path: Path, write):
    write(tmp_path / "c")
    train, test = (read_cifar10(tmp_path / "c", split) for split in ("train", "test"))
    assert (len(train), len(test), train.classes) == (10, 2, CIFAR10_CLASSES)
    assert train.labels is not None
    assert train.labels.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    x, y = test.read(torch.tensor([1]))
    assert y.tolist() == [9]
    assert torch.equal(x.flatten(), torch.from_numpy(images(2, 6)[1]))
    assert torch.equal(train.read(torch.tensor([3]))[0].flatten(), torch.from_numpy(images(2, 2)[1]))


def test_planes_are_red_green_blue_row_by_row(tmp_path: Path):
    write_binary_10(tmp_path / "c")
    x, _ = read_cifar10(tmp_path / "c", "test").read(torch.tensor([0]))
    raw = images(2, 6)[0]
    assert x[0, 0, 0, 1] == raw[1]
    assert x[0, 0, 1, 0] == raw[32]
    assert x[0, 2, 31, 31] == raw[3071]


def test_cifar100_takes_the_fine_label(tmp_path: Path):
    write_binary_100(tmp_path / "b")
    x, y = read_cifar100(tmp_path / "b", "test").read(torch.tensor([0, 1]))
    assert y.tolist() == [40, 41]
    assert torch.equal(x.flatten(1), torch.from_numpy(images(2, 1)))
    (tmp_path / "p").mkdir()
    batch = {"data": images(2, 1), "fine_labels": [40, 41], "coarse_labels": [3, 3], "filenames": ["a", "b"]}
    (tmp_path / "p" / "test").write_bytes(pickle.dumps(batch))
    same_x, same_y = read_cifar100(tmp_path / "p", "test").read(torch.tensor([0, 1]))
    assert torch.equal(x, same_x)
    assert torch.equal(y, same_y)


def test_the_built_in_class_names():
    assert (len(CIFAR10_CLASSES), len(CIFAR100_CLASSES)) == (10, 100)
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES)
    assert (CIFAR10_CLASSES[1], CIFAR100_CLASSES[0], CIFAR100_CLASSES[99]) == ("automobile", "apple", "worm")


def test_class_names_come_from_the_meta_file(tmp_path: Path):
    names = [f"class{i}" for i in range(10)]
    write_binary_10(tmp_path / "b")
    (tmp_path / "b" / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    assert read_cifar10(tmp_path / "b", "test").classes == tuple(names)
    write_python_10(tmp_path / "p")
    meta = {b"label_names": [name.encode() for name in names]}
    (tmp_path / "p" / "batches.meta").write_bytes(pickle.dumps(meta))
    assert read_cifar10(tmp_path / "p", "test").classes == tuple(names)
    (tmp_path / "p" / "batches.meta").write_bytes(pickle.dumps({"label_names": names[:9]}))
    with pytest.raises(DataError, match=r"batches\.meta is damaged: 9 class names found, 10 expected"):
        read_cifar10(tmp_path / "p", "test")


def test_a_truncated_binary_file_gives_both_sizes(tmp_path: Path):
    write_binary_10(tmp_path / "c")
    path = tmp_path / "c" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin is damaged: 6,145 bytes found, 30,730,000 expected"):
        read_cifar10(tmp_path / "c", "train")


def test_a_truncated_pickle_gives_both_sizes(tmp_path: Path):
    write_python_10(tmp_path / "c")
    path = tmp_path / "c" / "test_batch"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"test_batch is damaged.*1,000 bytes found.*over 30,720,000 bytes"):
        read_cifar10(tmp_path / "c", "test")


@pytest.mark.parametrize("write", [write_binary_10, write_python_10])
def test_a_missing_batch_is_named(tmp_path: Path, write):
    write(tmp_path / "c")
    next((tmp_path / "c").glob("data_batch_4*")).unlink()
    with pytest.raises(DataError, match=r"data_batch_4.* is missing"):
        read_cifar10(tmp_path / "c", "train")
    assert len(read_cifar10(tmp_path / "c", "test")) == 2


def test_labels_out_of_range_are_damage(tmp_path: Path):
    write_binary_10(tmp_path / "c")
    path = tmp_path / "c" / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"test_batch\.bin is damaged.*labels, not all in 0 \.\. 9"):
        read_cifar10(tmp_path / "c", "test")


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ([1, 2], "its data is NoneType"),
        ({"data": np.zeros((2, 3000), np.uint8), "labels": [0, 1]}, r"its data is \(2, 3000\)"),
        ({"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]}, "float32"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "2 images with 1 labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": ["x", "y"]}, "its labels are not a list of integers"),
        ({"data": np.zeros((2, 3072), np.uint8)}, "its labels are not a list of integers"),
    ],
)
def test_odd_batches_are_damage(tmp_path: Path, batch, says: str):
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=rf"test_batch is damaged.*{says}"):
        read_cifar10(tmp_path, "test")


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("trap-was-run"),))


@pytest.mark.parametrize("file", ["test_batch", "batches.meta"])
def test_a_malicious_batch_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str):
    monkeypatch.chdir(tmp_path)
    write_python_10(tmp_path / "c")
    (tmp_path / "c" / file).write_bytes(pickle.dumps({"data": Trap()}))
    with pytest.raises(DataError, match=r"asks for .*not run"):
        read_cifar10(tmp_path / "c", "test")
    assert not Path("trap-was-run").exists()


def test_a_set_survives_pickling(tmp_path: Path):
    write_python_10(tmp_path / "c")
    given = read_cifar10(tmp_path / "c", "test")
    again = pickle.loads(pickle.dumps(given))
    assert torch.equal(again.read(torch.tensor([1]))[0], given.read(torch.tensor([1]))[0])
