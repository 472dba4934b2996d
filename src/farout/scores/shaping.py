"""Scores of reshaped features: shaped after pooling, through the head again, then read by a base score."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from farout.components import choose, make
from farout.errors import ConfigError
from farout.nets.net import Net
from farout.scores.base import Embedded, Score
from farout.types import Outputs

Base = Score | Mapping[str, Any] | str | None


class Shaped(Score):
    """s(x) = base(h(shape(e(x)))): what ReAct and ASH share.

    `base` is a score, its name, its recipe entry {name, **arguments}, or None for the energy. A base that needs
    fitting is fitted on shaped training features. ID accuracy is not theirs to change: it is the plain network's.
    """

    def __init__(self, base: Base = "energy") -> None:
        super().__init__()
        self.base = as_score(base)
        if self.base.uses_input:
            name = type(self.base).__name__
            raise ConfigError(
                f"{type(self).__name__} cannot stand on {name}, which reads the input and not the features; "
                "use a base such as energy or msp"
            )
        self.needs_fit = type(self).needs_fit or self.base.needs_fit  # ASH's depends on the base
        self.why_not_exported = self.base.why_not_exported

    def shape(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        raise TypeError(f"{type(self).__name__} does not define shape")

    @torch.no_grad()
    def fit(self, net: Net, train: Embedded) -> Self:
        if self.base.needs_fit:
            self.base.fit(net, train._replace(outputs=self._through_head(net, train.outputs)))
        return self

    def adjust(self, net: Net, out: Outputs) -> Outputs:
        self.require_fit()
        return self.base.adjust(net, self._through_head(net, out))

    def forward(self, out: Outputs) -> Tensor:
        self.require_fit()
        score: Tensor = self.base(out)
        return score

    def _through_head(self, net: Net, out: Outputs) -> Outputs:
        shaped = self.shape(out.features)
        return Outputs(shaped, net.head(shaped))


class ReAct(Shaped):
    """s = base(W min(e(x), c) + b), c the given percentile of the ID training activations, all units pooled.

    Higher = more in-distribution; (B, D) -> (B,). With the default base it is LSE(W min(e(x), c) + b).

    The released code and OpenOOD take c from ID validation or test images; here it comes from training features,
    so nothing of the test leaks in. OpenOOD sweeps the percentile over 85, 90, 95, 99. Clipped after pooling.
    Sparse features want a higher one: where most activations are 0, c may be 0, and then nothing is left to score.
    """

    needs_fit = True
    paper = "Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021"
    clip: Tensor

    def __init__(self, base: Base = "energy", percentile: float = 90.0) -> None:
        super().__init__(base)
        self.percentile = _percentile("ReAct", percentile)
        self.register_buffer("clip", torch.empty(0))

    def shape(self, features: Tensor) -> Tensor:
        return torch.minimum(features, self.clip)

    @torch.no_grad()
    def fit(self, net: Net, train: Embedded) -> Self:
        features = train.outputs.features
        # numpy, because torch.quantile refuses more than 2^24 values and 50,000 x 512 is more.
        self.clip = features.new_tensor(float(np.percentile(features.cpu().numpy(), self.percentile)))
        return super().fit(net, train)


class ASH(Shaped):
    """s = base(h(ASH(e(x)))): of each sample's n features only the k = n − round(n·p/100) largest are kept.

    With s1 = Σ of all and s2 = Σ of the kept, a kept activation a becomes
    "p" (prune) a,   "b" (binarise) s1/k,   "s" (scale) a·exp(s1/s2);   every other becomes 0.

    Higher = more in-distribution; (B, D) -> (B,). Made for activations >= 0, where s1/s2 <= n/k; k is at least 1,
    ties go to the lower unit, and a sample whose features are all zero stays zero.

    Default "s" at p = 90, the released setting for ImageNet's ResNet-50: it keeps 205 of 2048 units there and 13 of
    WRN-40-2's 128. The released CIFAR configs say p = 95 (DenseNet-100), which would keep 6 of 128; tune p in
    65 .. 95 on validation data. Shaping is per sample and after pooling, as released; pytorch-ood's example shapes
    the map before pooling and gives p as a fraction, and OpenOOD has only "b".
    """

    paper = "Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, ICLR 2023"

    def __init__(self, variant: str = "s", percentile: float = 90.0, base: Base = "energy") -> None:
        super().__init__(base)
        choose("ASH variant", VARIANTS, variant)
        self.variant, self.percentile = variant, _percentile("ASH", percentile)

    def shape(self, features: Tensor) -> Tensor:
        return VARIANTS[self.variant](features, largest(features, kept_count(features.shape[1], self.percentile)))


def as_score(base: Base) -> Score:
    """The score that `base` is or describes."""
    from farout.scores import SCORES  # not above: the table imports this file

    if isinstance(base, Score):
        return base
    if base is None or isinstance(base, str):
        base = {"name": "energy" if base is None else base}
    return make("score", SCORES, base)


def kept_count(n: int, percentile: float) -> int:
    """k = n − round(n·p/100), at least 1.

    >>> kept_count(128, 95), kept_count(128, 90), kept_count(2048, 90)
    (6, 13, 205)
    """
    return max(1, n - round(n * percentile / 100))


def largest(a: Tensor, k: int) -> Tensor:
    """Which entries are among the k largest of their row: (B, n) -> bool (B, n), exactly k true a row.

    A stable sort and not topk, whose choice among equals differs between devices; "b" gives tied zeros weight.
    """
    top = a.argsort(dim=1, descending=True, stable=True)[:, :k]
    return torch.zeros_like(a, dtype=torch.bool).scatter(1, top, True)


def prune(a: Tensor, kept: Tensor) -> Tensor:
    """ASH-P: kept as they are, others 0. (B, n) -> (B, n)."""
    return a.where(kept, torch.zeros_like(a))


def binarise(a: Tensor, kept: Tensor) -> Tensor:
    """ASH-B: kept to s1/k, so that the row's sum stays s1; others 0. (B, n) -> (B, n)."""
    return a.sum(dim=1, keepdim=True) / kept.sum(dim=1, keepdim=True) * kept


def scale(a: Tensor, kept: Tensor) -> Tensor:
    """ASH-S: kept times exp(s1/s2), others 0. (B, n) -> (B, n).

    The exponent is held below half of what the type can carry (44 in float32), or the head would give inf − inf;
    with a >= 0 this can bind only where k < n/44.
    """
    pruned = prune(a, kept)
    s1, s2 = a.sum(dim=1, keepdim=True), pruned.sum(dim=1, keepdim=True)
    ratio = s1 / s2.where(s2 != 0, torch.ones_like(s2))
    limit = math.log(torch.finfo(a.dtype).max) / 2
    return pruned * ratio.clamp(-limit, limit).exp()


VARIANTS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"p": prune, "b": binarise, "s": scale}


def _percentile(owner: str, value: float) -> float:
    if not 0 <= value <= 100:
        raise ConfigError(f"{owner} takes a percentile between 0 and 100, got {value}")
    return value
