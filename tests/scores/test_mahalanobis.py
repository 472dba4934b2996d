"""scores/mahalanobis.py against scikit-learn's covariance and a loop."""

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from torch import nn

from farout.data.arrays import ArraySet
from farout.errors import ConfigError, DataError, NotFittedError
from farout.nets.net import Net, Normalise
from farout.scores import Embedded, mahalanobis
from farout.scores.mahalanobis import Mahalanobis
from farout.types import Outputs

NET = Net(nn.Identity(), nn.Linear(5, 3))


def embedded(features: torch.Tensor, labels: torch.Tensor) -> Embedded:
    return Embedded(Outputs(features, torch.zeros(len(features), 3)), labels, ArraySet("train", features.float()))


def sample(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    mix = torch.randn(5, 5, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return torch.randn(rows, 5, generator=generator, dtype=torch.float64) @ mix + 3.0 * labels[:, None], labels


def scored(score: Mahalanobis, features: torch.Tensor) -> torch.Tensor:
    return score(Outputs(features, torch.zeros(len(features), 3)))


def witness(features: torch.Tensor, labels: torch.Tensor, test: torch.Tensor) -> np.ndarray:
    """scikit-learn's covariance of the centred classes; the distance to each mean in turn."""
    z, y = features.numpy(), labels.numpy()
    means = np.stack([z[y == c].mean(axis=0) for c in np.unique(y)])
    shared = EmpiricalCovariance(assume_centered=True).fit(
        np.concatenate([z[y == c] - z[y == c].mean(0) for c in set(y)])
    )
    return -np.stack([shared.mahalanobis(test.numpy() - mean) for mean in means]).min(axis=0)


def test_equals_scikit_learn():
    features, labels = sample(90, 0)
    test, _ = sample(30, 1)
    score = Mahalanobis(ridge=0).fit(NET, embedded(features, labels))
    assert np.allclose(scored(score, test), witness(features, labels, test), rtol=1e-9)


def test_by_hand():
    features = torch.tensor([[0.0, -1], [0, 1], [10, -1], [10, 1], [4, 0], [6, 0]])  # Σ = diag(2, 4)/6 about 0, 10, 5
    score = Mahalanobis(ridge=0).fit(NET, embedded(features, torch.tensor([0, 0, 1, 1, 2, 2])))
    expected = -torch.tensor([0, 3.0, 1.5, 3 + 1.5]).double()  # squared distances over 1/3 and 2/3
    assert torch.allclose(scored(score, torch.tensor([[5.0, 0], [6, 0], [0, 1], [11, 1]])), expected, atol=1e-12)


def test_the_ridge_is_relative_to_the_mean_variance():
    features, labels = sample(90, 0)
    test, _ = sample(30, 1)
    ridged = scored(Mahalanobis(ridge=0.1).fit(NET, embedded(features, labels)), test)
    assert not np.allclose(ridged, witness(features, labels, test), rtol=1e-3)
    scaled = scored(Mahalanobis(ridge=0.1).fit(NET, embedded(1000 * features, labels)), 1000 * test)
    assert torch.allclose(scaled, ridged)


def test_memory_is_taken_in_pieces_without_a_change(monkeypatch):
    features, labels = sample(90, 0)
    whole = Mahalanobis().fit(NET, embedded(features, labels))
    monkeypatch.setattr(mahalanobis, "ROWS", 7)
    pieces = Mahalanobis().fit(NET, embedded(features, labels))
    assert torch.allclose(scored(pieces, features), scored(whole, features))


def test_float32_features_far_from_the_origin_lose_nothing():
    features, labels = sample(90, 0)
    features = features.round(decimals=1).mul(16).round().div(16)  # exact in float32, also after the shift
    near = scored(Mahalanobis().fit(NET, embedded(features.float(), labels)), features.float())
    far = features.float() + 2**17
    assert torch.allclose(scored(Mahalanobis().fit(NET, embedded(far, labels)), far), near, rtol=1e-6)


def test_dead_units_need_the_ridge():
    features, labels = sample(90, 0)
    features[:, 2] = 0
    test, _ = sample(30, 1)
    assert scored(Mahalanobis().fit(NET, embedded(features, labels)), test).isfinite().all()
    with pytest.raises(ConfigError, match=r"singular with ridge=0; set a larger one"):
        Mahalanobis(ridge=0).fit(NET, embedded(features, labels))


def test_classes_without_samples_are_left_out():
    features, labels = sample(90, 0)
    gapped = labels * 7  # 0, 7, 14
    score = Mahalanobis().fit(NET, embedded(features, gapped))
    assert score.means.shape == (3, 5)
    assert torch.equal(scored(score, features), scored(Mahalanobis().fit(NET, embedded(features, labels)), features))


def test_slips_are_named():
    features, labels = sample(9, 0)
    with pytest.raises(DataError, match="3 of 9 samples have no label"):
        Mahalanobis().fit(NET, embedded(features, labels - 1))
    with pytest.raises(DataError, match="no spread within their classes"):
        Mahalanobis().fit(NET, embedded(torch.ones(9, 5), labels))
    with pytest.raises(NotFittedError, match="Mahalanobis was not fitted"):
        scored(Mahalanobis(), features)
    with pytest.raises(NotFittedError):
        Mahalanobis(epsilon=0.1).outputs(NET, features.float())
    with pytest.raises(ConfigError, match="ridge >= 0"):
        Mahalanobis(ridge=-1)


def test_the_input_step_is_the_released_one_on_normalised_images():
    torch.manual_seed(0)
    mean, std = torch.tensor([0.5, 0.4]).view(2, 1, 1), torch.tensor([0.2, 0.3]).view(2, 1, 1)
    body = nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Tanh())
    net = Net(body, nn.Linear(5, 3), Normalise((0.5, 0.4), (0.2, 0.3)))
    x, labels = torch.rand(30, 2, 2, 2), torch.arange(30) % 3
    with torch.no_grad():
        train = Embedded(net(x), labels, ArraySet("train", torch.zeros(1, 1)))
    score = Mahalanobis(epsilon=0.01).fit(net, train)
    assert score.uses_input
    assert not Mahalanobis().uses_input
    with torch.no_grad():
        stepped = score(score.outputs(net, x))
    normalised = ((x - mean) / std).requires_grad_()
    loss = -scored(score, body(normalised)) / 2
    (gradient,) = torch.autograd.grad(loss.sum(), normalised)
    released = scored(score, body(normalised - 0.01 * gradient.sign() / std))
    assert torch.allclose(stepped, released, rtol=1e-4)
    assert (stepped >= scored(score, train.outputs.features) - 1e-6).all()
    assert all(parameter.grad is None for parameter in net.parameters())
