"""Batches as a function of (seed, epoch, step, rank)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farout import distributed, seeds
from farout.data.arrays import ArraySet
from farout.data.augment import CropFlip, NoAugment, Wide
from farout.data.loaders import Resident, Streamed, in_order
from farout.data.pairs import Pairs, epoch_order
from farout.errors import DataError


def numbered(count: int, name: str = "id") -> ArraySet:
    """Images whose pixels are their own number."""
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    return ArraySet(name, pixels, torch.arange(count) % 3)


def pairs(source=Resident, augment=None, inliers: int = 20, outliers: int | None = 33, **arguments) -> Pairs:
    return Pairs(
        source(numbered(inliers)),
        None if outliers is None else source(numbered(outliers, "out")),
        augment or NoAugment(),
        **{"batch_size": 6, "outlier_batch_size": 9, "seed": 5, **arguments},
    )


def same(left, right) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("augment", [NoAugment(), CropFlip(1)], ids=["plain", "crop-flip"])
@pytest.mark.parametrize("source", [Streamed, lambda samples: Streamed(samples, workers=0)], ids=["workers", "inline"])
def test_resident_and_streamed_give_identical_batches(augment, source):
    for epoch in (0, 3):
        resident, streamed = pairs(Resident, augment).epoch(epoch), pairs(source, augment).epoch(epoch)
        assert all(same(a, b) for a, b in zip(resident, streamed, strict=True))


def test_resuming_is_skipping():
    whole = list(pairs(augment=CropFlip(1)).epoch(2))
    tail = list(pairs(augment=CropFlip(1)).epoch(2, start=1))
    assert len(whole) == 3
    assert len(tail) == 2
    assert all(same(a, b) for a, b in zip(whole[1:], tail, strict=True))


def test_outliers_may_be_augmented_otherwise():
    plain = list(pairs(augment=CropFlip(1)).epoch(1))
    wide = list(pairs(augment=CropFlip(1), outlier_augment=Wide(padding=1, share=1.0)).epoch(1))
    for before, after in zip(plain, wide, strict=True):
        assert torch.equal(before.x, after.x)
        assert not torch.equal(before.x_out, after.x_out)
    same_chances = list(pairs(augment=CropFlip(1), outlier_augment=Wide(padding=1, share=0.0)).epoch(1))
    assert all(same(a, b) for a, b in zip(plain, same_chances, strict=True))


def test_an_epoch_sees_each_sample_once_and_epochs_differ():
    first, second = (torch.cat([batch.x[:, 0, 0, 0] for batch in pairs().epoch(epoch)]) for epoch in (0, 1))
    assert len(set(first.tolist())) == 18
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.cat([b.x[:, 0, 0, 0] for b in pairs(seed=6).epoch(0)]))


def test_labels_stay_with_their_images():
    for batch in pairs().epoch(0):
        assert torch.equal(batch.y, batch.x[:, 0, 0, 0].long() % 3)


def test_a_selection_limits_the_outliers():
    chosen = torch.tensor([3, 8, 30])
    seen = torch.cat([batch.x_out[:, 0, 0, 0] for batch in pairs().epoch(0, selection=chosen)])
    assert len(seen) == 27
    assert set(seen.tolist()) == {3, 8, 30}
    assert torch.equal(torch.bincount(seen.long())[chosen], torch.tensor([9, 9, 9]))


def test_without_outliers():
    batch = next(iter(pairs(outliers=None).epoch(0)))
    assert batch.x_out is None


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_global_batch(monkeypatch, ranks):
    """The rows of all ranks, put together again, are the batch that one process sees, augmentation included."""
    whole = list(pairs(augment=CropFlip(1)).epoch(0))
    monkeypatch.setattr(distributed, "world_size", lambda: ranks)
    parts = []
    for rank in range(ranks):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        parts.append(list(pairs(augment=CropFlip(1)).epoch(0)))
    for step, batch in enumerate(whole):
        for rank in range(ranks):
            assert torch.equal(parts[rank][step].x, batch.x[rank::ranks])
            assert torch.equal(parts[rank][step].x_out, batch.x_out[rank::ranks])


def test_too_little_data_is_named():
    with pytest.raises(DataError, match="id has 5 training samples, fewer than one batch of 6; lower data.batch_size"):
        pairs(inliers=5)


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 400), wanted=st.integers(1, 300), seed=st.integers(0, 9))
def test_epoch_order_repeats_as_little_as_it_can(count, wanted, seed):
    order = epoch_order(count, wanted, seeds.generator(seed))
    assert len(order) == wanted
    assert 0 <= order.min() <= order.max() < count
    times = torch.bincount(order, minlength=count)
    if wanted * 8 >= count:
        assert times.max() - times.min() <= 1
    else:
        assert times.max() == 1
    assert torch.equal(order, epoch_order(count, wanted, seeds.generator(seed)))


def test_drawing_from_a_huge_pool_makes_no_permutation():
    order = epoch_order(79_302_017, 1000, seeds.generator(0))
    assert len(set(order.tolist())) == 1000
    assert order.max() > 40_000_000


def test_in_order():
    x, y = (torch.cat(parts) for parts in zip(*in_order(Resident(numbered(7)), batch_size=3), strict=True))
    assert x[:, 0, 0, 0].tolist() == list(range(7))
    assert y.tolist() == [0, 1, 2, 0, 1, 2, 0]
