"""The words that every layer shares, and the letters for shapes.

B  in-distribution (ID) samples in a batch        D  features of the embedding e(x)
M  auxiliary outliers in a batch                  K  classes the head tells apart
"""

from typing import Any, NamedTuple

from torch import Tensor


class Outputs(NamedTuple):
    """What a network says of a batch: `features` (B, D) before the head, `logits` (B, K) after it."""

    features: Tensor
    logits: Tensor


class Batch(NamedTuple):
    """One training batch: ID images `x` (B, C, H, W), labels `y` (B,), outliers `x_out` (M, C, H, W) or None."""

    x: Tensor
    y: Tensor
    x_out: Tensor | None = None


Terms = dict[str, Tensor]
"""Named scalar loss terms; the training loss is their sum."""

Row = dict[str, Any]
"""One line of a JSONL file: a training step, an evaluation result, a tuning trial."""
