"""KNN: the distance to the k-th nearest training feature."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from farout.components import choose
from farout.errors import ConfigError, DataError, MissingExtraError
from farout.nets.net import Net
from farout.scores.base import Embedded, Score
from farout.types import Outputs

QUERIES = {"cpu": 256, "cuda": 4096}
"""Queries that are compared with a piece of the bank at once: few stay in a CPU's cache, a GPU wants many."""


class KNN(Score):
    """s = −‖z − z_(k)‖₂, z = e(x)/‖e(x)‖₂, z_(k) the k-th nearest of all ID training features, normalised alike.

    Higher = more in-distribution; (B, D) -> (B,). A feature that is all zero stays zero, at distance 1 from every
    unit vector. k belongs to the size of the training set: 50 for CIFAR-10, 200 for CIFAR-100, 1000 for ImageNet.

    Neighbours are ranked by float32 inner products, so the one taken may be off by about 1e-6 in squared distance;
    its own distance is then computed directly and is 0 for a duplicate. With "torch" the bank goes by in pieces of
    `chunk` rows and the queries in blocks of 256, so 4·256·chunk bytes = 67 MB are held beside the features, however
    many there are (on a GPU blocks of 4096, 1.1 GB). "faiss" is as exhaustive and runs on the CPU.

    The released code keeps FAISS's squared distance, which ranks alike. pytorch-ood's KNN has k = 1 and does not
    normalise (normalise=False): that is another method.
    """

    needs_fit = True
    paper = "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022"
    bank: Tensor

    def __init__(self, k: int = 50, normalise: bool = True, chunk: int = 65536, backend: str = "torch") -> None:
        super().__init__()
        if k < 1 or chunk < 1:
            raise ConfigError(f"KNN takes k >= 1 and chunk >= 1, got {k} and {chunk}")
        choose("KNN backend", BACKENDS, backend)
        self.k, self.normalise, self.chunk, self.backend = k, normalise, chunk, backend
        if backend != "torch":
            self.why_not_exported = f"backend {backend!r} is no torch operation; use backend 'torch'"
        self.register_buffer("bank", torch.empty(0))

    @torch.no_grad()
    def fit(self, net: Net, train: Embedded) -> Self:
        features = train.outputs.features
        if self.k > len(features):
            raise DataError(f"KNN with k={self.k} needs as many training samples, got {len(features)}; set a smaller k")
        if self.backend == "faiss":
            _faiss()  # a missing package is better known now than at the first query
        self.bank = self._prepared(features)
        return self

    def forward(self, out: Outputs) -> Tensor:
        self.require_fit()
        z = self._prepared(out.features)
        nearest = BACKENDS[self.backend](self.bank, z.detach(), self.k, self.chunk)
        distance: Tensor = torch.linalg.vector_norm(z - self.bank[nearest], dim=1)
        return -distance

    def _prepared(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) if self.normalise else features


@torch.no_grad()
def kth_neighbour(bank: Tensor, queries: Tensor, k: int, chunk: int) -> Tensor:
    """The row of the k-th nearest neighbour of each query: (N, D), (B, D) -> int64 (B,).

    Nearest means largest q·b − ½‖b‖², which orders as −‖q − b‖² does. A piece's own k best are merged with the k
    best so far, so that no more than (QUERIES, chunk) products exist at once.
    """
    half = torch.linalg.vector_norm(bank, dim=1).square() / 2
    # An exported or compiled batch has no known size to cut into blocks.
    whole = torch.compiler.is_compiling()
    blocks = (queries,) if whole else queries.split(QUERIES.get(queries.device.type, 256))
    return torch.cat([_kth_of_block(bank, half, block, k, chunk) for block in blocks])


def _kth_of_block(bank: Tensor, half: Tensor, queries: Tensor, k: int, chunk: int) -> Tensor:
    closeness, rows = torch.addmm(-half[:chunk], queries, bank[:chunk].T).topk(min(k, len(bank), chunk), dim=1)
    for start in range(chunk, len(bank), chunk):
        piece = slice(start, start + chunk)
        near = torch.addmm(-half[piece], queries, bank[piece].T)
        value, index = near.topk(min(k, near.shape[1]), dim=1)
        closeness, rows = torch.cat((closeness, value), dim=1), torch.cat((rows, index + start), dim=1)
        closeness, best = closeness.topk(min(k, closeness.shape[1]), dim=1)
        rows = rows.gather(1, best)
    return rows[:, k - 1]


@torch.no_grad()
def kth_neighbour_faiss(bank: Tensor, queries: Tensor, k: int, chunk: int) -> Tensor:
    """`kth_neighbour` by FAISS, which picks its own piece size."""
    _, rows = _faiss().knn(queries.float().cpu().numpy(), bank.float().cpu().numpy(), k)
    return torch.from_numpy(rows[:, k - 1]).to(bank.device)


Search = Callable[[Tensor, Tensor, int, int], Tensor]
BACKENDS: Mapping[str, Search] = {"torch": kth_neighbour, "faiss": kth_neighbour_faiss}


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss", "KNN with backend 'faiss'") from None
    return faiss
