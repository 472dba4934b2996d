"""ArraySet, Subset and the array files: exact samples, both layouts, what is refused."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from farout.data.arrays import ArraySet, Mapped, Subset, read_arrays
from farout.errors import DataError


def pixels(count: int = 5, side: int = 4) -> np.ndarray:
    """Images (N, H, W, 3) whose every value is distinct from its neighbours'."""
    return np.arange(count * side * side * 3, dtype=np.uint8).reshape(count, side, side, 3)


def test_tensor_images_are_read_as_they_are():
    images = torch.arange(2 * 3 * 2 * 2, dtype=torch.uint8).view(2, 3, 2, 2)
    x, y = ArraySet("t", images, [7, 3]).read(torch.tensor([1, 0, 1]))
    assert torch.equal(x, images[[1, 0, 1]])
    assert y.tolist() == [3, 7, 3]
    assert y.dtype == torch.int64


def test_numpy_images_turn_channels_first_batch_by_batch():
    images = pixels()
    given = ArraySet("n", images)
    x, _ = given.read(torch.tensor([4, 2]))
    assert x.shape == (2, 3, 4, 4)
    assert x.is_contiguous(memory_format=torch.channels_last)  # no copy but the one that reading makes
    assert x[0, 2, 1, 3] == images[4, 1, 3, 2]
    assert given.images is images


def test_labels_are_minus_one_where_none_is_known():
    given = ArraySet("n", pixels())
    assert given.labels is None
    assert given.read(torch.tensor([0, 1]))[1].tolist() == [-1, -1]


def test_embeddings_are_read_as_float32():
    values = np.array([[0.1, 0.2], [0.3, 0.4]])
    for given in (values, torch.from_numpy(values), values.astype(">f8")):
        x, _ = ArraySet("e", given).read(torch.tensor([1]))
        assert x.dtype == torch.float32
        assert torch.equal(x, torch.tensor([[0.3, 0.4]]))


def test_labels_of_any_integer_kind_become_int64():
    for labels in (np.array([2, 0, 1, 1, 0], ">i4"), torch.tensor([2, 0, 1, 1, 0], dtype=torch.uint8)):
        known = ArraySet("n", pixels(), labels).labels
        assert known is not None
        assert (known.tolist(), known.dtype) == ([2, 0, 1, 1, 0], torch.int64)


def test_an_empty_index_reads_nothing():
    x, y = ArraySet("n", pixels()).read(torch.tensor([], dtype=torch.int64))
    assert x.shape == (0, 3, 4, 4)
    assert y.shape == (0,)


@pytest.mark.parametrize("index", [-1, 5])
def test_indices_outside_the_set_are_an_error(index: int):
    with pytest.raises(IndexError, match="n has 5 samples"):
        ArraySet("n", pixels()).read(torch.tensor([0, index]))


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 3, 4, 4), np.uint8),  # channels first in numpy
        np.zeros((2, 4, 4), np.uint8),
        np.zeros((2, 4, 4, 3), np.float32),
        np.zeros((2, 5), np.int64),
        torch.zeros((2, 4, 4, 3), dtype=torch.uint8),  # channels last in torch
    ],
)
def test_other_shapes_and_types_are_refused(images):
    with pytest.raises(DataError, match=r"odd: an array .* is not a set of samples"):
        ArraySet("odd", images)


@pytest.mark.parametrize("labels", [[0, 1], [0.0, 1, 2, 3, 4], [-2, 0, 0, 0, 0], [0, 1, 2, 0, 0]])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(DataError, match="odd: labels"):
        ArraySet("odd", pixels(), labels, ("a", "b"))


def test_a_subset_keeps_order_labels_and_names():
    base = ArraySet("b", pixels(), [0, 1, 0, 1, 1], ("zero", "one"))
    part = Subset(base, [3, 0, 4])
    assert (part.name, part.classes, len(part)) == ("b", ("zero", "one"), 3)
    assert part.labels is not None
    assert part.labels.tolist() == [1, 0, 1]
    x, y = part.read(torch.tensor([2, 0]))
    assert torch.equal(x, base.read(torch.tensor([4, 3]))[0])
    assert y.tolist() == [1, 1]


def test_a_subset_checks_its_numbers():
    base = ArraySet("b", pixels())
    with pytest.raises(IndexError, match=r"asked for 0 \.\. 5"):
        Subset(base, [0, 5])
    with pytest.raises(IndexError, match="b has 2 samples"):
        Subset(base, [0, 4]).read(torch.tensor([2]))


