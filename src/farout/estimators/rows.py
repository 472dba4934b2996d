"""Rows of features, dense or sparse, seen through the two products that a linear probe needs."""

from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor


class Rows(Protocol):
    """A matrix (N, D) that is only ever multiplied."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Self:
        """The rows at `index` (B,)."""
        ...

    def times(self, weight: Tensor) -> Tensor:
        """x W: (N, D), (D, K) -> (N, K)."""
        ...

    def gradient(self, g: Tensor) -> Tensor:
        """xᵀ g, what the gradient g (N, K) of the logits means for W: (D, K)."""
        ...

    def dense(self) -> Tensor:
        """The matrix itself (N, D)."""
        ...


class DenseRows:
    """Rows of a float32 tensor."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> "DenseRows":
        return DenseRows(self.x.index_select(0, index))

    def times(self, weight: Tensor) -> Tensor:
        return self.x @ weight

    def gradient(self, g: Tensor) -> Tensor:
        return self.x.T @ g

    def dense(self) -> Tensor:
        return self.x


class SparseRows:
    """Rows of a scipy CSR matrix of float32: only the entries that are there are multiplied."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> "SparseRows":
        return SparseRows(self.x[index.numpy()])

    def times(self, weight: Tensor) -> Tensor:
        return torch.from_numpy(self.x @ weight.numpy())

    def gradient(self, g: Tensor) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.x.T @ g.numpy()))

    def dense(self) -> Tensor:
        return torch.from_numpy(self.x.toarray())
