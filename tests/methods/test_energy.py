"""methods/energy.py: the two hinges against a loop, margins, two steps of training."""

import math

import pytest
import torch

from farout.components import make
from farout.errors import ConfigError
from farout.methods.energy import EnergyOE
from farout.training.descent import Descent, Objective

SPEC = {"name": "small-conv", "num_classes": 3, "in_channels": 1, "width": 4, "mean": [0.5], "std": [0.5]}


def test_terms_equal_a_loop_in_float64(net, batch):
    net.double()
    terms = EnergyOE(weight=0.3, m_in=-4.0, m_out=1.0).loss(net, batch)
    rows = net(torch.cat([batch.x, batch.x_out])).logits.tolist()
    lse = [math.log(sum(math.exp(value) for value in row)) for row in rows]
    above = sum(max(0.0, -s + 4.0) ** 2 for s in lse[:6]) / 6
    below = sum(max(0.0, 1.0 + s) ** 2 for s in lse[6:]) / 8
    cross = sum(lse[i] - rows[i][y] for i, y in enumerate(batch.y.tolist())) / 6
    assert terms["energy"].item() == pytest.approx(0.3 * (above + below), abs=1e-10)
    assert terms["ce"].item() == pytest.approx(cross, abs=1e-10)


def test_id_and_outliers_share_one_forward(net, batch):
    sizes = []
    net.register_forward_hook(lambda module, inputs, out: sizes.append(len(inputs[0])))
    EnergyOE().loss(net, batch)
    assert sizes == [14]


@pytest.mark.parametrize("change", [{"weight": 0.2}, {"m_in": -27.0}, {"m_out": 2.0}])
def test_every_argument_changes_the_loss(net, batch, change):
    base = EnergyOE(m_out=1.0).loss(net, batch)["energy"]
    changed = EnergyOE(**{"m_out": 1.0, **change}).loss(net, batch)["energy"]
    assert not torch.isclose(base, changed)


def test_defaults_are_the_published_cifar10_margins_and_the_energy_score():
    method = make("method", {"energy-oe": EnergyOE}, {"name": "energy-oe"})
    assert (method.weight, method.m_in, method.m_out, method.score) == (0.1, -23.0, -5.0, "energy")


def test_swapped_margins_are_refused(net):
    with pytest.raises(ConfigError, match=r"m_in=-5.0 is above m_out=-23.0.*swap"):
        EnergyOE(m_in=-5.0, m_out=-23.0).prepare(net)
    EnergyOE().prepare(net)


def test_two_steps_separate_the_energies(net, batch):
    method = EnergyOE(weight=1.0, m_in=-3.0, m_out=0.0)
    descent = Descent(Objective(net, method), torch.optim.SGD(net.parameters(), lr=0.01))
    first, second = (descent(batch, lr=0.01) for _ in range(2))
    assert all(torch.isfinite(term) for term in [*first.values(), *second.values()])
    assert second["energy"] < first["energy"]
