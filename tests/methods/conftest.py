"""The small network (its SPEC stands in the test's file) and batch that most methods are tried on."""

import pytest
import torch

from farout.nets.make import make_net
from farout.types import Batch


@pytest.fixture
def net(request):
    torch.manual_seed(0)
    return make_net(request.module.SPEC)


@pytest.fixture
def batch():
    torch.manual_seed(1)
    x, x_out = (torch.randint(256, (n, 1, 8, 8), dtype=torch.uint8) for n in (6, 8))
    return Batch(x, torch.tensor([0, 1, 2, 0, 1, 2]), x_out)
