"""nets/resnet.py against torchvision's published names and sizes, and a forward pass written out."""

from functools import cache

import pytest
import torch
from torch.nn import functional as F

from farout.errors import ConfigError
from farout.nets import resnet18, resnet50, split


def bn_names(at):
    return [f"{at}.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


@cache
def imagenet(build):
    """The model for 1000 classes, built once for the tests that only look at it."""
    torch.manual_seed(0)
    return build(num_classes=1000)


def count(net):
    return sum(p.numel() for p in net.parameters())


def forward_by_hand(state, x, blocks, convs, large):
    """ResNet in eval mode from names and numbers alone; the stride sits in the block's 3x3."""

    def bn(x, name):
        return F.batch_norm(x, *(state[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")))

    if large:
        x = F.max_pool2d(F.relu(bn(F.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1")), 3, 2, 1)
    else:
        x = F.relu(bn(F.conv2d(x, state["conv1.weight"], padding=1), "bn1"))
    for stage, number in enumerate(blocks, start=1):
        for i in range(number):
            at, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            out = x
            for c in range(1, convs + 1):
                weight = state[f"{at}.conv{c}.weight"]
                strided = c == (2 if convs == 3 else 1)
                out = F.conv2d(out, weight, stride=stride if strided else 1, padding=weight.shape[-1] // 2)
                out = bn(out, f"{at}.bn{c}")
                out = F.relu(out) if c < convs else out
            if f"{at}.downsample.0.weight" in state:
                x = bn(F.conv2d(x, state[f"{at}.downsample.0.weight"], stride=stride), f"{at}.downsample.1")
            x = F.relu(out + x)
    return F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), state["fc.weight"], state["fc.bias"])


def scrambled(net):
    generator = torch.Generator().manual_seed(1)
    for name, value in net.state_dict().items():
        if "bn" in name and value.is_floating_point():
            value.mul_(1 + 0.3 * torch.rand(value.shape, generator=generator)).add_(0.01)
    return net


@pytest.mark.parametrize(("build", "parameters", "tensors"), [(resnet18, 11_689_512, 122), (resnet50, 25_557_032, 320)])
def test_size_is_torchvisions(build, parameters, tensors):
    net = imagenet(build)
    assert count(net) == parameters
    assert len(net.state_dict()) == tensors


def test_resnet18_names_are_torchvisions():
    names = list(imagenet(resnet18).state_dict())
    assert names[:12] == [
        "conv1.weight",
        *bn_names("bn1"),
        "layer1.0.conv1.weight",
        *bn_names("layer1.0.bn1"),
    ]
    assert names[-8:] == ["layer4.1.conv2.weight", *bn_names("layer4.1.bn2"), "fc.weight", "fc.bias"]
    projections = [name for name in names if name.endswith("downsample.0.weight")]
    assert projections == [f"layer{stage}.0.downsample.0.weight" for stage in (2, 3, 4)]
    assert set(bn_names("layer2.0.downsample.1")) <= set(names)


def test_resnet50_names_and_shapes_are_torchvisions():
    state = imagenet(resnet50).state_dict()
    names = list(state)
    first = [
        "layer1.0.conv1.weight",
        *bn_names("layer1.0.bn1"),
        "layer1.0.conv2.weight",
        *bn_names("layer1.0.bn2"),
    ]
    assert names[6:18] == first
    assert names[-8:] == ["layer4.2.conv3.weight", *bn_names("layer4.2.bn3"), "fc.weight", "fc.bias"]
    projections = [name for name in names if name.endswith("downsample.0.weight")]
    assert projections == [f"layer{stage}.0.downsample.0.weight" for stage in (1, 2, 3, 4)]
    shapes = {
        "conv1.weight": (64, 3, 7, 7),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.1.conv1.weight": (64, 256, 1, 1),
        "layer2.0.conv1.weight": (128, 256, 1, 1),
        "layer2.0.conv2.weight": (128, 128, 3, 3),
        "layer2.0.conv3.weight": (512, 128, 1, 1),
        "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
        "fc.weight": (1000, 2048),
        "fc.bias": (1000,),
    }
    assert {name: tuple(state[name].shape) for name in shapes} == shapes


@pytest.mark.parametrize(
    ("build", "blocks", "convs", "stem"),
    [
        (resnet18, (2, 2, 2, 2), 2, "imagenet"),
        (resnet18, (2, 2, 2, 2), 2, "cifar"),
        (resnet50, (3, 4, 6, 3), 3, "imagenet"),
    ],
)
def test_forward_equals_the_one_written_out(build, blocks, convs, stem):
    net = scrambled(build(num_classes=5, stem=stem)).eval()
    x = torch.randn(2, 3, 32, 32) if stem == "imagenet" else torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = forward_by_hand(net.state_dict(), x, blocks, convs, large=stem == "imagenet")
        assert torch.allclose(net(x), expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def test_cifar_stem_keeps_the_resolution():
    net = resnet18(num_classes=10, stem="cifar")
    assert net.conv1.weight.shape == (64, 3, 3, 3)
    assert count(net) == 11_689_512 - 64 * 3 * (49 - 9) - 990 * 513
    seen = []
    net.layer1.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    net.eval()(torch.randn(1, 3, 16, 16))
    assert seen == [(1, 64, 16, 16)]


def test_features_and_grey_images():
    out = split(resnet18(num_classes=4, stem="cifar", in_channels=1)).eval()(torch.randn(2, 1, 8, 8))
    assert out.features.shape == (2, 512)
    assert out.features.min() >= 0


def test_convolutions_start_by_kaimings_fan_out_rule():
    for name, module in imagenet(resnet18).named_modules():
        if isinstance(module, torch.nn.Conv2d):
            expected = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
            spread = 4 / (2 * module.weight.numel()) ** 0.5
            assert module.weight.std().item() == pytest.approx(expected, rel=spread), name


def test_unknown_stem_is_named():
    with pytest.raises(ConfigError, match="no stem 'tiny': take 'imagenet'"):
        resnet18(num_classes=10, stem="tiny")


@pytest.mark.parametrize(("build", "name"), [(resnet18, "resnet18"), (resnet50, "resnet50")])
def test_state_dict_is_torchvisions_where_it_can_be_imported(build, name):
    try:
        from torchvision import models
    except Exception:
        pytest.skip("torchvision is absent or broken beside this torch")
    theirs = models.get_model(name, weights=None).state_dict()
    ours = imagenet(build).state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    assert list(ours) == list(theirs)
