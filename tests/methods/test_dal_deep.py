"""DAL on inner activations, against the definition, a hand-made network and its own limits."""

import pytest
import torch
from torch import nn

from farout.components import make
from farout.errors import ConfigError
from farout.losses import ce_to_uniform
from farout.methods import METHODS, DALDeep
from farout.methods.dal_deep import adding, inner_layer
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.types import Batch


@pytest.fixture
def net():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3), nn.Flatten())
    return Net(body, nn.Linear(64, 3)).double().train()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    x, x_out = torch.rand(6, 1, 8, 8, dtype=torch.double), torch.rand(10, 1, 8, 8, dtype=torch.double)
    return Batch(x, torch.arange(6) % 3, x_out)


def seen_at(net, layer, x):
    found = []
    with adding(inner_layer(net.body, layer), lambda h: found.append(h.clone()) or h):
        net(x)
    return found[0]


def test_a_radius_of_zero_is_outlier_exposure(net, batch):
    expected = make("method", METHODS, {"name": "oe", "alpha": 0.7}).loss(net, batch)
    found = DALDeep(alpha=0.7, rho=0.0).loss(net, batch)
    for term in ("ce", "oe"):
        torch.testing.assert_close(found[term], expected[term])


def test_the_move_is_the_worst_of_its_length_to_first_order(net, batch):
    """Against random moves of the same length, and against the gradient by finite differences."""
    method, rho = DALDeep(rho=1e-4, layer="0", share=1.0), 1e-4
    layer = inner_layer(net.body, "0")
    p = method._search(net, layer, batch.x_out)
    h = seen_at(net, "0", batch.x_out)
    torch.testing.assert_close(p.flatten(1).norm(dim=1), rho * h.flatten(1).norm(dim=1))

    def risk(move):
        with adding(layer, lambda h: h + move):
            return ce_to_uniform(net(batch.x_out).logits)

    worst = risk(p)
    for _ in range(20):
        other = torch.randn_like(p)
        other *= (p.flatten(1).norm(dim=1) / other.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
        assert (risk(other) <= worst + 1e-7).all()
    still = risk(torch.zeros_like(p))
    assert (worst > still).all()
    torch.testing.assert_close(method.gain.double(), (worst - still).mean(), rtol=1e-3, atol=0)


def test_the_channels_of_a_style_move_as_one(net, batch):
    p = DALDeep(direction="channels", layer="0")._search(net, inner_layer(net.body, "0"), batch.x_out)
    torch.testing.assert_close(p, p.mean(dim=(2, 3), keepdim=True).expand_as(p))
    assert (p.flatten(1).norm(dim=1) > 0).all()


def test_only_the_share_is_moved_and_inliers_never(net, batch):
    clean = seen_at(net, "2", torch.cat([batch.x, batch.x_out]))
    found, method = [], DALDeep(rho=0.5, layer="2", share=0.3)
    layer = net.body[3]  # sees what leaves the moved layer
    with adding(layer, lambda h: found.append(h.clone()) or h):
        method.loss(net, batch)
    differs = (found[-1] != clean.flatten(1)).any(dim=1)
    assert differs.tolist() == [False] * 6 + [True] * 3 + [False] * 7
    assert method.gain > 0


def test_more_linearisations_do_not_lower_the_gain(net, batch):
    gains = []
    for num_search in (1, 5):
        method = DALDeep(rho=1.0, layer="0", share=1.0, num_search=num_search)
        p = method._search(net, inner_layer(net.body, "0"), batch.x_out)
        with adding(inner_layer(net.body, "0"), lambda h, p=p: h + p):
            gains.append(ce_to_uniform(net(batch.x_out).logits).mean().item())
    assert gains[1] >= gains[0]


def test_the_search_leaves_gradients_statistics_and_mode_alone(batch):
    net = make_net({"name": "wrn", "depth": 10, "width": 1, "in_channels": 1, "num_classes": 3}).train()
    small = Batch(batch.x.float(), batch.y, batch.x_out.float())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    DALDeep()._search(net, inner_layer(net.body, None), small.x_out)
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert not inner_layer(net.body, None)._forward_hooks


def test_the_default_layer_of_the_papers_network_is_its_second_stage():
    net = make_net({"name": "wrn", "depth": 10, "width": 1, "num_classes": 3})
    assert inner_layer(net.body, None) is net.body.block2


def test_wrong_arguments_are_named(net):
    with pytest.raises(ConfigError, match=r"no layer 'block9'; its layers are 0, 1, 2, 3"):
        DALDeep(layer="block9").prepare(net)
    with pytest.raises(ConfigError, match=r"share must lie in \[0, 1\], got 1.5"):
        DALDeep(share=1.5)
    with pytest.raises(ConfigError, match="num_search must be at least 1, got 0"):
        DALDeep(num_search=0)
    with pytest.raises(ConfigError, match="direction"):
        DALDeep(direction="up")
