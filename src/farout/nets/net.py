"""The shape every network has here: f = h∘e, an embedding e (the body) and a head h.

Pixels go in raw: `Normalise` is part of the network, so that training, detectors, exports and pixel-space
attacks all see one and the same input, uint8 or float in [0, 1].
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farout.types import Outputs


def pixels(x: Tensor) -> Tensor:
    """Bytes as floats in [0, 1]; floats as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


class Normalise(nn.Module):
    """Raw pixels to network input: (x / 255 if uint8 else x) − mean, over std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (pixels(x) - self.mean) / self.std


class Net(nn.Module):
    """f = h∘e with its normaliser: images (B, C, H, W) -> features (B, D) and logits (B, K).

    `precision` "bf16" runs the body under autocast; features, head, search and losses stay in float32.
    `spec` is the recipe entry the net was built from, None for a user's own model.
    """

    def __init__(self, body: nn.Module, head: nn.Module, normalise: nn.Module | None = None) -> None:
        super().__init__()
        self.normalise = normalise if normalise is not None else nn.Identity()
        self.body = body
        self.head = head
        self.precision = "float32"
        self.spec: dict[str, Any] | None = None

    def embed(self, x: Tensor) -> Tensor:
        """e(x): (B, C, H, W) -> (B, D)."""
        features: Tensor
        if self.precision == "bf16":
            with torch.autocast(x.device.type, torch.bfloat16):
                features = self.body(self.normalise(x))
            return features.float()
        features = self.body(self.normalise(x))
        return features

    def forward(self, x: Tensor) -> Outputs:
        features = self.embed(x)
        return Outputs(features, self.head(features))

    @property
    def num_features(self) -> int:
        """D, the width of the embedding."""
        return int(self.head.in_features)  # type: ignore[arg-type]

    @property
    def num_outputs(self) -> int:
        """How many logits the head gives: K, or K + 1 with an outlier class."""
        return int(self.head.out_features)  # type: ignore[arg-type]
