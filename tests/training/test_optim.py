"""Learning rates by hand."""

import math
import subprocess
import sys

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


@pytest.mark.parametrize("fused", [False, True])
def test_a_parameter_whose_first_gradient_comes_late_moves_as_torch_moves_it(fused):
    """As VOS's do. torch's fused step, which a GPU gets, refuses momentum that only some parameters have."""
    early, late = (torch.nn.Parameter(torch.tensor([value])) for value in (1.0, 2.0))
    ours = sgd([early, late], lr=0.1)
    ours.param_groups[0]["fused"] = fused
    others = [torch.nn.Parameter(parameter.detach().clone()) for parameter in (early, late)]
    theirs = torch.optim.SGD(others, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, foreach=False)
    for step in range(3):
        for parameters, optimizer in (((early, late), ours), (others, theirs)):
            optimizer.zero_grad(set_to_none=True)
            (parameters[0] ** 2 + (parameters[1] ** 3 if step else 0)).sum().backward()
            optimizer.step()
    assert torch.equal(early, others[0])
    assert torch.equal(late, others[1])


def test_adamw_is_torchs():
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    pairs = ((ours, OPTIMIZERS["adamw"]([ours])), (theirs, torch.optim.AdamW([theirs], lr=1e-3, weight_decay=1e-2)))
    for parameter, optimizer in pairs * 3:
        optimizer.zero_grad()
        (parameter**3).sum().backward()
        optimizer.step()
    assert torch.equal(ours, theirs)


LIGHT = """
import sys, torch
from farout.build import deterministic
from farout.training.optim import OPTIMIZERS
for make in OPTIMIZERS.values():
    weight = torch.nn.Parameter(torch.ones(2))
    with deterministic(False):
        optimizer = make([weight])
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
assert weight.requires_grad and torch.is_grad_enabled()
assert "torch._dynamo" not in sys.modules
"""


def test_a_step_does_not_import_torchs_compiler():
    """It would be most of two seconds of every start."""
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
