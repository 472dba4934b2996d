"""WordNet-id folders and Tiny ImageNet."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from farout.data.wordnet import read_wordnet_folders, words
from farout.errors import DataError

WORDS = "n01\tgoldfish, Carassius auratus\nn02\tbullfrog, Rana catesbeiana\nn03\ttrilobite\n"


def put(path: Path, red: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), (red, 0, 0)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """tiny-imagenet-200 with two classes of the words' three; class n02 comes first in wnids.txt."""
    root = tmp_path / "tiny-imagenet-200"
    put(root / "train/n02/images/n02_0.JPEG", 20)
    put(root / "train/n01/images/n01_0.JPEG", 10)
    (root / "train/n01/n01_boxes.txt").write_text("n01_0.JPEG\t0\t0\t9\t9\n")
    put(root / "val/images/val_0.JPEG", 200)
    put(root / "val/images/val_1.JPEG", 100)
    (root / "val/val_annotations.txt").write_text("val_1.JPEG\tn01\t0\t0\t9\t9\nval_0.JPEG\tn02\t0\t0\t9\t9\n")
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "words.txt").write_text(WORDS)
    return root


def test_training_folders_take_their_words(root: Path):
    given = read_wordnet_folders(root / "train", "tin", 4)
    assert given.classes == ("goldfish, Carassius auratus", "bullfrog, Rana catesbeiana")
    x, y = given.read(torch.arange(2))
    assert y.tolist() == [0, 1]
    assert x[:, 0, 0, 0].tolist() == [10, 20]


def test_validation_labels_come_from_the_annotations(root: Path):
    given = read_wordnet_folders(root / "val", "tin", 4)
    assert given.classes == read_wordnet_folders(root / "train", "tin", 4).classes
    x, y = given.read(torch.arange(2))
    assert y.tolist() == [1, 0]
    assert x[:, 0, 0, 0].tolist() == [200, 100]


def test_validation_classes_are_all_known_ones_even_if_unseen(root: Path):
    (root / "wnids.txt").write_text("n02\nn01\nn00\n")
    given = read_wordnet_folders(root / "val", "tin", 4)
    assert given.classes[0] == "n00"
    assert given.read(torch.arange(2))[1].tolist() == [2, 1]


def test_a_validation_folder_sorted_into_classes_works_too(root: Path):
    put(root / "sorted/n02/val_0.JPEG", 7)
    given = read_wordnet_folders(root / "sorted", "tin", 4)
    assert given.classes == ("bullfrog, Rana catesbeiana",)


@pytest.mark.parametrize(
    ("line", "says"),
    [("val_0.JPEG\n", "expected"), ("../../x.JPEG n01\n", "expected"), ("val_0.JPEG n09\n", "n09")],
)
def test_bad_annotations_are_named(root: Path, line: str, says: str):
    (root / "val/val_annotations.txt").write_text(line)
    with pytest.raises(DataError, match=rf"val_annotations\.txt.*{says}"):
        read_wordnet_folders(root / "val", "tin", 4)


def test_words_are_found_above_or_not_at_all(root: Path, tmp_path: Path):
    assert words(root / "train")["n03"] == "trilobite"
    (root / "words.txt").unlink()
    (root / "LOC_synset_mapping.txt").write_text("n01 tench, Tinca tinca\n")
    assert words(root / "train") == {"n01": "tench, Tinca tinca"}
    assert words(tmp_path / "elsewhere") == {}
