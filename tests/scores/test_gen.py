"""scores/gen.py against hand-made numbers and a loop."""

import math

import pytest
import torch

from farout.errors import ConfigError
from farout.scores.gen import GEN
from farout.types import Outputs


def scored(score: GEN, logits: torch.Tensor) -> torch.Tensor:
    return score(Outputs(torch.zeros(len(logits), 1), logits))


def random_logits() -> torch.Tensor:
    return 2 * torch.randn(10, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_by_hand():
    assert scored(GEN(gamma=0.5), torch.zeros(1, 4)).item() == pytest.approx(-4 * math.sqrt(0.25 * 0.75))
    assert scored(GEN(gamma=1), torch.tensor([[math.log(3), 0.0]])).item() == pytest.approx(-2 * 0.75 * 0.25)


@pytest.mark.parametrize("top", [1, 3, 7, 100])
def test_is_a_loop_over_the_largest_probabilities(top):
    loop = []
    for row in random_logits().tolist():
        total = math.fsum(map(math.exp, row))
        largest = sorted((math.exp(v) / total for v in row), reverse=True)[:top]
        loop.append(-math.fsum((p * (1 - p)) ** 0.1 for p in largest))
    assert torch.allclose(scored(GEN(top=top), random_logits()), torch.tensor(loop, dtype=torch.float64), rtol=1e-10)


def test_sees_what_a_saturated_softmax_hides():
    margins = torch.tensor([30.0, 60.0, 300.0])
    logits = torch.stack((margins, torch.zeros(3)), dim=1)
    assert (logits.softmax(dim=1)[:, 0] == 1).all()
    p = [math.exp(-m) for m in (30, 60, 300)]
    assert scored(GEN(), logits).tolist() == pytest.approx([-2 * (q / (1 + q) ** 2) ** 0.1 for q in p], rel=1e-5)


def test_a_surer_prediction_scores_higher_and_a_shift_changes_nothing():
    logits = random_logits()
    assert (scored(GEN(), 2 * logits) > scored(GEN(), logits)).all()
    assert torch.allclose(scored(GEN(), logits + 9), scored(GEN(), logits))


def test_knobs_change_the_score():
    plain = scored(GEN(), random_logits())
    assert not torch.allclose(scored(GEN(gamma=0.2), random_logits()), plain)
    assert not torch.allclose(scored(GEN(top=3), random_logits()), plain)


def test_slips_are_named():
    with pytest.raises(ConfigError, match=r"gamma > 0 and top >= 1, got 0 and 100"):
        GEN(gamma=0)
    with pytest.raises(ConfigError, match="top >= 1"):
        GEN(top=0)