def test_npy_is_memory_mapped_and_pickled_as_its_path(tmp_path: Path):
    images = pixels(200)
    np.save(tmp_path / "many.npy", images)
    given = read_arrays(tmp_path / "many.npy")
    assert given.name == "many"
    assert isinstance(given.images, Mapped)
    assert isinstance(given.images.array, np.memmap)
    sent = pickle.dumps(given)
    assert len(sent) < images.nbytes / 4
    x, _ = pickle.loads(sent).read(torch.tensor([150]))
    assert torch.equal(x[0], torch.from_numpy(images[150]).permute(2, 0, 1))


@pytest.mark.parametrize(("image_key", "label_key"), [("images", "labels"), ("x", "y"), ("data", "y")])
def test_npz_with_labels_and_classes(tmp_path: Path, image_key: str, label_key: str):
    fields = {image_key: pixels(3), label_key: np.array([1, 0, 1]), "classes": np.array(["cat", "dog"])}
    np.savez(tmp_path / "s.npz", **fields)
    given = read_arrays(tmp_path / "s.npz", "pets")
    assert (given.name, given.classes) == ("pets", ("cat", "dog"))
    x, y = given.read(torch.tensor([2]))
    assert torch.equal(x[0], torch.from_numpy(pixels(3)[2]).permute(2, 0, 1))
    assert y.tolist() == [1]


def test_npz_with_one_unnamed_array(tmp_path: Path):
    np.savez(tmp_path / "s.npz", pixels(3))
    assert len(read_arrays(tmp_path / "s.npz")) == 3


def test_known_class_names_are_used_only_where_labels_fit(tmp_path: Path):
    np.savez(tmp_path / "s.npz", images=pixels(3), labels=np.array([0, 1, 2]))
    assert read_arrays(tmp_path / "s.npz", classes=("a", "b", "c")).classes == ("a", "b", "c")
    assert read_arrays(tmp_path / "s.npz", classes=("a", "b")).classes == ()


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("trap-was-run"),))


@pytest.mark.parametrize("name", ["s.npz", "s.npy"])
def test_object_arrays_are_refused_and_not_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    trap = np.array([Trap()], dtype=object)
    if name == "s.npz":
        np.savez(tmp_path / name, images=trap)
    else:
        np.save(tmp_path / name, trap)
    with pytest.raises(DataError, match=name):
        read_arrays(tmp_path / name)
    assert not Path("trap-was-run").exists()


@pytest.mark.parametrize("name", ["s.npz", "s.npy"])
def test_a_bare_pickle_is_refused_and_not_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=name):
        read_arrays(tmp_path / name)
    assert not Path("trap-was-run").exists()


def test_object_class_names_are_refused(tmp_path: Path):
    np.savez(tmp_path / "s.npz", images=pixels(3), classes=np.array([Trap()], dtype=object))
    with pytest.raises(DataError, match=r"s\.npz"):
        read_arrays(tmp_path / "s.npz")


def test_numbers_as_class_names_are_refused(tmp_path: Path):
    np.savez(tmp_path / "s.npz", images=pixels(3), classes=np.array([1, 2]))
    with pytest.raises(DataError, match="classes must be an array of strings"):
        read_arrays(tmp_path / "s.npz")


def test_npz_without_images_names_what_it_has(tmp_path: Path):
    np.savez(tmp_path / "s.npz", pictures=pixels(3))
    with pytest.raises(DataError, match="it has pictures, none of images, x, data, arr_0"):
        read_arrays(tmp_path / "s.npz")


@pytest.mark.parametrize("name", ["s.npz", "s.npy"])
def test_truncated_and_missing_array_files_are_named(tmp_path: Path, name: str):
    path = tmp_path / name
    with pytest.raises(DataError, match=name):
        read_arrays(path)
    (np.savez if name == "s.npz" else np.save)(path, pixels(20))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=name):
        read_arrays(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=name):
        read_arrays(path)


def test_a_wrong_suffix_is_named(tmp_path: Path):
    np.save(tmp_path / "s.npy", pixels(3))
    (tmp_path / "s.npy").rename(tmp_path / "s.npz")
    with pytest.raises(DataError, match=r"name it \.npy"):
        read_arrays(tmp_path / "s.npz")
    np.savez(tmp_path / "t.npz", pixels(3))
    (tmp_path / "t.npz").rename(tmp_path / "t.npy")
    with pytest.raises(DataError, match=r"name it \.npz"):
        read_arrays(tmp_path / "t.npy")
