"""The one-gather crop and flip against pixel-by-pixel loops."""

import torch

from farout import seeds
from farout.data.augment import CropFlip, NoAugment

ALL = slice(None)


def by_loop(image: torch.Tensor, dy: int, dx: int, flipped: bool, padding: int) -> torch.Tensor:
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    crop = padded[:, dy : dy + height, dx : dx + width]
    return crop.flip(-1) if flipped else crop


def test_crop_flip_is_the_loop():
    x = torch.randint(256, (9, 3, 6, 5), dtype=torch.uint8)
    got = CropFlip(padding=2)(x, seeds.generator(1), len(x), ALL)
    draws = seeds.generator(1)
    shift = torch.randint(5, (9, 2), generator=draws)
    flipped = torch.rand(9, generator=draws) < 0.5
    for image, out, (dy, dx), flip in zip(x, got, shift.tolist(), flipped.tolist(), strict=True):
        assert torch.equal(out, by_loop(image, dy, dx, flip, 2))
    assert flipped.any()
    assert not flipped.all()


def test_no_padding_and_no_flip_is_the_identity():
    x = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(CropFlip(padding=0, flip=0.0)(x, seeds.generator(0), 4, ALL), x)
    assert torch.equal(CropFlip(padding=0, flip=1.0)(x, seeds.generator(0), 4, ALL), x.flip(-1))
    assert torch.equal(NoAugment()(x, seeds.generator(0), 4, ALL), x)
