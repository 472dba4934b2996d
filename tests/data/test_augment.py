"""The one-gather crop and flip against pixel-by-pixel loops."""

import pytest
import torch

from farout import seeds
from farout.data.augment import CropFlip, NoAugment


def by_loop(image: torch.Tensor, dy: int, dx: int, flipped: bool, padding: int) -> torch.Tensor:
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    crop = padded[:, dy : dy + height, dx : dx + width]
    return crop.flip(-1) if flipped else crop


def test_crop_flip_is_the_loop():
    x = torch.randint(256, (9, 3, 6, 5), dtype=torch.uint8)
    augment = CropFlip(padding=2)
    chances = augment.draw(3, 9, seeds.generator(1))[1]
    for image, out, (dy, dx, flip) in zip(x, augment(x, chances), chances.tolist(), strict=True):
        assert torch.equal(out, by_loop(image, dy, dx, flip == 1, 2))


def test_chances_cover_their_range():
    chances = CropFlip(padding=2, flip=0.3).draw(20, 50, seeds.generator(0))
    assert chances[..., :2].unique().tolist() == [0, 1, 2, 3, 4]
    assert chances[..., 2].float().mean().item() == pytest.approx(0.3, abs=0.05)


def test_no_padding_and_no_flip_is_the_identity():
    x = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    for augment, wanted in ((CropFlip(0, 0.0), x), (CropFlip(0, 1.0), x.flip(-1)), (NoAugment(), x)):
        assert torch.equal(augment(x, augment.draw(1, 4, seeds.generator(0))[0]), wanted)
