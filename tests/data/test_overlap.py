"""Leakage between sets: exact copies, near copies, class names; against brute force, and with false alarms excluded."""

import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from farout.data.arrays import ArraySet, Subset
from farout.data.overlap import (
    BITS,
    LeakageWarning,
    fingerprint,
    greys,
    guard,
    near_pairs,
    overlap,
    perceptual_hash,
    shared_classes,
)
from farout.errors import ConfigError, DataError


def blobs(count, seed=0, side=32):
    """Smooth random colour images: coarse noise, enlarged."""
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return (torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)


def brute_force(a, b, threshold):
    return {
        (i, j, bin(int(x) ^ int(y)).count("1"))
        for i, x in enumerate(a)
        for j, y in enumerate(b)
        if bin(int(x) ^ int(y)).count("1") <= threshold
    }


@pytest.mark.parametrize("threshold", [0, 1, 4, 9])
def test_near_pairs_are_those_of_brute_force_and_each_comes_once(threshold):
    rng = np.random.default_rng(threshold)
    a = rng.integers(0, 1 << BITS, 60, dtype=np.uint64)
    flips = np.array([sum(1 << int(bit) for bit in rng.choice(BITS, rng.integers(0, 12), False)) for _ in range(80)])
    b = a[rng.integers(0, 60, 80)] ^ flips.astype(np.uint64)
    found = [
        (i, j, d) for part in near_pairs(a, b, threshold) for i, j, d in zip(*(x.tolist() for x in part), strict=True)
    ]
    assert len(found) == len(set(found))
    assert set(found) == brute_force(a, b, threshold)


def test_parts_are_small_and_together_whole(monkeypatch):
    monkeypatch.setattr("farout.data.overlap.PAIRS", 7)
    a, b = np.zeros(5, np.uint64), np.zeros(9, np.uint64)
    parts = [part for part in near_pairs(a, b, 0) if len(part[0])]
    assert max(len(left) for left, _, _ in parts) <= 7
    assert {(i, j) for left, right, _ in parts for i, j in zip(left, right, strict=True)} == {
        (i, j) for i in range(5) for j in range(9)
    }


def recoded(images):
    """The same images as JPEG files of another size give them."""
    out = []
    for image in images:
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((48, 48), Image.Resampling.BILINEAR)
        out.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
    return torch.stack(out)


def test_exact_and_near_copies_are_counted_and_shown():
    a, fresh = blobs(200), blobs(100, seed=1)
    brighter = (a[10:20].float() * 0.8 + 30).round().to(torch.uint8)
    b = torch.cat([fresh[:50], a[:10], brighter, fresh[50:]])
    found = overlap(ArraySet("first", a), ArraySet("second", b))
    assert (found.exact_a, found.exact_b) == (10, 10)
    assert (found.near_a, found.near_b) == (20, 20)
    assert (found.count_a, found.count_b) == (200, 120)
    assert not found.clean
    assert all(pair.distance == 0 and pair.likeness > 0.99 and pair.a == pair.b - 50 for pair in found.examples)
    assert "10 of the 120 samples of second are also in first" in str(found)
    assert "20 of the 120" in str(found)


def test_a_copy_of_another_size_is_near():
    a = blobs(30)
    found = overlap(ArraySet("a", a), ArraySet("b", recoded(a)))
    assert found.exact_b == 0
    assert found.near_b == 30


def test_images_that_only_look_random_are_not_near():
    found = overlap(ArraySet("a", blobs(300)), ArraySet("b", blobs(300, seed=1)))
    assert found.clean
    assert found.examples == ()
    assert "share nothing" in str(found)


def test_threshold_none_looks_for_exact_copies_only():
    a = blobs(20)
    b = torch.cat([a[:3], (a[3:6].float() * 0.9).to(torch.uint8)])
    found = overlap(ArraySet("a", a), ArraySet("b", b), threshold=None)
    assert (found.exact_b, found.near_b) == (3, 0)
    assert [(pair.a, pair.b) for pair in found.examples] == [(0, 0), (1, 1), (2, 2)]


