"""scores/logits.py: MSP, the largest logit and the energy, against hand-made numbers and float64 loops."""

import math

import torch

from farout.scores import MSP, Energy, MaxLogit
from farout.types import Outputs


def of(logits: list[list[float]] | torch.Tensor) -> Outputs:
    logits = torch.as_tensor(logits)
    return Outputs(torch.zeros(len(logits), 1), logits)


def random_logits(rows: int = 20, classes: int = 5) -> torch.Tensor:
    return 4 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_msp_by_hand():
    scores = MSP()(of([[math.log(3), 0.0], [0.0, 0.0], [0.0, math.log(9)]]))
    assert torch.allclose(scores.exp(), torch.tensor([0.75, 0.5, 0.9]))


def test_msp_is_the_log_of_the_largest_softmax():
    logits = random_logits()
    loop = [math.log(max(math.exp(v) for v in row) / sum(math.exp(v) for v in row)) for row in logits.tolist()]
    assert torch.allclose(MSP()(of(logits)), torch.tensor(loop, dtype=torch.float64), rtol=1e-12)


def test_msp_ranks_where_a_float32_softmax_is_one():
    logits = torch.tensor([[20.0, 0.0], [40.0, 0.0], [60.0, 0.0]])
    assert (logits.softmax(1).amax(1) == 1).all()
    assert torch.allclose(MSP()(of(logits)), -torch.tensor([20.0, 40.0, 60.0]).neg().exp(), rtol=1e-5, atol=0)


def test_max_logit_by_hand():
    assert MaxLogit()(of([[1.0, 3.0, 2.0], [-1.0, -5.0, -2.0]])).tolist() == [3.0, -1.0]


def test_energy_by_hand_and_by_loop():
    assert torch.allclose(Energy()(of(torch.zeros(1, 4))).exp(), torch.tensor([4.0]))
    logits = random_logits()
    loop = [2.5 * math.log(sum(math.exp(v / 2.5) for v in row)) for row in logits.tolist()]
    assert torch.allclose(Energy(2.5)(of(logits)), torch.tensor(loop, dtype=torch.float64), rtol=1e-12)


def test_a_common_shift_moves_the_energy_but_not_msp():
    logits = random_logits()
    assert torch.allclose(MSP()(of(logits + 7)), MSP()(of(logits)))
    assert torch.allclose(Energy()(of(logits + 7)), Energy()(of(logits)) + 7)
