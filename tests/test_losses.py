"""losses.py: per-sample values against loops in float64."""

import math

import pytest
import torch

from farout.losses import ce_to_uniform, energy, energy_above, energy_below


def lse(row):
    top = max(row)
    return top + math.log(sum(math.exp(value - top) for value in row))


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(3)
    return 5 * torch.randn(20, 4, generator=generator, dtype=torch.float64)


def test_ce_to_uniform_is_the_mean_negative_log_probability(logits):
    expected = [sum(lse(row) - value for value in row) / len(row) for row in logits.tolist()]
    assert torch.allclose(ce_to_uniform(logits), torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_ce_to_uniform_is_at_least_log_k_and_shift_invariant(logits):
    assert (ce_to_uniform(logits) >= math.log(4)).all()
    assert torch.allclose(ce_to_uniform(logits + 7), ce_to_uniform(logits))
    assert ce_to_uniform(torch.full((1, 4), 3.0)).item() == pytest.approx(math.log(4))


def test_energy_is_minus_log_sum_exp_and_survives_large_logits(logits):
    expected = [-lse(row) for row in logits.tolist()]
    assert torch.allclose(energy(logits), torch.tensor(expected, dtype=torch.float64), atol=1e-12)
    assert energy(torch.tensor([[1000.0, 0.0]])).item() == -1000.0


def test_hinges_by_hand():
    logits = torch.tensor([[2.0, -math.inf], [5.0, -math.inf], [9.0, -math.inf]])  # E = -2, -5, -9
    assert energy_above(logits, -5.0).tolist() == [9.0, 0.0, 0.0]
    assert energy_below(logits, -5.0).tolist() == [0.0, 0.0, 16.0]


def test_hinges_push_id_energy_down_and_outlier_energy_up():
    logits = torch.zeros(1, 3, requires_grad=True)  # E = -log 3
    (down,) = torch.autograd.grad(energy_above(logits, -5.0).sum(), logits)
    (up,) = torch.autograd.grad(energy_below(logits, 5.0).sum(), logits)
    assert (down < 0).all()  # a descent raises the logits, lowers E
    assert (up > 0).all()
