"""The demonstration's data: the same on every call, disjoint where it must be."""

import pytest
import torch

from farout.data.demo import DEMO_SETS
from farout.data.named import check_named, open_named


def pixels(name: str, split: str = "train") -> torch.Tensor:
    samples = open_named(name, split=split)
    return samples.read(torch.arange(len(samples)))[0]


@pytest.mark.parametrize("name", sorted(DEMO_SETS))
def test_made_twice_is_the_same(name):
    first, second = pixels(name), pixels(name)
    assert torch.equal(first, second)
    assert first.shape[1:] == (1, 8, 8)
    assert first.dtype == torch.uint8
    assert first.float().std() > 20  # something is drawn


def test_digits_are_split_without_overlap_and_only_0_to_5():
    train, test = open_named("demo/digits", split="train"), open_named("demo/digits", split="test")
    assert len(train) + len(test) == 1083
    assert train.labels.unique().tolist() == [0, 1, 2, 3, 4, 5]
    assert test.labels.unique().tolist() == [0, 1, 2, 3, 4, 5]
    seen = {image.numpy().tobytes() for image in pixels("demo/digits", "train")}
    assert not seen & {image.numpy().tobytes() for image in pixels("demo/digits", "test")}


def test_ink_is_counted_as_in_the_digits():
    """Letters have the digits' 17 levels; digit pixels are scikit-learn's 0..16 scaled to 0..255."""
    levels = {round(level * 255 / 16) for level in range(17)}
    assert set(pixels("demo/digits").unique().tolist()) <= levels
    assert set(pixels("demo/outliers")[:1040].unique().tolist()) <= levels


def test_check_named_counts_a_made_set():
    report = check_named("demo/flower")
    assert (report.count, report.shape, report.ok) == (700, (1, 8, 8), True)
