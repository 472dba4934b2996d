"""scores/outlier_class.py: log-odds against the last class."""

import pytest
import torch

from farout.errors import ConfigError
from farout.scores.outlier_class import OutlierClass
from farout.types import Outputs


def scored(logits: torch.Tensor) -> torch.Tensor:
    return OutlierClass()(Outputs(torch.zeros(len(logits), 1), logits))


def test_is_the_log_odds_of_being_no_outlier_and_ranks_as_the_released_score():
    logits = 3 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = logits.softmax(dim=1)[:, -1]
    assert torch.allclose(scored(logits), ((1 - p) / p).log())
    assert torch.equal(scored(logits).argsort(), (-p).argsort())


def test_by_hand():
    assert scored(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 9.0]])).tolist() == pytest.approx(
        [0.6931472, 1.6931472 - 9]
    )


def test_ranks_where_the_probability_is_zero_or_one():
    logits = torch.tensor([[0.0, 0.0, 200.0], [0.0, 0.0, 150.0], [0.0, 0.0, -150.0], [0.0, 0.0, -200.0]])
    p = logits.softmax(dim=1)[:, -1]
    assert len(set(p.tolist())) == 2
    assert scored(logits).diff().min() > 40


def test_one_logit_is_not_enough():
    with pytest.raises(ConfigError, match=r"needs K \+ 1 logits, the last for outliers, got 1"):
        scored(torch.zeros(2, 1))
