"""train.deterministic=true: every method runs under it, and gives the same bits twice."""

import pytest
import tiny
import torch

from farout import build
from farout.methods import METHODS
from farout.training import Checkpoints


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_gives_the_same_bits_twice(name, tmp_path):
    states = []
    for attempt in ("first", "second"):
        with build.deterministic(True):
            assert torch.are_deterministic_algorithms_enabled()
            tiny.run(name, tmp_path / attempt, "train.epochs=1", "train.deterministic=true")
        states.append(Checkpoints(tmp_path / attempt / "checkpoints").latest()["objective"])
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_it_ends_with_its_block():
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ZeroDivisionError), build.deterministic(True):
        _ = 1 / 0
    assert not torch.are_deterministic_algorithms_enabled()
    with build.deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled()
