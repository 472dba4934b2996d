"""Learning rates by hand."""

import math

import pytest
import torch
from torch import nn

from farout.training.optim import OPTIMIZERS, constant, cosine, sgd, step_decay


def test_cosine_with_a_floor():
    at = cosine(0.1, steps_per_epoch=10, epochs=10, floor=1e-6)
    assert at(0) == pytest.approx(0.1)
    assert at(50) == pytest.approx(1e-6 + 0.5 * (0.1 - 1e-6))
    assert at(25) == pytest.approx(1e-6 + 0.5 * (0.1 - 1e-6) * (1 + math.cos(math.pi / 4)))
    assert at(100) == pytest.approx(1e-6)


def test_step_decay_in_epochs():
    at = step_decay(0.1, steps_per_epoch=5, epochs=200, milestones=(100, 150))
    assert [at(step) for step in (0, 499, 500, 749, 750)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


def test_warm_up_is_linear():
    at = cosine(1.0, steps_per_epoch=4, epochs=10, warmup_epochs=1)
    assert [at(step) for step in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert at(4) == pytest.approx(1.0)
    assert constant(0.3, 5, 5)(17) == 0.3


def test_one_nesterov_step_by_hand():
    """v = g + wd·w; w −= lr (v + m·v) at the first step."""
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = sgd([weight], lr=0.1, momentum=0.9, weight_decay=0.5)
    weight.grad = torch.tensor([1.0])
    optimizer.step()
    v = 1.0 + 0.5 * 2.0
    assert weight.item() == pytest.approx(2.0 - 0.1 * (v + 0.9 * v))


def test_every_optimizer_descends():
    for name, factory in OPTIMIZERS.items():
        weight = nn.Parameter(torch.tensor([1.0]))
        optimizer = factory([weight])
        for _ in range(20):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.step()
        assert weight.abs() < 1, name
