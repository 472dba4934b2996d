"""Mahalanobis: the distance to the nearest class mean, in units of the spread that the classes share."""

from typing import Self

import torch
from torch import Tensor

from farout.errors import ConfigError, DataError
from farout.nets.net import Net
from farout.scores.base import Embedded, Score
from farout.scores.inputs import nudge
from farout.types import Outputs

ROWS = 8192  # training features taken to float64 at once


class Mahalanobis(Score):
    """s = −min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c), z = e(x), with class means μ_c and tied covariance Σ of ID training data.

    Σ = (1/n) Σ_c Σ_{i in c} (z_i − μ_c)(z_i − μ_c)ᵀ + ridge·(tr Σ/D)·I, factored once by Cholesky in float64: dead
    units make Σ singular without the ridge. Higher = more in-distribution; (B, D) -> (B,) in float64, with memory
    for (B, D) and (B, K) only. A class without training samples has no mean and is left out.

    epsilon > 0 first moves the input to x' = x + ε·sign(∇_x s(x)), in pixels of [0, 1] (the released code's ε/std on
    normalised images), at the price of a backward pass; the grid of the paper is .0005 .. .01.

    Penultimate features only. The paper combines all blocks by logistic regression and chooses it and ε with OOD
    test samples, which leaks; energy_ood's release likewise keeps one layer. The released −½ factor is dropped.
    """

    needs_fit = True
    paper = "Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples, NeurIPS 2018"
    centre: Tensor  # (D,) subtracted first, so that squares stay small
    whitening: Tensor  # (D, D) L⁻ᵀ, where Σ = L Lᵀ
    means: Tensor  # (K, D) class means, centred and whitened

    def __init__(self, ridge: float = 1e-6, epsilon: float = 0.0) -> None:
        super().__init__()
        if ridge < 0 or epsilon < 0:
            raise ConfigError(f"Mahalanobis takes ridge >= 0 and epsilon >= 0, got {ridge} and {epsilon}")
        self.ridge, self.epsilon = ridge, epsilon
        self.uses_input = epsilon > 0  # only the input step has to see the input
        if epsilon > 0:
            self.why_not_exported = "epsilon > 0 needs a gradient, and an exported graph has no backward pass"
        for name in ("centre", "whitening", "means"):
            self.register_buffer(name, torch.empty(0))

    @torch.no_grad()
    def fit(self, net: Net, train: Embedded) -> Self:
        features = train.outputs.features
        labels = train.labels.to(features.device)
        if bool((labels < 0).any()):
            unknown = int((labels < 0).sum())
            raise DataError(
                f"Mahalanobis is fitted class by class, and {unknown} of {len(labels)} samples have no label"
            )
        _, labels = labels.unique(return_inverse=True)
        means = class_means(features, labels)
        factor = _cholesky(tied_covariance(features, labels, means), self.ridge)
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        self.centre = means.mean(dim=0)
        self.whitening = torch.linalg.solve_triangular(factor, identity, upper=False).T.contiguous()
        self.means = (means - self.centre) @ self.whitening
        return self

    def outputs(self, net: Net, x: Tensor) -> Outputs:
        self.require_fit()
        moved = nudge(net, x, self.epsilon, self) if self.epsilon else x
        with torch.no_grad():
            return super().outputs(net, moved)

    def forward(self, out: Outputs) -> Tensor:
        self.require_fit()
        z = (out.features.double() - self.centre) @ self.whitening
        squares = z.square().sum(dim=1, keepdim=True) + self.means.square().sum(dim=1)
        return -(squares - 2 * z @ self.means.T).clamp(min=0).amin(dim=1)


def class_means(features: Tensor, labels: Tensor) -> Tensor:
    """The mean of each class, labels being 0 .. K − 1: (N, D), (N,) -> (K, D) in float64."""
    counts = labels.bincount()
    sums = torch.zeros(len(counts), features.shape[1], dtype=torch.float64, device=features.device)
    for z, y in zip(features.split(ROWS), labels.split(ROWS), strict=True):
        sums.index_add_(0, y, z.double())
    return sums / counts[:, None]


def tied_covariance(features: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """(1/n) Σ_i (z_i − μ_{y_i})(z_i − μ_{y_i})ᵀ, about the means and not as a difference of squares: (D, D)."""
    total = torch.zeros(means.shape[1], means.shape[1], dtype=means.dtype, device=means.device)
    for z, y in zip(features.split(ROWS), labels.split(ROWS), strict=True):
        apart = z.double() - means[y]
        total.addmm_(apart.T, apart)
    return total / len(features)


def _cholesky(covariance: Tensor, ridge: float) -> Tensor:
    """L with L Lᵀ = Σ + ridge·(tr Σ/D)·I, or an error that says what to do."""
    spread = covariance.trace() / len(covariance)
    if not spread > 0:
        raise DataError(
            f"the training features have no spread within their classes (mean variance {float(spread):g}); "
            "Mahalanobis needs several different samples a class"
        )
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance + ridge * spread * torch.eye(len(covariance)).to(covariance))
    if int(failed):
        raise ConfigError(f"the tied covariance is singular with ridge={ridge:g}; set a larger one, such as 1e-6")
    return factor
