"""methods/logitnorm.py: the loss by hand, its lower bound, two steps of training."""

import math

import pytest
import torch
import torch.nn.functional as F

from farout.methods.logitnorm import LogitNorm, unit_logits
from farout.training.descent import Descent, Objective
from farout.types import Batch

SPEC = {"name": "small-conv", "num_classes": 3, "in_channels": 1, "width": 4, "mean": [0.5], "std": [0.5]}


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return Batch(torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1, 2]))


def test_unit_logits_by_hand_and_finite_at_zero():
    assert torch.allclose(unit_logits(torch.tensor([[3.0, -4.0]])), torch.tensor([[0.6, -0.8]]))
    zero = torch.zeros(1, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(unit_logits(zero), torch.tensor([0])), zero)
    assert torch.isfinite(gradient).all()


def test_loss_equals_a_loop_in_float64(net, batch):
    net.double()
    loss = LogitNorm(temperature=0.5).loss(net, batch)["ce"]
    total = 0.0
    for row, label in zip(net(batch.x).logits.tolist(), batch.y.tolist(), strict=True):
        norm = math.sqrt(sum(value**2 for value in row)) + 1e-7
        scaled = [value / norm / 0.5 for value in row]
        total += math.log(sum(math.exp(value) for value in scaled)) - scaled[label]
    assert loss.item() == pytest.approx(total / 6, abs=1e-10)


@pytest.mark.parametrize(("classes", "temperature"), [(2, 1.0), (3, 0.5), (10, 0.2)])
def test_the_stated_lower_bound_holds_and_is_reached(classes, temperature):
    bound = math.log(1 + (classes - 1) * math.exp(-math.sqrt(classes / (classes - 1)) / temperature))
    label = torch.zeros(1, dtype=torch.long)
    best = F.one_hot(label, classes).double() - 1 / classes
    reached = F.cross_entropy(unit_logits(best) / temperature, label)
    assert reached.item() == pytest.approx(bound, rel=1e-5)
    torch.manual_seed(0)
    tries = unit_logits(best + 0.3 * torch.randn(200, classes, dtype=torch.float64)) / temperature
    assert (F.cross_entropy(tries, label.expand(200), reduction="none") > bound).all()


def test_temperature_changes_the_loss_and_the_scale_of_the_logits_does_not(net, batch):
    base = LogitNorm().loss(net, batch)["ce"]
    assert not torch.isclose(LogitNorm(temperature=0.1).loss(net, batch)["ce"], base)
    with torch.no_grad():
        for parameter in net.head.parameters():
            parameter.mul_(10)
    assert torch.allclose(LogitNorm().loss(net, batch)["ce"], base, rtol=1e-4)


def test_needs_no_outliers_and_trains_two_steps(net, batch):
    method = LogitNorm(temperature=1.0)
    assert (method.needs_outliers, method.score) == (False, "msp")
    descent = Descent(Objective(net, method), torch.optim.SGD(net.parameters(), lr=0.1))
    first, second = (descent(batch, lr=0.1)["ce"] for _ in range(2))
    assert torch.isfinite(first)
    assert second < first
