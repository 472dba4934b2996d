"""Data for the demonstration, made from what the installed packages carry: no download, the same on every machine.

ID is scikit-learn's handwritten digits 0-5 (8x8, counts of ink in 4x4 blocks of a 32x32 scan). Auxiliary outliers
are printed letters, inked and counted the same way, and patches of china.jpg. Never seen in training: the digits
6-9 (near), and patches of flower.jpg, noise and gratings (far).
"""

import string
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farout import seeds
from farout.data.arrays import ArraySet

KNOWN = 6
SIDE = 8


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    ink = torch.from_numpy(digits.images) * (255 / 16)
    return ink.round().to(torch.uint8).unsqueeze(1), torch.from_numpy(digits.target).long()


def digits(split: str) -> ArraySet:
    """Digits 0-5; one in five, chosen once and for all, is the test split."""
    images, labels = _digits()
    images, labels = images[labels < KNOWN], labels[labels < KNOWN]
    order = torch.randperm(len(labels), generator=seeds.generator(2023))
    cut = len(labels) // 5
    rows = order[:cut] if split == "test" else order[cut:]
    return ArraySet("demo/digits", images[rows], labels[rows], tuple(map(str, range(KNOWN))))


def unseen_digits(split: str) -> ArraySet:
    """Digits 6-9: new classes by the same writers."""
    images, labels = _digits()
    return ArraySet("demo/unseen-digits", images[labels >= KNOWN])


def _letter(letter: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One letter at a random size, slant and place, inked on 32x32 and counted in 4x4 blocks as the digits were."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=float(rng.uniform(22, 32)))
    page = Image.new("L", (64, 64))
    ImageDraw.Draw(page).text((32, 32), letter, fill=255, font=font, anchor="mm", stroke_width=int(rng.integers(0, 2)))
    page = page.rotate(float(rng.uniform(-15, 15)), resample=Image.Resampling.BILINEAR)
    left, top = (16 + rng.integers(-2, 3, size=2)).tolist()
    ink = np.asarray(page.crop((left, top, left + 32, top + 32))) > 127
    counts = ink.reshape(SIDE, 4, SIDE, 4).sum(axis=(1, 3))
    inked: NDArray[np.uint8] = np.round(counts * (255 / 16)).astype(np.uint8)
    return inked


def _patches(photo: str, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Square cut-outs of 8 to 64 pixels from one of scikit-learn's two photographs, in grey, shrunk to 8x8."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    picture = Image.fromarray(load_sample_image(photo)).convert("L")
    patches = []
    for side in rng.integers(SIDE, 65, size=count).tolist():
        left = int(rng.integers(0, picture.width - side))
        top = int(rng.integers(0, picture.height - side))
        patch = picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BOX)
        patches.append(np.asarray(patch))
    return np.stack(patches)


def _grey(name: str, images: NDArray[np.uint8]) -> ArraySet:
    return ArraySet(name, torch.from_numpy(images).unsqueeze(1))


@cache
def outliers(split: str) -> ArraySet:
    """1,040 printed letters and 1,040 patches of china.jpg."""
    rng = np.random.default_rng(26)
    letters = np.stack([_letter(letter, rng) for letter in string.ascii_uppercase * 40])
    return _grey("demo/outliers", np.concatenate([letters, _patches("china.jpg", len(letters), rng)]))


@cache
def flower(split: str) -> ArraySet:
    """700 patches of flower.jpg."""
    return _grey("demo/flower", _patches("flower.jpg", 700, np.random.default_rng(27)))


def noise(split: str) -> ArraySet:
    """700 images of independent pixels, uniform in [0, 255]."""
    return _grey("demo/noise", np.random.default_rng(28).integers(0, 256, (700, SIDE, SIDE), dtype=np.uint8))


def gratings(split: str) -> ArraySet:
    """700 sinusoids of random direction, frequency, phase and contrast."""
    rng = np.random.default_rng(29)
    row, column = np.mgrid[:SIDE, :SIDE] / SIDE
    angle, cycles, phase, contrast = (
        rng.uniform(low, high, (700, 1, 1)) for low, high in ((0, np.pi), (0.5, 3), (0, 2 * np.pi), (0.3, 1))
    )
    wave = np.sin(2 * np.pi * cycles * (np.cos(angle) * column + np.sin(angle) * row) + phase)
    return _grey("demo/gratings", np.round(127.5 * (1 + contrast * wave)).astype(np.uint8))


DEMO_SETS: Mapping[str, Callable[[str], ArraySet]] = {
    "demo/digits": digits,
    "demo/outliers": outliers,
    "demo/unseen-digits": unseen_digits,
    "demo/flower": flower,
    "demo/noise": noise,
    "demo/gratings": gratings,
}
