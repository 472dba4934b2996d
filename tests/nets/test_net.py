"""nets/net.py: raw pixels in, features and logits out."""

import torch
from torch import nn

from farout.nets import Net, Normalise


def test_normalise_by_hand_and_alike_for_bytes_and_floats():
    normalise = Normalise(mean=(0.5, 0.0), std=(0.25, 2.0))
    pixels = torch.tensor([[[[255]], [[51]]]], dtype=torch.uint8)
    expected = torch.tensor([[[[2.0]], [[0.1]]]])
    assert torch.allclose(normalise(pixels), expected)
    assert torch.allclose(normalise(pixels / 255), expected)


def test_net_runs_normaliser_body_and_head_in_that_order():
    body = nn.Linear(2, 3)
    head = nn.Linear(3, 4)
    net = Net(body, head, Normalise((0.5,), (0.5,)))
    x = torch.rand(1, 5, 2)
    out = net(x)
    assert torch.equal(out.features, body((x - 0.5) / 0.5))
    assert torch.equal(out.logits, head(out.features))
    assert torch.equal(net.embed(x), out.features)
