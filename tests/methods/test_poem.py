"""POEM: the posterior in closed form, the choice of outliers, the energy hinges."""

import pytest
import torch
import torch.nn.functional as F

from farout import distributed
from farout.data.arrays import ArraySet
from farout.data.loaders import Resident
from farout.errors import ConfigError
from farout.methods.poem import POEM, thompson
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.types import Batch


def tiny_net() -> Net:
    torch.manual_seed(0)
    spec = {"name": "small-conv", "num_classes": 3, "in_channels": 1, "width": 1, "mean": [0.5], "std": [0.5]}
    return make_net(spec)


def images(count: int, seed: int) -> torch.Tensor:
    return torch.randint(256, (count, 1, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def outliers(count: int = 40) -> Resident:
    return Resident(ArraySet("outliers", images(count, 5)))


def batch(seed: int = 0) -> Batch:
    return Batch(images(6, seed), torch.arange(6) % 3, images(5, seed + 100))


def prepared(net: Net, **arguments) -> POEM:
    method = POEM(**{"pool": 40, "keep": 10, **arguments})
    method.prepare(net)
    return method


def choose(method: POEM, net: Net, seed: int = 0, source: Resident | None = None) -> torch.Tensor | None:
    torch.manual_seed(seed)
    return method.begin_epoch(net, source or outliers(), 0)


def test_the_posterior_is_the_closed_form():
    net = tiny_net().eval()
    method = prepared(net, sigma=3.0, noise=0.7)
    phi, y = [], []
    for seed in range(4):
        data = batch(seed)
        method.loss(net, data)
        phi += [net.embed(data.x), net.embed(data.x_out)]
        y += [torch.full((6,), -3.0), torch.full((5,), 3.0)]
    phi, y = torch.cat(phi).detach().double(), torch.cat(y).double()
    covariance = torch.linalg.inv(phi.T @ phi / 0.7 + torch.eye(4).double() / 3.0)
    mean, lower = method.posterior()
    torch.testing.assert_close(mean, covariance @ phi.T @ y / 0.7)
    torch.testing.assert_close(torch.linalg.inv(lower @ lower.T), covariance)
    assert mean.dtype == torch.float64


def test_thompson_draws_have_the_posteriors_mean_and_covariance():
    torch.manual_seed(0)
    lower = torch.tensor([[2.0, 0.0], [1.5, 1.0]]).double()
    mean = torch.tensor([1.0, -2.0]).double()
    draws = torch.stack([thompson(mean, lower, scale=4.0) for _ in range(4000)])
    torch.testing.assert_close(draws.mean(dim=0), mean, atol=0.15, rtol=0)
    torch.testing.assert_close(draws.T.cov(), 4.0 * torch.linalg.inv(lower @ lower.T), atol=0.2, rtol=0.1)


def test_an_epoch_keeps_the_outliers_nearest_to_the_sampled_boundary():
    net = tiny_net()
    method = prepared(net, cov_scale=2.0)
    method.loss(net, batch())
    torch.manual_seed(1)
    w = thompson(*method.posterior(), 2.0)
    distance = (net.eval().embed(outliers().x).double() @ w).abs()
    net.train()
    chosen = choose(method, net, seed=1)
    assert torch.equal(chosen, distance.argsort()[:10])
    assert net.training


def test_the_pool_is_a_random_part_of_the_outliers():
    net = tiny_net()
    method = prepared(net, pool=12, keep=12)
    first, second = choose(method, net, 0), choose(method, net, 1)
    assert len(first.unique()) == 12
    assert set(first.tolist()) != set(second.tolist())


def test_of_a_set_smaller_than_the_pool_the_same_share_is_kept():
    net = tiny_net()
    assert len(choose(prepared(net, pool=80, keep=20), net)) == 10
    assert len(choose(prepared(net, pool=80, keep=1), net)) == 1


def test_the_first_epoch_draws_from_the_prior_and_each_later_one_from_the_last():
    net = tiny_net()
    method = prepared(net)
    mean, lower = method.posterior()
    assert mean.count_nonzero() == 0
    torch.testing.assert_close(lower @ lower.T, torch.eye(4).double() / 20)
    method.loss(net, batch())
    assert method.gram.count_nonzero() > 0
    choose(method, net)
    assert method.gram.count_nonzero() == 0
    assert method.moment.count_nonzero() == 0


def test_the_loss_is_ce_and_two_hinges():
    net = tiny_net().eval()
    data = batch()
    terms = prepared(net, weight=0.5, m_in=-1.5, m_out=-1.0).loss(net, data)
    hinge_in = [max(0.0, -row.exp().sum().log().item() + 1.5) ** 2 for row in net(data.x).logits]
    hinge_out = [max(0.0, -1.0 + row.exp().sum().log().item()) ** 2 for row in net(data.x_out).logits]
    assert sum(hinge_in) > 0
    assert sum(hinge_out) > 0
    assert terms["energy"].item() == pytest.approx(0.5 * (sum(hinge_in) / 6 + sum(hinge_out) / 5), rel=1e-5)
    torch.testing.assert_close(terms["ce"], F.cross_entropy(net(data.x).logits, data.y))


def test_without_mining_it_is_energy_oe_with_all_outliers():
    net = tiny_net().eval()
    plain, mining = prepared(net, mine=False), prepared(net)
    assert choose(plain, net) is None
    assert plain.loss(net, batch()) == mining.loss(net, batch())
    assert plain.gram.count_nonzero() == 0


@pytest.mark.parametrize("change", [{"weight": 0.2}, {"m_in": -20.0}, {"m_out": -1.5}])
def test_knobs_of_the_loss(change):
    net = tiny_net().eval()
    data = batch()
    assert prepared(net, **change).loss(net, data)["energy"] != prepared(net, m_out=-1.0).loss(net, data)["energy"]


@pytest.mark.parametrize("change", [{"sigma": 0.01}, {"noise": 50.0}, {"cov_scale": 400.0}])
def test_knobs_of_the_sampling(change):
    chosen = []
    for arguments in ({}, change):
        net = tiny_net()
        method = prepared(net, **arguments)
        method.loss(net, batch())
        chosen.append(choose(method, net))
    assert chosen[0].tolist() != chosen[1].tolist()


def test_impossible_settings_are_refused():
    net = tiny_net()
    with pytest.raises(ConfigError, match="cannot keep 20 of a pool of 10"):
        prepared(net, pool=10, keep=20)
    with pytest.raises(ConfigError, match="0 < keep"):
        prepared(net, keep=0)
    with pytest.raises(ConfigError, match="noise=0"):
        prepared(net, noise=0.0)
    with pytest.raises(ConfigError, match="cov_scale=-1"):
        prepared(net, cov_scale=-1.0)
    with pytest.raises(ConfigError, match="m_in=-5.0 is above m_out=-7.0"):
        prepared(net, m_in=-5.0)


def test_everything_it_keeps_is_in_the_state():
    net = tiny_net()
    method = prepared(net)
    method.loss(net, batch())
    again = prepared(net)
    again.load_state_dict(method.state_dict())
    assert torch.equal(choose(again, net), choose(method, net))


def test_features_of_all_ranks_enter_the_sums(monkeypatch):
    net = tiny_net().eval()
    one, two = prepared(net), prepared(net)
    one.loss(net, batch())
    monkeypatch.setattr(distributed, "gather", lambda value: torch.cat([value, value]))
    two.loss(net, batch())
    torch.testing.assert_close(two.gram, 2 * one.gram)
    torch.testing.assert_close(two.moment, 2 * one.moment)


def test_the_choice_is_rank_zeros(monkeypatch):
    net = tiny_net()
    method = prepared(net)
    shared = []
    monkeypatch.setattr(distributed, "same", lambda value: shared.append(value) or value)
    chosen = choose(method, net)
    assert [tuple(value.shape) for value in shared] == [(4,), (10,)]  # w, the choice
    assert torch.equal(chosen, shared[-1])
