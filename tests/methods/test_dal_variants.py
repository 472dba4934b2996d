"""The presets, and the three DALs that are not Algorithm 1."""

import pytest
import torch
from torch import nn

from farout.components import make
from farout.errors import ConfigError
from farout.losses import ce_to_uniform
from farout.methods import DAL, METHODS, OE
from farout.methods.dal_exact import DALExact, DALVertex
from farout.methods.dal_input import DALInput
from farout.methods.preset import preset
from farout.nets.net import Net, Normalise
from farout.types import Batch
from farout.worst_case import PAPER, PROXIMAL, REFERENCE
from farout.worst_case.certificate import head_constants


def net_and_batch() -> tuple[Net, Batch]:
    torch.manual_seed(0)
    net = Net(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Linear(8, 3)).double()
    return net, Batch(torch.randn(6, 5).double(), torch.randint(3, (6,)), torch.randn(7, 5).double())


@pytest.mark.parametrize(
    ("name", "rule", "alpha"),
    [("dal-reference", REFERENCE, 0.5), ("dal-paper", PAPER, 1.0), ("dal-proximal", PROXIMAL, 0.5)],
)
def test_presets_change_defaults_and_nothing_else(name, rule, alpha):
    method = make("method", METHODS, {"name": name})
    assert isinstance(method, DAL)
    assert (method.rule, method.alpha) == (rule, alpha)
    assert make("method", METHODS, {"name": name, "alpha": 3, "ps": 2}).alpha == 3.0
    with pytest.raises(ConfigError, match=f"method '{name}' has no argument 'rh0'"):
        make("method", METHODS, {"name": name, "rh0": 1})


def test_a_preset_of_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="OE takes no beta"):
        preset(OE, "nothing", beta=1)


def test_vertex_is_the_largest_of_all_vertices():
    net, batch = net_and_batch()
    got = DALVertex(alpha=0.5, rho=0.7).loss(net, batch)["oe"]
    risks = []
    for z in net.embed(batch.x_out):
        moves = [sign * 0.7 * torch.eye(8).double()[j] for j in range(8) for sign in (1, -1)]
        risks.append(torch.stack([ce_to_uniform(net.head(z + move)) for move in moves]).max())
    torch.testing.assert_close(got, 0.5 * torch.stack(risks).mean())


def test_vertex_gradients_reach_features_and_head():
    net, batch = net_and_batch()
    DALVertex().loss(net, batch)["oe"].backward()
    assert net.body[0].weight.grad.abs().sum() > 0
    assert net.head.weight.grad.abs().sum() > 0


def test_vertex_out_of_range_is_no_number():
    net, batch = net_and_batch()
    assert DALVertex(rho=1e6).loss(net, batch)["oe"].isnan()


def test_exact_is_oe_plus_the_smooth_slope():
    net, batch = net_and_batch()
    terms, oe = DALExact(alpha=0.4, rho=2.0, sharpness=1e4).loss(net, batch), OE(0.4).loss(net, batch)
    torch.testing.assert_close(terms["oe"], oe["oe"])
    wanted = 0.4 * 2.0 * head_constants(net.head.weight).l
    torch.testing.assert_close(terms["ball"], wanted, rtol=1e-3, atol=0)
    smooth = DALExact(alpha=0.4, rho=2.0, sharpness=5.0).loss(net, batch)["ball"]
    assert 0 < smooth - wanted <= 0.4 * 2.0 * torch.tensor(24.0).log() / 5 + 1e-12


def test_exact_leaves_the_features_gradient_to_oe():
    net, batch = net_and_batch()
    DALExact().loss(net, batch)["ball"].backward()
    assert net.body[0].weight.grad is None
    assert (net.head.weight.grad != 0).all()  # the smooth maximum touches every entry


@pytest.mark.parametrize("kind", [DALVertex, DALExact])
def test_a_head_that_is_not_linear_is_refused(kind):
    net, batch = net_and_batch()
    net.head = nn.Sequential(nn.Linear(8, 3)).double()
    with pytest.raises(ConfigError, match="needs a linear head, this one is a Sequential"):
        kind().loss(net, batch)


def image_net() -> tuple[Net, Batch]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x, x_out = (torch.randint(256, (count, 1, 6, 6), dtype=torch.uint8) for count in (5, 7))
    return Net(body, nn.Linear(4, 3), Normalise([0.5], [0.5])), Batch(x, torch.randint(3, (5,)), x_out)


def test_input_search_raises_the_risk_and_leaves_the_network_alone():
    net, batch = image_net()
    net.train()
    terms = DALInput(num_search=0, rule="proximal").loss(net, batch)
    plain = OE().loss(net, batch)
    torch.testing.assert_close(terms["oe"], plain["oe"])
    before = net.body[1].num_batches_tracked.clone()
    moved = DALInput(num_search=5, ps=0.5).loss(net, batch)
    assert moved["oe"] > plain["oe"]
    assert net.body[1].num_batches_tracked == before + 1  # one training forward, not six
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())


def test_input_search_keeps_pixels_in_range():
    net, batch = image_net()
    seen = []
    net.normalise.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    DALInput(num_search=3, ps=50.0).loss(net, batch)
    assert all(pixels.min() >= 0 and pixels.max() <= 1 for pixels in seen)
