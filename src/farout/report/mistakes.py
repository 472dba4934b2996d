"""The mistakes, to look at: OOD images that are trusted most and ID images that are doubted most."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
SIDE = 96
"""Thumbnails are at most this wide; smaller images keep their pixels and are magnified by the page."""


@dataclass(frozen=True)
class Mistake:
    """One image and what the detector made of it; `picture` is a PNG, or None where samples are no images."""

    set: str
    number: int
    score: float
    accepted: bool
    label: str
    predicted: str
    nearest: str
    picture: bytes | None

    @property
    def source(self) -> str:
        """The picture as the address of an <img>."""
        return "data:image/png;base64," + base64.b64encode(self.picture or b"").decode()


@dataclass(frozen=True)
class Gallery:
    """Mistakes of one kind by one method; `why_missing` where there are none to show."""

    title: str
    mistakes: Sequence[Mistake] = ()
    why_missing: str = ""


def highest(scores: Sequence[Array], count: int) -> list[tuple[int, int]]:
    """The `count` highest scores over several sets, the highest first: (which set, which sample)."""
    merged = [
        (-float(value), which, place) for which, values in enumerate(scores) for place, value in _top(values, count)
    ]
    return [(which, place) for _, which, place in sorted(merged)[:count]]


def _top(values: Array, count: int) -> list[tuple[int, float]]:
    places = np.argsort(-values, kind="stable")[:count]
    return [(int(place), float(values[place])) for place in places]


def class_means(features: Tensor, labels: Tensor, count: int) -> Tensor:
    """The mean feature of each class (K, D); not a number for a class without samples."""
    means = torch.full((count, features.shape[1]), torch.nan, dtype=features.dtype)
    for label in labels.unique().tolist():
        if 0 <= label < count:
            means[label] = features[labels == label].mean(dim=0)
    return means


def nearest_class(features: Tensor, means: Tensor) -> Tensor:
    """The class whose mean is nearest in the embedding: (B, D), (K, D) -> (B,)."""
    return torch.cdist(features, means).nan_to_num(torch.inf).argmin(dim=1)


def png(image: Tensor) -> bytes | None:
    """A thumbnail of a uint8 image (C, H, W); None for what is no image."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] not in (1, 3):
        return None
    from PIL import Image

    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()
