"""scores/knn.py against scikit-learn's neighbours, and what the search keeps in memory."""

import sys

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from farout.data.arrays import ArraySet
from farout.errors import ConfigError, DataError, MissingExtraError, NotFittedError
from farout.nets.net import Net
from farout.scores import Embedded, knn
from farout.scores.knn import KNN, kth_neighbour, kth_neighbour_faiss
from farout.types import Outputs

NET = Net(nn.Identity(), nn.Linear(6, 3))


def embedded(features: torch.Tensor) -> Embedded:
    labels = torch.zeros(len(features), dtype=torch.long)
    return Embedded(Outputs(features, torch.zeros(len(features), 3)), labels, ArraySet("train", features))


def scored(score: KNN, features: torch.Tensor) -> torch.Tensor:
    return score(Outputs(features, torch.zeros(len(features), 3)))


def sample(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed)) + 0.5


def by_sklearn(train: torch.Tensor, test: torch.Tensor, k: int, normalise: bool) -> np.ndarray:
    z, q = train.double().numpy(), test.double().numpy()
    if normalise:
        z, q = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (z, q))
    distances, _ = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(z).kneighbors(q)
    return -distances[:, -1]


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("k", [1, 7, 100])
def test_equals_scikit_learn(k, normalise):
    train, test = sample(100, 0), sample(40, 1)
    score = KNN(k, normalise).fit(NET, embedded(train))
    assert np.allclose(scored(score, test), by_sklearn(train, test, k, normalise), atol=1e-6)


def test_by_hand_and_not_squared():
    score = KNN(2).fit(NET, embedded(torch.tensor([[1.0, 0], [0, 5], [-3, 0]])))
    assert torch.allclose(scored(score, torch.tensor([[9.0, 0]])), torch.tensor([-(2**0.5)]))


def test_the_squared_distance_ranks_alike():
    train, test = sample(100, 0), sample(40, 1)
    scores = scored(KNN(5).fit(NET, embedded(train)), test)
    assert torch.equal(scores.argsort(), (-scores.square()).argsort())


@pytest.mark.parametrize("chunk", [1, 3, 32, 99, 100, 4096])
def test_the_size_of_the_pieces_changes_nothing(chunk):
    train, test = sample(100, 0), sample(40, 1)
    bank, queries = (nn.functional.normalize(z, dim=1) for z in (train, test))
    assert torch.equal(kth_neighbour(bank, queries, 7, chunk), kth_neighbour(bank, queries, 7, 1000))


def test_k_and_normalise_change_the_score():
    train, test = sample(100, 0), sample(40, 1)
    plain = scored(KNN(5).fit(NET, embedded(train)), test)
    assert (scored(KNN(6).fit(NET, embedded(train)), test) <= plain).all()
    assert not torch.allclose(scored(KNN(6).fit(NET, embedded(train)), test), plain)
    assert not torch.allclose(scored(KNN(5, normalise=False).fit(NET, embedded(train)), test), plain)


def test_a_duplicate_is_at_distance_zero_and_a_near_one_is_not():
    train = sample(100, 0)
    score = KNN(1).fit(NET, embedded(train))
    assert (scored(score, train) == 0).all()
    near = nn.functional.normalize(train[:1], dim=1)
    shifted = near + 1e-5 * torch.eye(6)[:1]
    expected = by_sklearn(train, shifted, 1, True)
    assert np.allclose(scored(score, shifted), expected, rtol=0.05)


def test_features_that_are_all_zero_are_at_distance_one():
    zero = torch.zeros(1, 6)
    assert scored(KNN(3).fit(NET, embedded(sample(10, 0))), zero).item() == pytest.approx(-1)
    bank = torch.cat((zero, -torch.ones(1, 6)))  # the zero row is nearer to 1 than -1 is
    assert torch.allclose(scored(KNN(1).fit(NET, embedded(bank)), torch.ones(1, 6)), torch.tensor([-1.0]))


def test_slips_are_named():
    with pytest.raises(DataError, match=r"k=11 needs as many training samples, got 10; set a smaller k"):
        KNN(11).fit(NET, embedded(sample(10, 0)))
    with pytest.raises(ConfigError, match="k >= 1"):
        KNN(0)
    with pytest.raises(ConfigError, match="unknown KNN backend 'fais'; did you mean 'faiss'"):
        KNN(backend="fais")
    with pytest.raises(NotFittedError, match="KNN was not fitted"):
        scored(KNN(), sample(2, 0))


class LargestTensor(TorchDispatchMode):
    """The most elements that one operation returned."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor))])
        return out


def test_no_tensor_is_larger_than_a_block_of_queries_times_a_piece_of_the_bank(monkeypatch):
    monkeypatch.setitem(knn.QUERIES, "cpu", 50)
    score, test = KNN(5, chunk=64).fit(NET, embedded(sample(1000, 0))), sample(500, 1)
    with LargestTensor() as largest:
        scored(score, test)
    assert largest.size == 50 * 64


def test_the_default_pieces_stay_under_300_mb_whatever_the_number_of_queries():
    k = 1000  # ImageNet's: the products, then the k best so far beside those of a piece, values and rows
    assert knn.QUERIES["cpu"] * (4 * KNN().chunk + 3 * 2 * k * (4 + 8)) < 300e6


def test_blocks_of_queries_change_nothing(monkeypatch):
    score, test = KNN(5).fit(NET, embedded(sample(100, 0))), sample(40, 1)
    whole = scored(score, test)
    monkeypatch.setitem(knn.QUERIES, "cpu", 7)
    assert torch.allclose(scored(score, test), whole, rtol=1e-6)
    assert scored(score, test[:0]).shape == (0,)


def test_faiss_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"needs faiss, which is not installed: pip install 'farout\[faiss\]'"):
        KNN(5, backend="faiss").fit(NET, embedded(sample(10, 0)))
    KNN(5).fit(NET, embedded(sample(10, 0)))


def test_faiss_finds_the_same_neighbours():
    pytest.importorskip("faiss")
    train, test = sample(500, 0), sample(40, 1)
    bank, queries = (nn.functional.normalize(z, dim=1) for z in (train, test))
    assert torch.equal(kth_neighbour_faiss(bank, queries, 7, 64), kth_neighbour(bank, queries, 7, 64))
    by_faiss = scored(KNN(7, backend="faiss").fit(NET, embedded(train)), test)
    assert torch.equal(by_faiss, scored(KNN(7).fit(NET, embedded(train)), test))
