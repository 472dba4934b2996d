"""Crop, flip and colours against pixel-by-pixel loops."""

import math

import pytest
import torch

from farout import seeds
from farout.data.augment import CropFlip, NoAugment, Wide
from farout.errors import DataError


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


def developed(image: torch.Tensor, t: float, log_gain: list[float], offset: list[float]) -> torch.Tensor:
    """x' = g·(x + t·(x − blur x)) + o, pixel by pixel, edges repeated."""
    channels, height, width = image.shape
    out = torch.empty(image.shape, dtype=torch.float64)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                around = [
                    int(image[c, min(max(i + a, 0), height - 1), min(max(j + b, 0), width - 1)])
                    for a in (-1, 0, 1)
                    for b in (-1, 0, 1)
                ]
                x, blurred = int(image[c, i, j]) / 255, sum(around) / 9 / 255
                out[c, i, j] = math.exp(log_gain[c]) * (x + t * (x - blurred)) + offset[c]
    return out.clamp(0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_wide_is_the_loop(channels):
    x = torch.randint(256, (12, channels, 5, 4), dtype=torch.uint8)
    augment = Wide(padding=1, share=0.5)
    chances = augment.draw(2, 12, seeds.generator(3))[1]
    out, plain = augment(x, chances), CropFlip(1)(x, chances[:, :3].long())
    assert out.dtype == torch.uint8
    assert 0 < chances[:, 3].sum() < 12
    for image, before, numbers in zip(out, plain, chances.tolist(), strict=True):
        if numbers[3] == 0:
            assert torch.equal(image, before)
        else:
            want = developed(before, numbers[4], numbers[5:8], numbers[8:11])
            assert (image.double() - 255 * want).abs().max() <= 0.501


def test_wide_places_images_as_crop_flip_does():
    wide, plain = Wide(padding=2), CropFlip(padding=2)
    assert torch.equal(wide.draw(3, 9, seeds.generator(1))[..., :3].long(), plain.draw(3, 9, seeds.generator(1)))


def test_wide_draws_what_it_says():
    chances = Wide(share=0.3, gain=0.2, offset=0.05, sharpness=0.5).draw(40, 250, seeds.generator(0))
    assert chances[..., 3].mean().item() == pytest.approx(0.3, abs=0.02)
    assert chances[..., 4].abs().max().item() == pytest.approx(0.5, abs=0.01)
    assert chances[..., 5:8].std().item() == pytest.approx(0.2, rel=0.05)
    assert chances[..., 8:].std().item() == pytest.approx(0.05, rel=0.05)


def test_wide_keeps_floats_in_their_range():
    x = torch.rand(6, 3, 4, 4)
    augment = Wide(share=1.0, gain=1.0)
    out = augment(x, augment.draw(1, 6, seeds.generator(0))[0])
    assert out.dtype == x.dtype
    assert out.min() >= 0
    assert out.max() <= 1


def test_wide_needs_colours():
    augment = Wide()
    with pytest.raises(DataError, match=r"1 or 3 channels, got images \(2, 4, 8, 8\)"):
        augment(torch.zeros(2, 4, 8, 8, dtype=torch.uint8), augment.draw(1, 2, seeds.generator(0))[0])
