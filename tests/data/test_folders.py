"""Folders of images: order, classes, links."""

import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image

from farout.data.folders import FolderSet
from farout.errors import DataError


def put(root: Path, *files: str) -> None:
    """Writes 4 x 4 images; the red of each is its place in `files`, from 1."""
    for number, file in enumerate(files, start=1):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(root / file)


def reds(given: FolderSet) -> list[int]:
    return given.read(torch.arange(len(given)))[0][:, 0, 0, 0].tolist()


def test_class_folders_are_sorted_and_recursive(tmp_path: Path):
    put(tmp_path, "b/2.png", "a/x/9.png", "b/1.png", "a/1.png", "a-b/0.PNG")
    given = FolderSet("f", tmp_path, size=4)
    assert given.classes == ("a", "a-b", "b")
    assert given.labels is not None
    assert given.labels.tolist() == [0, 0, 1, 2, 2]
    assert reds(given) == [4, 2, 5, 3, 1]


def test_flat_folders_have_no_labels(tmp_path: Path):
    put(tmp_path, "2.png", "1.png")
    given = FolderSet("f", tmp_path, size=4)
    assert (given.classes, given.labels, reds(given)) == ((), None, [2, 1])


def test_a_stray_image_beside_class_folders_has_no_class(tmp_path: Path):
    put(tmp_path, "a/1.png", "preview.png")
    given = FolderSet("f", tmp_path, size=4)
    assert given.labels is not None
    assert (given.classes, given.labels.tolist()) == (("a",), [0, -1])


def test_an_empty_class_keeps_its_number(tmp_path: Path):
    put(tmp_path, "a/1.png", "c/1.png")
    (tmp_path / "b").mkdir()
    given = FolderSet("f", tmp_path, size=4, names={"c": "sea"})
    assert given.labels is not None
    assert (given.classes, given.labels.tolist()) == (("a", "b", "sea"), [0, 2])


def test_other_and_hidden_files_are_passed_over(tmp_path: Path):
    put(tmp_path, "a/1.png", "a/._1.png", ".cache/1.png")
    (tmp_path / "a" / "boxes.txt").write_text("1 2 3 4")
    given = FolderSet("f", tmp_path, size=4)
    assert (len(given), given.classes) == (1, ("a",))


@pytest.mark.parametrize("linked", ["secret.png", "folder"])
def test_links_that_leave_the_folder_are_refused(tmp_path: Path, linked: str):
    put(tmp_path, "root/a/1.png", "secret.png", "folder/1.png")
    (tmp_path / "root" / "a" / linked).symlink_to(tmp_path / linked)
    with pytest.raises(DataError, match=rf"root/a/{linked} is a link that leaves"):
        FolderSet("f", tmp_path / "root", size=4)


def test_links_inside_the_folder_are_safe(tmp_path: Path):
    put(tmp_path, "a/1.png", "a/2.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path)  # a circle
    (tmp_path / "a" / "again.png").symlink_to(tmp_path)
    (tmp_path / "a" / "3.png").symlink_to(tmp_path / "a" / "1.png")
    assert reds(FolderSet("f", tmp_path, size=4)) == [1, 2, 1]


def test_the_folder_itself_may_be_a_link(tmp_path: Path):
    put(tmp_path, "disk/a/1.png")
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    assert len(FolderSet("f", tmp_path / "data", size=4)) == 1


def test_missing_and_empty_folders_are_named(tmp_path: Path):
    with pytest.raises(DataError, match="nowhere cannot be read"):
        FolderSet("f", tmp_path / "nowhere")
    with pytest.raises(DataError, match=f"f: no images .* under {tmp_path}"):
        FolderSet("f", tmp_path)


def test_a_set_survives_pickling(tmp_path: Path):
    put(tmp_path, "a/1.png", "b/1.png")
    assert reds(pickle.loads(pickle.dumps(FolderSet("f", tmp_path, size=4)))) == [1, 2]
