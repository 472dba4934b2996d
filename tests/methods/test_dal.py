"""DAL's loss against its formula, and every knob."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from farout.errors import ConfigError
from farout.losses import ce_to_uniform
from farout.methods import CE, DAL, OE
from farout.nets.net import Net
from farout.types import Batch
from farout.worst_case import REFERENCE, autograd_search
from farout.worst_case.certificate import head_constants


def net_and_batch(seed: int = 0) -> tuple[Net, Batch]:
    torch.manual_seed(seed)
    net = Net(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Linear(8, 3)).double()
    return net, Batch(torch.randn(6, 5).double(), torch.randint(3, (6,)), torch.randn(7, 5).double())


def value(method, seed: int = 0) -> dict[str, float]:
    net, batch = net_and_batch()
    torch.manual_seed(seed)
    return {name: term.item() for name, term in method.double().loss(net, batch).items()}


def test_ce_and_oe_by_their_formulas():
    net, batch = net_and_batch()
    inlier, outlier = net(batch.x).logits, net(batch.x_out).logits
    ce = torch.stack([-(row - row.logsumexp(0))[label] for row, label in zip(inlier, batch.y, strict=True)]).mean()
    oe = torch.stack([-(row.log_softmax(0) / 3).sum() for row in outlier]).mean()
    assert value(CE())["ce"] == pytest.approx(ce.item())
    terms = value(OE(alpha=0.3))
    assert terms["ce"] == pytest.approx(ce.item())
    assert terms["oe"] == pytest.approx(0.3 * oe.item())


def test_dal_is_algorithm_1_written_out():
    net, batch = net_and_batch()
    method = DAL(alpha=0.5, num_search=4, ps=0.3, rho=0.2, beta=0.1, gamma0=0.05).double()
    torch.manual_seed(3)
    terms = method.loss(net, batch)
    z = net.embed(batch.x_out)
    torch.manual_seed(3)
    worst = autograd_search(
        net.head,
        z.detach(),
        REFERENCE.draw(z.detach()),
        torch.tensor(0.05).double(),
        steps=4,
        step_size=0.3,
        rule=REFERENCE,
    )
    risk = ce_to_uniform(net.head(z + worst.p)).mean()
    torch.testing.assert_close(terms["oe"], 0.5 * risk)
    torch.testing.assert_close(terms["ce"], F.cross_entropy(net(batch.x).logits, batch.y))
    assert method.dual.gamma.item() == pytest.approx(0.05 - 0.1 * (0.2 - worst.cost.mean().item()))
    assert method.stats()["gain"].item() == pytest.approx(
        (risk - ce_to_uniform(net(batch.x_out).logits).mean()).item(), abs=1e-6
    )
    share = (risk - ce_to_uniform(net(batch.x_out).logits).mean()) / worst.p.abs().sum(1).mean()
    assert method.stats()["efficiency"].item() == pytest.approx(
        (share / head_constants(net.head.weight).l).item(), abs=1e-6
    )
    assert 0 < method.stats()["efficiency"] < 1


def test_gradients_flow_through_features_and_head_but_not_through_p():
    net, batch = net_and_batch()
    DAL().double().loss(net, batch)["oe"].backward()
    assert net.head.weight.grad is not None
    assert net.body[0].weight.grad is not None
    assert net.body[0].weight.grad.abs().sum() > 0


def test_no_search_is_oe():
    """num_search=0 from a zero start: DAL with nothing moved."""
    terms = value(DAL(num_search=0, rule="proximal"))
    assert terms["oe"] == pytest.approx(value(OE(alpha=0.5))["oe"], abs=1e-12)


def test_warm_up_leaves_the_outliers_where_they_are_but_moves_gamma():
    net, batch = net_and_batch()
    method = DAL(warmup=2, rho=0.001).double()
    method.begin_epoch(net, None, 1)
    terms = method.loss(net, batch)
    assert terms["oe"].item() == pytest.approx(value(OE(0.5))["oe"])
    assert method.dual.gamma > 0.01
    method.begin_epoch(net, None, 2)
    assert method.loss(net, batch)["oe"].item() > terms["oe"].item()


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.9},
        {"num_search": 3},
        {"ps": 0.1},
        {"gamma0": 5.0},
        {"rule": "paper"},
        {"rule": "proximal"},
        {"cost": "l2", "gamma0": 5.0},
    ],
    ids=str,
)
def test_every_knob_of_the_search_changes_the_loss(change):
    assert value(DAL(**change))["oe"] != value(DAL())["oe"]


@pytest.mark.parametrize("change", [{"rho": 0.1}, {"beta": 0.001}, {"gamma_max": 0.005}], ids=str)
def test_every_knob_of_the_dual_changes_gamma(change):
    net, batch = net_and_batch()

    def gamma(**arguments: float) -> float:
        torch.manual_seed(0)
        method = DAL(**{"rho": 0.001, "beta": 0.01, **arguments}).double()
        method.loss(net, batch)
        return method.dual.gamma.item()

    assert gamma(**change) != gamma()


def test_both_searches_give_the_same_loss():
    assert value(DAL(search="autograd")) == pytest.approx(value(DAL(search="closed-form")), abs=1e-12)


def test_what_a_restart_must_remember_is_in_the_state():
    assert set(DAL().state_dict()) == {"epoch", "dual.gamma"}


def test_wrong_names_are_named():
    with pytest.raises(ConfigError, match="unknown rule 'papr'; did you mean 'paper'"):
        DAL(rule="papr")
    with pytest.raises(ConfigError, match="unknown cost 'l7'"):
        DAL(cost="l7")
    with pytest.raises(ConfigError, match="unknown search 'autogrid'; did you mean 'autograd'"):
        DAL(search="autogrid")
