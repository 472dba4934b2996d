"""Dropping what overlaps the in-distribution classes from a pool of outliers."""

import pickle

import pytest
import torch

from farout.data.arrays import ArraySet
from farout.data.cifar import CIFAR10_CLASSES
from farout.data.outliers import SYNONYMS, auxiliary, overlapping_classes, without_classes
from farout.errors import ConfigError, DataError

NAMES = ("goldfish, Carassius auratus", "sports car, sport car", "Chihuahua", "fire engine, fire truck")


def pool(labels: list[int] | None, classes: tuple[str, ...] = NAMES) -> ArraySet:
    """One-pixel images; the red of each is its place."""
    count = len(labels) if labels is not None else 6
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, 1, 1)
    return ArraySet("pool", images, labels, classes)


def kept(given) -> list[int]:
    return given.read(torch.arange(len(given)))[0][:, 0, 0, 0].tolist()


LABELS = [0, 1, 2, 3, 1, 0]


@pytest.mark.parametrize(
    ("drop", "stays"),
    [
        ([1], [0, 2, 3, 5]),
        (["sport car"], [0, 2, 3, 5]),
        (["Sports_Cars"], [0, 2, 3, 5]),
        (["sports car, sport car"], [0, 2, 3, 5]),
        ([0, "fire truck"], [1, 2, 4]),
        ([], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_classes_are_dropped_by_number_or_name(drop: list[int | str], stays: list[int]):
    given = without_classes(pool(LABELS), drop)
    assert kept(given) == stays
    assert given.labels is not None
    assert given.labels.tolist() == [LABELS[i] for i in stays]
    assert given.classes == NAMES


def test_samples_without_a_label_stay():
    assert kept(without_classes(pool([0, -1, 1, -1]), [0])) == [1, 2, 3]


def test_a_set_without_names_drops_by_number():
    assert kept(without_classes(pool(LABELS, ()), [3])) == [0, 1, 2, 4, 5]
    with pytest.raises(ConfigError, match="pool has no class 4; it has 4 classes"):
        without_classes(pool(LABELS, ()), [4])


def test_every_unknown_class_is_named():
    with pytest.raises(ConfigError, match=r"pool has no class 'goldfis', 9, -1 \(did you mean 'goldfish'\?\)"):
        without_classes(pool(LABELS), ["goldfis", 1, 9, -1])


def test_a_set_without_labels_cannot_drop_classes():
    with pytest.raises(ConfigError, match=r"pool has no labels, so its classes cannot be dropped: \[1\]"):
        without_classes(pool(None), [1])


@pytest.mark.parametrize(
    ("outlier", "known", "overlaps"),
    [
        ("Aquarium Fish", "aquarium_fish", True),
        ("beetles", "beetle", True),
        ("butterflies", "butterfly", True),
        ("buses", "bus", False),  # only simple plurals
        ("boxes", "box", True),
        ("tench, Tinca tinca", "Tinca_tinca", True),
        ("sports car, sport car", "automobile", True),  # the table says so
        ("minibus", "automobile", False),
        ("sports car", "vehicle", False),
        ("catamaran", "cat", False),  # no part-word matches
        ("plane, carpenter's plane", "airplane", False),
        ("Chihuahua", "dog", False),  # names cannot tell
        ("tabby, tabby cat", "cat", True),
        ("glass", "glas", False),
    ],
)
def test_names_that_coincide(outlier: str, known: str, overlaps: bool):
    assert overlapping_classes(["nothing", outlier], ["other", known]) == ([1] if overlaps else [])


def test_the_synonyms_are_those_of_cifar10_and_each_of_one_class():
    assert set(SYNONYMS) == set(CIFAR10_CLASSES)
    names = [name.strip() for listed in SYNONYMS.values() for name in listed.split(",")]
    assert len(names) == len(set(names))
    assert overlapping_classes(names, CIFAR10_CLASSES) == list(range(len(names)))


def test_auxiliary_drops_both():
    given = auxiliary(pool(LABELS), CIFAR10_CLASSES, drop=["Chihuahua"])
    assert kept(given) == [0, 5]
    assert kept(pickle.loads(pickle.dumps(given))) == [0, 5]


def test_auxiliary_of_an_unlabelled_set_is_that_set():
    given = pool(None)
    assert auxiliary(given, ("goldfish",)) is given


def test_auxiliary_of_a_set_that_overlaps_nothing_is_that_set():
    given = pool(LABELS)
    assert auxiliary(given, ("spoon",)) is given


def test_an_empty_pool_is_an_error():
    with pytest.raises(DataError, match="pool: no outlier stays of 2"):
        auxiliary(pool([1, 3]), CIFAR10_CLASSES)
