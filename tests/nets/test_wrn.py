"""nets/wrn.py against arithmetic by hand and a forward pass written out over the state dict."""

import pytest
import torch
from torch.nn import functional as F

from farout.errors import ConfigError
from farout.nets import WideResNet, split


def count_by_hand(depth, width, num_classes, in_channels=3):
    """Weights of every layer, added up from the definition of the architecture."""
    n = (depth - 4) // 6
    total = in_channels * 16 * 9
    c_in = 16
    for c_out in (16 * width, 32 * width, 64 * width):
        total += 2 * c_in + 9 * c_in * c_out + 2 * c_out + 9 * c_out * c_out  # bn1 conv1 bn2 conv2
        total += c_in * c_out if c_in != c_out else 0  # convShortcut
        total += (n - 1) * (2 * c_out + 9 * c_out * c_out) * 2
        c_in = c_out
    return total + 2 * c_in + c_in * num_classes + num_classes


def forward_by_hand(state, x, blocks):
    """WRN in eval mode from names and numbers alone."""

    def bn_relu(x, name):
        keys = ("running_mean", "running_var", "weight", "bias")
        return F.relu(F.batch_norm(x, *(state[f"{name}.{key}"] for key in keys)))

    x = F.conv2d(x, state["conv1.weight"], padding=1)
    for stage in (1, 2, 3):
        for i in range(blocks):
            at = f"block{stage}.layer.{i}"
            stride = 2 if stage > 1 and i == 0 else 1
            active = bn_relu(x, f"{at}.bn1")
            if f"{at}.convShortcut.weight" in state:
                x = F.conv2d(active, state[f"{at}.convShortcut.weight"], stride=stride)
            out = F.conv2d(active, state[f"{at}.conv1.weight"], stride=stride, padding=1)
            x = x + F.conv2d(bn_relu(out, f"{at}.bn2"), state[f"{at}.conv2.weight"], padding=1)
    features = bn_relu(x, "bn1").mean(dim=(2, 3))
    return features @ state["fc.weight"].T + state["fc.bias"]


def scrambled(net):
    """The net with every tensor moved off its start, so that no batch norm is the identity."""
    generator = torch.Generator().manual_seed(1)
    for value in net.state_dict().values():
        if value.is_floating_point():
            value.mul_(1 + 0.3 * torch.rand(value.shape, generator=generator)).add_(0.01)
    return net


@pytest.mark.parametrize(
    ("depth", "width", "num_classes", "in_channels"),
    [(40, 2, 10, 3), (40, 2, 100, 3), (16, 4, 10, 3), (10, 1, 7, 1)],
)
def test_parameter_count(depth, width, num_classes, in_channels):
    net = WideResNet(depth=depth, width=width, num_classes=num_classes, in_channels=in_channels)
    assert sum(p.numel() for p in net.parameters()) == count_by_hand(depth, width, num_classes, in_channels)


def test_wrn_40_2_has_its_published_size():
    assert count_by_hand(40, 2, 10) == 2_243_546


def test_names_are_those_of_the_public_checkpoints():
    names = list(dict(WideResNet().named_parameters()))
    assert names[:10] == [
        "conv1.weight",
        "block1.layer.0.bn1.weight",
        "block1.layer.0.bn1.bias",
        "block1.layer.0.conv1.weight",
        "block1.layer.0.bn2.weight",
        "block1.layer.0.bn2.bias",
        "block1.layer.0.conv2.weight",
        "block1.layer.0.convShortcut.weight",
        "block1.layer.1.bn1.weight",
        "block1.layer.1.bn1.bias",
    ]
    assert names[-5:] == ["block3.layer.5.conv2.weight", "bn1.weight", "bn1.bias", "fc.weight", "fc.bias"]
    assert [name for name in names if "convShortcut" in name] == [
        f"block{stage}.layer.0.convShortcut.weight" for stage in (1, 2, 3)
    ]
    assert len(WideResNet().state_dict()) == 1 + 18 * (2 * 5 + 2) + 3 + 5 + 2


@pytest.mark.parametrize("width", [1, 2])
def test_forward_equals_the_one_written_out(width):
    net = scrambled(WideResNet(depth=16, width=width, num_classes=5)).eval()
    x = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(net(x), forward_by_hand(net.state_dict(), x, blocks=2), rtol=1e-4, atol=1e-5)


def test_features_are_not_negative_and_as_wide_as_said():
    net = split(WideResNet(depth=10, width=2, num_classes=10))
    out = net(torch.randn(4, 3, 32, 32))
    assert out.features.shape == (4, 128)
    assert out.logits.shape == (4, 10)
    assert out.features.min() >= 0
    assert out.features.max() > 0


def test_start_of_the_weights():
    torch.manual_seed(0)
    net = WideResNet(depth=16, width=4)
    for name, module in net.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            expected = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
            spread = 4 / (2 * module.weight.numel()) ** 0.5  # four standard errors of a standard deviation
            assert module.weight.std().item() == pytest.approx(expected, rel=spread), name
            assert abs(module.weight.mean()) < 4 * expected / module.weight.numel() ** 0.5, name
        elif isinstance(module, torch.nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert (net.fc.bias == 0).all()
    bound = net.fc.in_features**-0.5  # torch's default: uniform within 1 / sqrt(D)
    assert 0.95 * bound < net.fc.weight.abs().max() <= bound


def test_dropout_acts_in_training_only():
    # Batch norm also changes with the mode, so its statistics are frozen: what is left is dropout.
    net = WideResNet(depth=10, width=1)
    x = torch.randn(2, 3, 8, 8)
    net.eval()
    assert torch.equal(net(x), net(x))
    for module in net.modules():
        if not isinstance(module, torch.nn.BatchNorm2d):
            module.training = True
    assert not torch.equal(net(x), net(x))


def test_dropout_sits_between_the_two_convolutions():
    """With everything dropped the branch gives zero, so a block is its shortcut."""
    block = WideResNet(depth=10, width=1, dropout=1.0).block1.layer[0]
    x = torch.randn(2, 16, 4, 4)
    assert torch.equal(block(x), x)


def test_no_dropout_leaves_training_deterministic():
    net = WideResNet(depth=10, width=1, dropout=0.0).train()
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize("depth", [41, 4, 0, -2, 12])
def test_impossible_depth_is_named(depth):
    with pytest.raises(ConfigError, match=f"depth {depth} is not 6n"):
        WideResNet(depth=depth)
