"""Which of the detector's own examples an image lies nearest to, as the page shows them."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Self

import torch
from PIL import Image
from pydantic import BaseModel
from torch import Tensor

from farout import examples
from farout.detector import Detector
from farout.scores.embed import device_of


class NearExample(BaseModel):
    """An ID example that the detector carries, and how far the image's features lie from it: 0 to 2."""

    index: int
    label: str | None
    distance: float
    image: str
    """A thumbnail, as the data URI of a PNG."""


class Gallery:
    """A detector's examples, their thumbnails encoded once."""

    def __init__(self, detector: Detector, kept: examples.Examples) -> None:
        self.detector, self.kept = detector, kept
        self.pictures = [data_uri(image) for image in kept.images]
        names = detector.classes
        self.labels = [None if y < 0 else names[y] if names else str(y) for y in kept.labels.tolist()]

    @classmethod
    def open(cls, folder: str | Path, detector: Detector) -> Self | None:
        """The gallery of a detector's folder, if it carries examples."""
        kept = examples.load(folder, detector)
        return None if kept is None else cls(detector, kept)

    @torch.no_grad()
    def nearest(self, images: list[Tensor], count: int) -> list[list[NearExample]]:
        """For each image (C, S, S) the `count` nearest examples, nearest first."""
        x = self.detector.prepare(torch.stack(images).to(device_of(self.detector.net)))
        distances, indices = self.kept.nearest(self.detector.net(x).features, count)
        return [
            [self._example(i, d) for d, i in zip(apart, places, strict=True)]
            for apart, places in zip(distances.tolist(), indices.tolist(), strict=True)
        ]

    def _example(self, index: int, distance: float) -> NearExample:
        return NearExample(index=index, label=self.labels[index], distance=distance, image=self.pictures[index])


def data_uri(image: Tensor) -> str:
    """uint8 (1 or 3, H, W) as a PNG in a data URI."""
    pixels = image.permute(1, 2, 0).numpy()
    file = BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
