"""Outliers made of ID images, to validate on where no true ones may be looked at.

After those that Hendrycks, Mazeika and Dietterich tuned outlier exposure with (ICLR 2019). Each function takes images
(N, C, H, W) uint8 and a CPU generator and gives uint8 images of the same shape, a function of the two alone.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from farout import seeds
from farout.components import choose
from farout.data.arrays import ArraySet
from farout.data.source import ImageSet
from farout.errors import DataError

GRID = 4  # patches a side
SPECKLE = 0.35  # standard deviation of the noise, as a share of the pixel


def jigsaw(images: Tensor, generator: torch.Generator) -> Tensor:
    """The 4x4 patches of each image in a random order of its own.

    Where a side is no multiple of 4, the rows at the bottom and the columns on the right that are over stay in place.
    """
    count, channels, height, width = images.shape
    down, across = height // GRID, width // GRID
    if min(down, across) == 0:
        raise DataError(f"no 4x4 patches can be cut from images of {height}x{width}; leave out jigsaw")
    order = torch.rand(count, GRID * GRID, generator=generator).argsort(dim=1)
    cut = images[:, :, : GRID * down, : GRID * across].reshape(count, channels, GRID, down, GRID, across)
    patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (N, 16, C, down, across)
    patches = patches[torch.arange(count)[:, None], order]
    whole = patches.unflatten(1, (GRID, GRID)).permute(0, 3, 1, 4, 2, 5)
    made = images.clone()
    made[:, :, : GRID * down, : GRID * across] = whole.reshape(count, channels, GRID * down, GRID * across)
    return made


def mean(images: Tensor, generator: torch.Generator) -> Tensor:
    """(a + b) / 2 with another image b of the set."""
    return _bytes((images.float() + _others(images, generator)) / 2)


def geometric(images: Tensor, generator: torch.Generator) -> Tensor:
    """√(a·b) with another image b of the set."""
    return _bytes((images.float() * _others(images, generator)).sqrt())


def invert(images: Tensor, generator: torch.Generator) -> Tensor:
    """255 − x in the first channel; the others stay. Nothing is drawn."""
    return torch.cat([255 - images[:, :1], images[:, 1:]], dim=1)


def speckle(images: Tensor, generator: torch.Generator) -> Tensor:
    """x·(1 + 0.35·n), n standard normal for each value, clipped to [0, 255]."""
    return _bytes(images.float() * (1 + SPECKLE * torch.randn(images.shape, generator=generator)))


def noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Independent values, uniform in [0, 255]; of the images only the shape is used."""
    return _bytes(255 * torch.rand(images.shape, generator=generator))


SYNTHETIC: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "jigsaw": jigsaw,
    "mean": mean,
    "geometric": geometric,
    "invert": invert,
    "speckle": speckle,
    "noise": noise,
}


def synthetic_sets(samples: ImageSet, names: Iterable[str] = tuple(SYNTHETIC), seed: int = 0) -> dict[str, ArraySet]:
    """Sets like "synthetic jigsaw" made of `samples`, by their names, which hold all of them in memory.

    Each set has a stream of its own: what else is asked for does not change it.
    """
    makers = {name: choose("synthetic set", SYNTHETIC, name) for name in names}
    check_images(samples)
    images, _ = samples.read(torch.arange(len(samples)))
    made = {name: make(images, seeds.generator(seed, zlib.crc32(name.encode()))) for name, make in makers.items()}
    return {f"synthetic {name}": ArraySet(f"synthetic {name}", made[name]) for name in made}


def check_images(samples: ImageSet) -> None:
    """A DataError unless `samples` are images; the first one is read."""
    first, _ = samples.read(torch.arange(min(1, len(samples))))
    if first.dtype != torch.uint8 or first.ndim != 4:
        raise DataError(
            f"synthetic outliers are made of uint8 images (C, H, W), but {samples.name} has samples "
            f"{tuple(first.shape[1:])} of {str(first.dtype).removeprefix('torch.')}; "
            "validate embeddings on held-out outliers: data.validation=[outliers]"
        )


def _others(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image's partner, by a random permutation that is one cycle: none is its own, where there are two."""
    order = torch.randperm(len(images), generator=generator)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    return images[partner]


def _bytes(values: Tensor) -> Tensor:
    """The nearest of 0 .. 255; torch's cast alone would cut off and wrap round."""
    return values.round().clamp(0, 255).to(torch.uint8)
