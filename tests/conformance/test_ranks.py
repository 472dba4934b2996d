"""Two processes over gloo: every method ends with equal weights, state and selection on both."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from two_ranks import work

from farout.methods import METHODS


@pytest.fixture(scope="session")
def ranks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (str(folder),), nprocs=2)
    return folder


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("name", sorted(METHODS))
def test_two_ranks_end_equal(ranks, name):
    first, second = (torch.load(ranks / f"{name}-{rank}.pt", weights_only=True) for rank in (0, 1))
    for key, value in first["state"].items():
        assert torch.equal(value, second["state"][key]), key
    for left, right in zip(first["chosen"], second["chosen"], strict=True):
        assert (left is None and right is None) or torch.equal(left, right)
