"""SupCon: two views through one projection, and a probe that leaves the features alone."""

import math

import pytest
import torch
import torch.nn.functional as F

from farout.contrastive import contrastive
from farout.data.views import Views
from farout.errors import DataError
from farout.methods.supcon import SupCon
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.types import Batch


def tiny_net(channels: int = 3) -> Net:
    torch.manual_seed(0)
    grey = [0.5] * channels
    return make_net(
        {"name": "small-conv", "num_classes": 3, "in_channels": channels, "width": 2, "mean": grey, "std": grey}
    )


def batch(channels: int = 3) -> Batch:
    draws = torch.Generator().manual_seed(1)
    return Batch(torch.randint(256, (6, channels, 8, 8), generator=draws, dtype=torch.uint8), torch.arange(6) % 3)


def prepared(net: Net, **arguments) -> SupCon:
    method = SupCon(**arguments)
    torch.manual_seed(2)
    method.prepare(net)
    return method


def value(name: str, **arguments) -> float:
    net = tiny_net()
    method = prepared(net, **arguments)
    torch.manual_seed(3)
    return method.loss(net, batch())[name].item()


def test_the_loss_is_its_formula():
    net = tiny_net()
    method = prepared(net, temperature=0.2, weight=1.5, crop=0.4, flip=0.3)
    data = batch()
    torch.manual_seed(3)
    terms = method.loss(net, data)
    torch.manual_seed(3)
    views = Views(crop=0.4, flip=0.3)
    z = net.embed(torch.cat([views(data.x), views(data.x)]))
    y = torch.cat([data.y, data.y])
    torch.testing.assert_close(terms["supcon"], 1.5 * contrastive(method.project(z), y, 0.2).mean())
    torch.testing.assert_close(terms["probe"], F.cross_entropy(net.head(z), y))


def test_the_probe_trains_the_head_alone_and_the_contrast_everything_else():
    net = tiny_net()
    method = prepared(net)
    method.loss(net, batch())["probe"].backward()
    assert net.head.weight.grad.abs().sum() > 0
    assert net.body.conv1.weight.grad is None
    assert all(p.grad is None for p in method.parameters())
    net.zero_grad()
    method.loss(net, batch())["supcon"].backward()
    assert net.head.weight.grad is None
    assert net.body.conv1.weight.grad.abs().sum() > 0
    assert all(p.grad is not None for p in method.parameters())


@pytest.mark.parametrize(
    "change", [{"temperature": 0.5}, {"projection": 16}, {"weight": 2.0}, {"crop": 0.9}, {"flip": 0.0}]
)
def test_every_knob_changes_the_loss(change):
    assert value("supcon", **change) != value("supcon")


def test_a_few_steps_gather_the_classes():
    net = tiny_net(channels=1)
    method = prepared(net, projection=8, crop=0.5)
    stripes = torch.arange(8) % 2 * 255
    patterns = torch.stack([stripes.expand(8, 8), stripes.expand(8, 8).T, torch.full((8, 8), 90)]).to(torch.uint8)
    data = Batch(patterns[torch.arange(12) % 3][:, None], torch.arange(12) % 3)
    optimizer = torch.optim.SGD([*net.parameters(), *method.parameters()], lr=0.1)
    losses = []
    for _ in range(25):
        terms = method.loss(net, data)
        optimizer.zero_grad()
        sum(terms.values()).backward()
        optimizer.step()
        losses.append(terms["supcon"].item())
    assert min(losses) >= math.log(7) - 1e-4  # seven positives among 23 others
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


def test_the_projection_is_in_the_state_and_has_its_size():
    net = tiny_net()
    method = prepared(net, projection=16)
    assert [tuple(p.shape) for p in method.parameters()] == [(8, 8), (8,), (16, 8), (16,)]
    again = SupCon(projection=16)
    again.prepare(net)
    again.load_state_dict(method.state_dict())
    z = torch.rand(2, 8)
    assert torch.equal(again.project(z), method.project(z))


def test_embeddings_are_refused():
    net = tiny_net()
    with pytest.raises(DataError, match="images"):
        prepared(net).loss(net, Batch(torch.rand(4, 8), torch.arange(4) % 3))
