"""Image lists: `path label` lines."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from farout.data.image_lists import read_list
from farout.errors import DataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, file in enumerate(("a/1.png", "a/two words.png", "b/1.png")):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / file)
    return tmp_path


def write(root: Path, text: str) -> Path:
    (root / "test.txt").write_text(text)
    return root / "test.txt"


def test_images_come_in_the_order_of_the_list(root: Path):
    given = read_list(write(root, "b/1.png 3\na/two words.png -1\n\na/1.png 0\n"), root, size=4)
    x, y = given.read(torch.arange(3))
    assert x[:, 0, 0, 0].tolist() == [2, 1, 0]
    assert y.tolist() == [3, -1, 0]
    assert (given.name, given.classes) == ("test", ())


def test_a_list_of_unknowns_has_no_labels(root: Path):
    assert read_list(write(root, "b/1.png -1\n"), root).labels is None


@pytest.mark.parametrize("line", ["a/1.png", "a/1.png cat", "7", "a/1.png -2"])
def test_bad_lines_are_named(root: Path, line: str):
    with pytest.raises(DataError, match=rf"test\.txt, line 2: expected .*found '{line}'"):
        read_list(write(root, f"a/1.png 0\n{line}\n"), root)


@pytest.mark.parametrize("file", ["../outside.png", "/etc/outside.png"])
def test_paths_that_leave_the_root_are_refused(root: Path, file: str):
    with pytest.raises(DataError, match=r"line 1: .*outside\.png leaves"):
        read_list(write(root, f"{file} 0\n"), root)


def test_missing_and_empty_lists_are_named(root: Path):
    with pytest.raises(DataError, match=r"none\.txt cannot be read"):
        read_list(root / "none.txt", root)
    with pytest.raises(DataError, match="no images"):
        read_list(write(root, "\n"), root)


def test_a_listed_image_that_is_not_there_is_named_when_read(root: Path):
    given = read_list(write(root, "a/9.png 0\n"), root)
    with pytest.raises(DataError, match=r"9\.png cannot be decoded: FileNotFoundError"):
        given.read(torch.tensor([0]))
