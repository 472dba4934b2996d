"""nets/small.py: shapes, non-negative features, and that they learn."""

import pytest
import torch
from torch.nn import functional as F

from farout.nets import MLP, ResNet8, SmallConvNet, split


@pytest.mark.parametrize("size", [8, 28, 32])
@pytest.mark.parametrize("build", [SmallConvNet, ResNet8])
def test_shapes_for_tiny_images(build, size):
    out = split(build(num_classes=5, in_channels=2, width=4))(torch.randn(3, 2, size, size))
    assert out.features.shape == (3, 16)
    assert out.logits.shape == (3, 5)
    assert out.features.min() >= 0
    assert out.features.max() > 0


def test_parameter_counts_by_hand():
    # convolutions 3x3 without bias, batch norms 2c, head D·K + K
    small = 9 * (1 * 16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64) + 64 * 10 + 10
    assert sum(p.numel() for p in SmallConvNet(num_classes=10).parameters()) == small
    convs = 9 * (3 * 16 + 2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64)
    norms = 2 * (16 + 2 * 16 + 2 * 32 + 2 * 64)
    projections = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    assert sum(p.numel() for p in ResNet8(num_classes=10).parameters()) == convs + norms + projections + 650
    assert sum(p.numel() for p in MLP(6, 3, hidden=(5, 4)).parameters()) == 6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3


def test_mlp_by_hand():
    net = MLP(in_features=3, num_classes=2, hidden=(4, 5))
    x = torch.randn(6, 3)
    first, _, second, _ = net.layers
    features = F.relu(second(F.relu(first(x))))
    assert torch.allclose(net(x), net.fc(features))
    assert torch.allclose(split(net)(x).features, features)


def test_mlp_without_hidden_layers_is_linear():
    net = split(MLP(in_features=3, num_classes=2, hidden=()))
    x = torch.randn(4, 3)
    assert torch.equal(net(x).features, x)
    assert torch.allclose(net(x).logits, x @ net.head.weight.T + net.head.bias)


@pytest.mark.parametrize("build", [SmallConvNet, ResNet8])
def test_convolutions_start_by_the_fan_out_rule(build):
    torch.manual_seed(0)
    weights = [m.weight for m in build(num_classes=10, width=32).modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(weights) >= 3
    for weight in weights:
        expected = (2 / (weight.shape[0] * weight.shape[2] ** 2)) ** 0.5
        assert weight.std().item() == pytest.approx(expected, rel=4 / (2 * weight.numel()) ** 0.5)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (lambda: SmallConvNet(num_classes=2, width=4), (1, 8, 8)),
        (lambda: ResNet8(num_classes=2, in_channels=1, width=4), (1, 8, 8)),
        (lambda: MLP(in_features=8, num_classes=2, hidden=(8,)), (8,)),
    ],
    ids=["small-conv", "resnet8", "mlp"],
)
def test_learns_two_random_patterns(net, shape):
    torch.manual_seed(0)
    y = torch.arange(32) % 2
    x = torch.randn(2, *shape)[y] + 0.3 * torch.randn(32, *shape)
    net = net()
    for _ in range(40):  # plain gradient descent: importing torch.optim would cost more than the test
        gradients = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter.data.sub_(0.5 * gradient)
    assert (net.eval()(x).argmax(1) == y).all()
