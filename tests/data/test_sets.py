"""Opening sets by name or path, in the layouts people have, and checking them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from farout.data import SETS, ArraySet, FolderSet, TinyImages, check_set, open_set
from farout.data.catalogue import ALIASES
from farout.errors import ConfigError, DataError


def put_image(path: Path, red: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (36, 40), (red, 0, 0)).save(path)


def put_array(path: Path, red: int, count: int = 2, labels: list[int] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = np.full((count, 32, 32, 3), red, np.uint8)
    if path.suffix == ".npy":
        np.save(path, images)
    else:
        np.savez(path, images=images, **({} if labels is None else {"labels": np.array(labels)}))


def put_cifar10(folder: Path, pickled: bool = False) -> None:
    folder.mkdir(parents=True)
    for red, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], start=1):
        if pickled:
            batch = {b"data": np.full((1, 3072), red, np.uint8), b"labels": [red]}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        else:
            (folder / f"{name}.bin").write_bytes(bytes([red]) * 3073)


def put_svhn(path: Path, red: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": np.full((32, 32, 3, 2), red, np.uint8), "y": np.array([[10], [4]], np.uint8)})


def red(given, index: int = 0) -> int:
    return int(given.read(torch.tensor([index]))[0][0, 0, 5, 5])


@pytest.mark.parametrize("layout", ["cifar-10-batches-bin", "cifarpy/cifar-10-batches-py"])
def test_cifar10_by_name(tmp_path: Path, layout: str):
    put_cifar10(tmp_path / layout, pickled=layout.endswith("py"))
    train, test = open_set("cifar10", tmp_path), open_set("CIFAR-10", tmp_path, "test")
    assert (train.name, test.name, len(train), len(test)) == ("cifar10", "cifar10", 5, 1)
    assert (red(train, 4), red(test), train.classes[1]) == (5, 6, "automobile")


def test_cifar100_by_name(tmp_path: Path):
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-100-binary/test.bin").write_bytes(bytes([3, 77]) + bytes([9]) * 3072)
    given = open_set("cifar100", tmp_path, "test")
    assert (red(given), given.read(torch.tensor([0]))[1].tolist()) == (9, [77])


@pytest.mark.parametrize("home", ["", "svhn", "datasets/ood_datasets/svhn"])
def test_svhn_by_name(tmp_path: Path, home: str):
    for value, split in enumerate(("train", "test", "extra"), start=1):
        put_svhn(tmp_path / home / f"{split}_32x32.mat", value)
    assert [red(open_set("svhn", tmp_path, split)) for split in ("train", "test", "extra")] == [1, 2, 3]
    assert open_set("svhn", tmp_path, "test").read(torch.arange(2))[1].tolist() == [0, 4]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("textures", "dtd/images/banded/banded_1.jpg"),
        ("dtd", "datasets/ood_datasets/dtd/images/banded/banded_1.jpg"),
        ("textures", "images_classic/texture/banded/banded_1.jpg"),
        ("places365", "places365_standard/val/airfield/1.jpg"),
        ("places365", "places365/test_subset/1.jpg"),
        ("lsun", "LSUN/test/1.jpg"),
        ("lsun-c", "LSUN/1.jpg"),
        ("lsun-r", "LSUN_resize/LSUN_resize/1.jpg"),
        ("isun", "iSUN/iSUN_patches/1.jpeg"),
        ("isun", "datasets/ood_datasets/iSUN/1.jpeg"),
        ("lsun-fix", "LSUN_fix/1.png"),
        ("imagenet-resize", "Imagenet_resize/Imagenet_resize/1.jpg"),
        ("inaturalist", "iNaturalist/images/1.jpg"),
        ("sun", "SUN/images/1.jpg"),
        ("tinyimagenet", "tiny-imagenet-200/train/n01/images/n01_0.JPEG"),
        ("imagenet", "images_largescale/imagenet_1k/train/n01/1.JPEG"),
        ("imagenet21k-p", "imagenet21k_resized/imagenet21k_train/n01/1.JPEG"),
        ("cifar10", "images_classic/cifar10/train/airplane/1.png"),
        ("cifar100", "images_classic/cifar100/train/apple/1.png"),
        ("svhn", "images_classic/svhn/train/1.png"),
    ],
)
def test_image_folders_by_name(tmp_path: Path, name: str, file: str):
    put_image(tmp_path / file, 200)
    given = open_set(name, tmp_path, size=16)
    assert (given.name, len(given)) == (ALIASES.get(name, name), 1)
    x, _ = given.read(torch.tensor([0]))
    assert x.shape == (1, 3, 16, 16)
    assert abs(int(x[0, 0, 8, 8]) - 200) <= 2  # JPEG
    assert check_set(name, tmp_path).path in (tmp_path / file).parents


def test_the_validation_split_serves_as_test(tmp_path: Path):
    put_image(tmp_path / "imagenet/train/n01/1.png", 1)
    put_image(tmp_path / "imagenet/val/n01/1.png", 2)
    assert (red(open_set("imagenet", tmp_path)), red(open_set("imagenet", tmp_path, "test"))) == (1, 2)


def test_arrays_and_binaries_by_name(tmp_path: Path):
    put_array(tmp_path / "300K_random_images.npy", 3)
    assert red(open_set("300k", tmp_path)) == 3
    (tmp_path / "tiny_images.bin").write_bytes(b"\x01" * 3072 + b"\x02" * 3072)
    with pytest.raises(DataError, match=r"80mn_cifar_idxs\.txt"):
        open_set("tiny-images", tmp_path)
    (tmp_path / "80mn_cifar_idxs.txt").write_text("1\n")
    given = open_set("tiny-images", tmp_path)
    assert isinstance(given, TinyImages)
    assert (len(given), red(given)) == (1, 2)


def test_drop_in_arrays_come_before_the_layouts(tmp_path: Path):
    put_svhn(tmp_path / "test_32x32.mat", 1)
    order = ["svhn.npy", "svhn.npz", "svhn-test.npy", "svhn-test.npz"]
    for value, file in enumerate(order, start=10):
        put_array(tmp_path / file, value)
        assert red(open_set("svhn", tmp_path, "test")) == value
    assert red(open_set("svhn", tmp_path, "train")) == 11


def test_drop_in_arrays_take_the_known_class_names(tmp_path: Path):
    put_array(tmp_path / "cifar10-train.npz", 1, labels=[9, 0])
    assert open_set("cifar10", tmp_path).classes == SETS["cifar10"].classes
    put_array(tmp_path / "cifar10-train.npz", 1, labels=[99, 0])
    assert open_set("cifar10", tmp_path).classes == ()


def test_drop_in_arrays_go_by_alias_too(tmp_path: Path):
    put_array(tmp_path / "lsun.npz", 4)
    assert red(open_set("lsun-c", tmp_path)) == 4
    put_array(tmp_path / "lsun-c.npz", 5)
    assert red(open_set("lsun-c", tmp_path)) == 5


def test_sets_without_splits_ignore_the_split(tmp_path: Path):
    put_image(tmp_path / "iSUN/1.png", 7)
    assert [red(open_set("isun", tmp_path, split)) for split in ("train", "test", "all")] == [7, 7, 7]


def test_an_unknown_name_may_be_a_drop_in_array(tmp_path: Path):
    put_array(tmp_path / "scenes.npz", 1)
    put_array(tmp_path / "scenes-test.npy", 2)
    assert [red(open_set("scenes", tmp_path, split)) for split in ("train", "test")] == [1, 2]
    assert open_set("scenes", tmp_path).name == "scenes"


def test_paths_open_without_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    put_array(Path("a.npy"), 1)
    put_array(Path("b.npz"), 2)
    put_image(Path("folder/x/1.png"), 3)
    put_svhn(Path("c.mat"), 4)
    Path("list.txt").write_text("folder/x/1.png 5\n")
    assert [red(open_set(name, tmp_path)) for name in ("a.npy", "b.npz", "folder", "c.mat", "list.txt")] == [
        *(1, 2, 3, 4, 3)
    ]
    assert isinstance(open_set(str(tmp_path / "a.npy")), ArraySet)
    assert isinstance(open_set("./folder"), FolderSet)


def test_a_known_name_as_part_of_a_path_is_a_path(tmp_path: Path):
    put_image(tmp_path / "root/dtd/images/a/1.png", 1)
    put_image(tmp_path / "mine/textures/a/1.png", 2)
    assert red(open_set(str(tmp_path / "mine/textures"), tmp_path / "root")) == 2
    assert red(open_set("textures", tmp_path / "root")) == 1


def test_folders_with_splits(tmp_path: Path):
    put_image(tmp_path / "pets/train/cat/1.png", 1)
    put_image(tmp_path / "pets/val/cat/1.png", 2)
    assert [red(open_set("pets", tmp_path, split)) for split in ("train", "test")] == [1, 2]
    with pytest.raises(DataError, match="pets has train, val but no extra"):
        open_set("pets", tmp_path, "extra")
    put_image(tmp_path / "pets/test/cat/1.png", 3)
    assert red(open_set("pets", tmp_path, "test")) == 3


def test_a_class_called_train_is_not_a_split(tmp_path: Path):
    put_image(tmp_path / "things/train/1.png")
    put_image(tmp_path / "things/tractor/1.png")
    assert open_set("things", tmp_path).classes == ("tractor", "train")


def test_a_cifar_folder_by_path(tmp_path: Path):
    put_cifar10(tmp_path / "cifar-10-batches-py", pickled=True)
    assert len(open_set(str(tmp_path / "cifar-10-batches-py"))) == 5


def test_the_root_comes_from_the_environment_or_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAROUT_DATA", raising=False)
    put_array(Path("data/isun.npz"), 1)
    put_array(Path("other/isun.npz"), 2)
    assert red(open_set("isun")) == 1
    monkeypatch.setenv("FAROUT_DATA", "other")
    assert red(open_set("isun")) == 2
    assert red(open_set("isun", "data")) == 1


def test_a_missing_set_says_what_where_and_how(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        open_set("svhn", tmp_path / "nowhere", "test")
    for part in ("'svhn' (test)", str(tmp_path / "nowhere"), "svhn-test.npz", "svhn.npy", "svhn/test_32x32.mat"):
        assert part in str(caught.value)
    assert "ufldl.stanford.edu" in str(caught.value)


@pytest.mark.parametrize("name", list(SETS))
def test_every_missing_set_says_how_to_get_it(tmp_path: Path, name: str):
    with pytest.raises(DataError) as caught:
        open_set(name, tmp_path, "train")
    assert SETS[name].source in str(caught.value)
    assert "{split}" not in str(caught.value)


def test_unknown_names_get_a_suggestion(tmp_path: Path):
    with pytest.raises(DataError, match=r"unknown data set 'cifar1', did you mean 'cifar10'\?"):
        open_set("cifar1", tmp_path)
    with pytest.raises(DataError, match=r"unknown data set 'zzz'\. It is not a path either.*Known sets: cifar10"):
        open_set("zzz", tmp_path)


def test_unknown_splits_and_treatments_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="'cifar10' has no split 'val'; it has train, test"):
        open_set("cifar10", tmp_path, "val")
    with pytest.raises(ConfigError, match="a data set needs a name"):
        open_set("", tmp_path)
    put_cifar10(tmp_path / "cifar-10-batches-bin")
    with pytest.raises(ConfigError, match="has no split 'val'; it has train, test"):
        open_set(str(tmp_path / "cifar-10-batches-bin"), split="val")
    with pytest.raises(ConfigError, match="corrupt='drop' is not known"):
        open_set("cifar10", tmp_path, corrupt="drop")


def test_an_unknown_kind_of_file_is_named(tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.zip is no kind of set known here.*\.npy"):
        open_set(str(tmp_path / "a.zip"))


def test_corrupt_images_can_be_skipped_by_name(tmp_path: Path):
    put_image(tmp_path / "iSUN/1.png", 1)
    (tmp_path / "iSUN/2.png").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"isun: skipped 1 damaged image\(s\): .*2\.png"):
        assert len(open_set("isun", tmp_path, corrupt="skip")) == 1


def test_check_of_a_folder_lists_what_is_corrupt(tmp_path: Path):
    put_image(tmp_path / "iSUN/a/1.png")
    (tmp_path / "iSUN/a/2.png").write_bytes(b"")
    report = check_set("isun", tmp_path)
    assert (report.name, report.path, report.count, report.expected) == ("isun", tmp_path / "iSUN", 2, 8925)
    assert (report.shape, report.classes) == ((3, 32, 32), ("a",))
    assert report.corrupt == (str(tmp_path.resolve() / "iSUN/a/2.png"),)
    assert not report.ok


def test_check_is_content_only_with_the_expected_count(tmp_path: Path):
    put_array(tmp_path / "isun.npy", 0, count=8925)
    report = check_set("isun", tmp_path, "test")
    assert (report.ok, report.count, report.shape, report.split) == (True, 8925, (3, 32, 32), "test")
    put_array(tmp_path / "isun.npy", 0, count=8924)
    assert not check_set("isun", tmp_path).ok


def test_check_of_a_set_of_ones_own_expects_no_count(tmp_path: Path):
    put_array(tmp_path / "mine.npz", 0, count=1030)
    report = check_set("mine", tmp_path)
    assert (report.ok, report.expected, report.count) == (True, None, 1030)


def test_check_notices_files_that_are_not_as_published(tmp_path: Path):
    put_cifar10(tmp_path / "cifar-10-batches-py", pickled=True)
    report = check_set("cifar10", tmp_path, "test")
    assert len(report.altered) == 6
    assert str(tmp_path / "cifar-10-batches-py/test_batch") in report.altered
    put_svhn(tmp_path / "svhn/test_32x32.mat", 1)
    assert check_set("svhn", tmp_path, "test").altered == (str(tmp_path / "svhn/test_32x32.mat"),)


def test_check_knows_an_untouched_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import dataclasses
    import hashlib

    put_svhn(tmp_path / "test_32x32.mat", 1)
    md5 = hashlib.md5((tmp_path / "test_32x32.mat").read_bytes()).hexdigest()
    known = dataclasses.replace(SETS["svhn"], md5={"test_32x32.mat": md5}, expected={"test": 2})
    monkeypatch.setitem(SETS, "svhn", known)
    assert check_set("svhn", tmp_path, "test").ok


def test_check_of_a_missing_or_unreadable_set_raises(tmp_path: Path):
    with pytest.raises(DataError, match="'isun' was not found"):
        check_set("isun", tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(b"")
    with pytest.raises(DataError, match=r"test_32x32\.mat cannot be read"):
        check_set("svhn", tmp_path, "test")


def test_the_table_is_whole():
    named = "cifar10 cifar100 svhn textures places365 lsun lsun-r isun lsun-fix imagenet-resize tinyimagenet 300k"
    named += " tiny-images imagenet inaturalist sun imagenet21k-p"
    assert list(SETS) == named.split()
    assert set(ALIASES.values()) <= set(SETS)
    assert not set(ALIASES) & set(SETS)
    for name, info in SETS.items():
        assert info.name == name
        assert info.role
        assert info.source
        assert info.licence
        assert set(info.expected) <= (set(info.splits) or {"all"})
