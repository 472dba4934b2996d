"""scores/vim.py against scikit-learn's PCA and a plain SVD."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.decomposition import PCA
from torch import nn

from farout.data.arrays import ArraySet
from farout.errors import ConfigError, NotFittedError
from farout.nets.net import Net
from farout.scores import Embedded, vim
from farout.scores.vim import ViM, principal_dim
from farout.types import Outputs


@pytest.fixture
def net():
    torch.manual_seed(0)
    made = Net(nn.Identity(), nn.Linear(8, 3)).double()
    nn.init.normal_(made.head.bias)
    return made


def sample(rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(8, 8, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return (torch.randn(rows, 8, generator=generator, dtype=torch.float64) @ mix).clamp(min=0)


def embedded(net: Net, features: torch.Tensor) -> Embedded:
    with torch.no_grad():
        return Embedded(net(features), torch.zeros(len(features)), ArraySet("train", features.float()))


def scored(score: ViM, net: Net, features: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return score(net(features))


def witness(net: Net, train: torch.Tensor, test: torch.Tensor, dim: int) -> np.ndarray:
    """PCA of the data and its mirror image about u, whose mean is u: the uncentred directions."""
    weight, bias = net.head.weight.detach().numpy(), net.head.bias.detach().numpy()
    u = -np.linalg.pinv(weight) @ bias
    x, q = train.numpy() - u, test.numpy() - u
    pca = PCA(dim).fit(np.concatenate((x, -x)))
    train_residual, residual = (np.linalg.norm(a - pca.inverse_transform(pca.transform(a)), axis=1) for a in (x, q))
    alpha = (train.numpy() @ weight.T + bias).max(axis=1).sum() / train_residual.sum()
    return logsumexp(test.numpy() @ weight.T + bias, axis=1) - alpha * residual


@pytest.mark.parametrize("dim", [1, 3, 7])
def test_equals_scikit_learn(net, dim):
    train, test = sample(200, 0), sample(30, 1)
    score = ViM(dim).fit(net, embedded(net, train))
    assert np.allclose(scored(score, net, test), witness(net, train, test, dim), rtol=1e-8)


def test_the_virtual_logit_matches_the_largest_one_on_training_data(net):
    train = sample(200, 0)
    score = ViM(3).fit(net, embedded(net, train))
    virtual = torch.logsumexp(net(train).logits, dim=1) - scored(score, net, train)
    assert torch.allclose(virtual.mean(), net(train).logits.amax(dim=1).mean())


def test_ranks_as_the_papers_probability(net):
    train, test = sample(200, 0), sample(30, 1)
    scores = scored(ViM(3).fit(net, embedded(net, train)), net, test)
    logits = net(test).logits.detach()
    virtual = torch.logsumexp(logits, dim=1) - scores
    probability = torch.cat((logits, virtual[:, None]), dim=1).softmax(dim=1)[:, -1]
    assert torch.equal(scores.argsort(), (-probability).argsort())


def test_a_head_without_bias_has_its_origin_at_zero():
    net = Net(nn.Identity(), nn.Linear(8, 3, bias=False)).double()
    assert ViM(3).fit(net, embedded(net, sample(50, 0))).origin.tolist() == [0] * 8


def test_memory_is_taken_in_pieces_without_a_change(net, monkeypatch):
    train = sample(200, 0)
    whole = scored(ViM(3).fit(net, embedded(net, train)), net, train)
    monkeypatch.setattr(vim, "ROWS", 7)
    assert torch.allclose(scored(ViM(3).fit(net, embedded(net, train)), net, train), whole)


def test_dim_changes_the_score_and_defaults_to_the_papers(net):
    train = sample(200, 0)
    scores = [scored(ViM(dim).fit(net, embedded(net, train)), net, train) for dim in (3, 4, None)]
    assert not torch.allclose(scores[0], scores[1])
    assert torch.equal(scores[1], scores[2])
    assert [principal_dim(d) for d in (4096, 2048, 2047, 768, 767, 128)] == [1000, 1000, 512, 512, 383, 64]


def test_slips_are_named(net):
    for dim in (0, 8):
        with pytest.raises(ConfigError, match=f"dim between 1 and D − 1 = 7, got {dim}"):
            ViM(dim).fit(net, embedded(net, sample(50, 0)))
    flat = sample(50, 0)
    flat[:, 2:] = net.head.weight.detach().new_zeros(6)
    bare = Net(nn.Identity(), nn.Linear(8, 3, bias=False)).double()
    with pytest.raises(ConfigError, match="lie in 4 dimensions, so ViM has no residual; set a smaller dim"):
        ViM().fit(bare, embedded(bare, flat))
    with pytest.raises(NotFittedError, match="ViM was not fitted"):
        ViM()(Outputs(flat, torch.zeros(50, 3)))
