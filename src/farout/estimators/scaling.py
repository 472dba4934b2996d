"""Features brought to one scale before training, and the probe's weights brought back to the user's."""

from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from farout.estimators.probe import Probe
from farout.estimators.rows import DenseRows, Rows, SparseRows

Vector = npt.NDArray[np.float64]


class Scaling(NamedTuple):
    """x ↦ (x − shift)/scale, feature by feature; both (D,)."""

    shift: Vector
    scale: Vector

    @classmethod
    def of(cls, x: Any, standardise: bool) -> Self:
        """Dense: mean 0 and variance 1 for each feature. Sparse: one scale for all and no shift, so that absent words
        stay absent and rare ones are not blown up; the mean squared length of a row becomes 1."""
        features = x.shape[1]
        if not standardise:
            return cls(np.zeros(features), np.ones(features))
        if sparse.issparse(x):
            length = float(np.sqrt((x.data.astype(np.float64) ** 2).sum() / x.shape[0]))
            return cls(np.zeros(features), np.full(features, length or 1.0))
        mean, std = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
        # What rounding leaves of a constant; sentence embeddings have dead units of 1e-33 beside those of 1e-2.
        constant = (std <= 1e-7 * np.abs(mean)) | (std <= 1e-12 * std.max())
        return cls(mean, np.where(constant, 1.0, std))

    def apply(self, x: Any) -> Rows:
        """The user's matrix, scaled, in float32; sparse rows that must be shifted become dense."""
        if sparse.issparse(x) and (self.shift.any() or np.ptp(self.scale) > 0):
            x = x.toarray()
        if sparse.issparse(x):
            return SparseRows(sparse.csr_matrix((x / self.scale[0]).astype(np.float32)))
        scaled = x - self.shift.astype(x.dtype)
        scaled /= self.scale.astype(x.dtype)
        return DenseRows(torch.from_numpy(np.ascontiguousarray(scaled, dtype=np.float32)))

    def unscaled(self, probe: Probe) -> tuple[Vector, Vector]:
        """Coefficients (K, D) and intercepts (K,) that act on the user's features as the probe does on scaled ones.

        Centred over the classes: no softmax sees it, but energy and max-logit do, and Adam leaves the mean anywhere.
        """
        weight = probe.weight.numpy().astype(np.float64) / self.scale[:, None]
        bias = probe.bias.numpy().astype(np.float64) - self.shift @ weight
        return np.ascontiguousarray((weight - weight.mean(axis=1, keepdims=True)).T), bias - bias.mean()