def test_flat_images_are_left_out_of_the_near_search_but_not_of_the_exact_one():
    """Two walls of different grey, with a little noise, have hashes made of noise: never near."""
    noise = torch.randint(0, 2, (40, 1, 32, 32), generator=torch.Generator().manual_seed(0))
    walls = (torch.arange(40).view(-1, 1, 1, 1) * 4 + 40 + noise).to(torch.uint8)
    found = overlap(ArraySet("a", walls[:20]), ArraySet("b", torch.cat([walls[20:], walls[:1]])))
    assert (found.flat_a, found.flat_b) == (20, 21)
    assert found.near_b == 0
    assert found.exact_b == 1
    assert found.examples[0].likeness == 1.0


def test_the_hash_ignores_brightness_and_contrast_and_sees_shape():
    grey = greys(blobs(50))
    hashes = perceptual_hash(grey)
    assert torch.equal(perceptual_hash(grey * 0.5 + 20), hashes)
    assert len(set(hashes.tolist())) == 50
    assert (hashes >= 0).all()


def test_embeddings_are_compared_exactly():
    a = torch.randn(10, 4)
    found = overlap(ArraySet("a", a), ArraySet("b", torch.cat([torch.randn(5, 4), a[2:4]])))
    assert (found.exact_b, found.near_b) == (2, 0)
    assert fingerprint(ArraySet("a", a)).shape is None


def named(name, classes, count=4, seed=0):
    return ArraySet(name, blobs(count, seed), torch.arange(count) % len(classes), classes)


def test_class_names_that_mean_the_same():
    a = named("a", ["airplane", "automobile", "cat"])
    b = named("b", ["tabby, tabby cat", "Automobiles", "tree"], seed=1)
    assert shared_classes(a, b) == ("tabby, tabby cat", "Automobiles", "automobile")
    assert shared_classes(a, Subset(b, [2])) == ()  # only a tree is left
    assert shared_classes(a, ArraySet("c", blobs(3))) == ()


def test_wrong_threshold():
    a = ArraySet("a", blobs(2))
    for threshold in (-1, BITS):
        with pytest.raises(ConfigError, match="give 0 .. 62"):
            overlap(a, a, threshold)


def sets_of_an_evaluation():
    train, outliers, id_test, ood = (ArraySet(name, blobs(30, seed)) for seed, name in enumerate("tuio"))
    return train, outliers, id_test, {"o": ood}


def test_the_guard_is_silent_on_clean_sets_and_looks_at_every_pair_but_id_train_and_test():
    train, outliers, id_test, tests = sets_of_an_evaluation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked = guard(train, outliers, id_test, tests, strict=True)
        assert [(found.a, found.b) for found in checked] == [("t", "o"), ("u", "t"), ("u", "i"), ("u", "o")]
        assert guard(train, outliers, Subset(train, [0, 1]), tests)  # ID train and test: a matter of the benchmark
        assert len(guard(train, None, id_test, tests)) == 1


def test_the_guard_warns_and_refuses_when_strict():
    train, outliers, id_test, tests = sets_of_an_evaluation()
    leaking = ArraySet("u", torch.cat([outliers.images, tests["o"].images[:2]]))
    with pytest.warns(LeakageWarning, match="2 of the 30 samples of o are also in u"):
        guard(train, leaking, id_test, tests)
    with pytest.raises(DataError, match="2 of the 30 samples of o are also in u.*farout data"):
        guard(train, leaking, id_test, tests, strict=True)


def test_plain_data_for_programs():
    a = named("a", ["cat"])
    plain = json.loads(json.dumps(overlap(a, a, examples=1).to_dict()))
    assert plain["exact_b"] == 4
    assert plain["classes"] == ["cat"]
    assert plain["examples"] == [{"a": 0, "b": 0, "distance": 0, "likeness": 1.0}]
    assert plain["clean"] is False
