"""Synthetic outliers against plain loops, and the same ones every time."""

import math

import pytest
import torch

from farout.data.arrays import ArraySet
from farout.data.synthetic import GRID, SYNTHETIC, geometric, invert, jigsaw, mean, noise, speckle, synthetic_sets
from farout.errors import ConfigError, DataError


def draws(seed=3):
    return torch.Generator().manual_seed(seed)


def images(count=6, channels=3, height=8, width=12):
    return torch.randint(256, (count, channels, height, width), generator=draws(0), dtype=torch.uint8)


def patches(image, rows=GRID, columns=GRID):
    """The patches of one image (C, H, W), row by row, each as a tuple of its bytes."""
    down, across = image.shape[1] // rows, image.shape[2] // columns
    corners = [(row * down, column * across) for row in range(rows) for column in range(columns)]
    return [tuple(image[:, y : y + down, x : x + across].flatten().tolist()) for y, x in corners]


def test_jigsaw_against_a_loop():
    x = images()
    made = jigsaw(x, draws())
    orders = torch.rand(6, 16, generator=draws()).argsort(dim=1).tolist()
    for before, after, order in zip(x, made, orders, strict=True):
        old = patches(before)
        assert patches(after) == [old[number] for number in order]
    assert len({tuple(order) for order in orders}) == 6


def test_jigsaw_leaves_what_is_over_in_place():
    x = images(height=11, width=14)
    made = jigsaw(x, draws())
    assert torch.equal(made[:, :, 8:], x[:, :, 8:])
    assert torch.equal(made[:, :, :, 12:], x[:, :, :, 12:])
    assert torch.equal(made[:, :, :8, :12], jigsaw(x[:, :, :8, :12], draws()))
    assert not torch.equal(made, x)


def test_jigsaw_of_too_small_images_is_refused():
    with pytest.raises(DataError, match="images of 3x8; leave out jigsaw"):
        jigsaw(images(height=3, width=8), draws())


@pytest.mark.parametrize("count", [2, 3, 40])
@pytest.mark.parametrize(
    ("mix", "formula"), [(mean, lambda a, b: (a + b) / 2), (geometric, lambda a, b: math.sqrt(a * b))]
)
def test_every_image_is_mixed_with_another(mix, formula, count):
    """Which other is found by trying all; each is taken once, and none by itself."""
    x = images(count, height=2, width=2)
    partners = []
    for number, mixed in enumerate(mix(x, draws()).flatten(1).tolist()):
        own = x[number].flatten().tolist()
        fits = [
            other
            for other, row in enumerate(x.flatten(1).tolist())
            if mixed == [round(formula(a, b)) for a, b in zip(own, row, strict=True)]
        ]
        assert len(fits) == 1
        assert fits != [number]
        partners += fits
    assert sorted(partners) == list(range(count))


def test_mixed_by_hand():
    x = torch.tensor([[0, 200, 100], [9, 255, 50]], dtype=torch.uint8).reshape(2, 3, 1, 1)
    assert mean(x, draws()).flatten(1).tolist() == [[4, 228, 75]] * 2  # 4.5 and 227.5 go to the even neighbour
    assert geometric(x, draws()).flatten(1).tolist() == [[0, 226, 71]] * 2  # sqrt 51,000 = 225.8, sqrt 5,000 = 70.7


def test_invert_changes_the_first_channel():
    x = torch.tensor([0, 1, 254], dtype=torch.uint8).reshape(1, 3, 1, 1)
    assert invert(x, draws()).flatten().tolist() == [255, 1, 254]
    assert invert(x[:, 1:2], draws()).flatten().tolist() == [254]


def test_speckle_against_a_loop():
    x = images(2)
    chances = torch.randn(x.shape, generator=draws()).flatten().tolist()
    expected = [min(max(v * (1 + 0.35 * n), 0), 255) for v, n in zip(x.flatten().tolist(), chances, strict=True)]
    made = speckle(x, draws()).flatten().tolist()
    assert max(abs(value - found) for value, found in zip(expected, made, strict=True)) <= 0.5001
    assert 255 in made
    assert speckle(torch.zeros_like(x), draws()).max() == 0


def test_noise_is_uniform_and_owes_nothing_to_the_images():
    x = images(20, height=32, width=32)
    made = noise(x, draws())
    assert torch.equal(made, noise(torch.zeros_like(x), draws()))
    counts = torch.bincount(made.flatten().long(), minlength=256)[1:-1]  # the two ends get half as much
    expected = made.numel() / 255
    assert ((counts - expected).abs() < 5 * expected**0.5).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", SYNTHETIC)
def test_shape_kind_and_repetition(name, channels):
    x = images(channels=channels)
    before = x.clone()
    made = SYNTHETIC[name](x, draws())
    assert (made.shape, made.dtype) == (x.shape, torch.uint8)
    assert torch.equal(made, SYNTHETIC[name](x, draws()))
    assert torch.equal(x, before)
    assert not torch.equal(made, x)
    assert torch.equal(made, SYNTHETIC[name](x, draws(4))) == (name == "invert")


def test_a_set_does_not_depend_on_what_else_is_asked_for():
    samples = ArraySet("mine", images())
    made = synthetic_sets(samples, seed=5)
    assert [made[f"synthetic {name}"].name for name in SYNTHETIC] == list(made)
    for name in SYNTHETIC:
        (alone,) = synthetic_sets(samples, [name], 5).values()
        assert torch.equal(alone.images, made[f"synthetic {name}"].images)
    assert not torch.equal(
        synthetic_sets(samples, ["noise"], 6)["synthetic noise"].images, made["synthetic noise"].images
    )
    assert made["synthetic mean"].labels is None


def test_errors():
    with pytest.raises(ConfigError, match="unknown synthetic set 'jigsow'; did you mean 'jigsaw'"):
        synthetic_sets(ArraySet("mine", images()), ["jigsow"])
    with pytest.raises(DataError, match=r"but features has samples \(4,\) of float32; validate embeddings on held-out"):
        synthetic_sets(ArraySet("features", torch.randn(5, 4)))
