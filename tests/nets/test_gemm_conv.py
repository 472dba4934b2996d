"""nets/gemm_conv.py against torch's own convolution, and where it steps aside."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from farout.errors import ConfigError
from farout.nets import SmallConvNet, gemm_conv
from farout.nets.gemm_conv import GemmConv2d

SIZES = [(8, 8), (4, 4), (7, 5), (2, 3), (1, 1)]


def conv(c_in=3, c_out=4, **options):
    return GemmConv2d(c_in, c_out, 3, **{"stride": 2, "padding": 1, "bias": False, **options})


@pytest.fixture
def product(monkeypatch):
    """How often the product was taken."""
    taken, own = [], gemm_conv.gemm_conv
    monkeypatch.setattr(gemm_conv, "gemm_conv", lambda *given: taken.append(given) or own(*given))
    return taken


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_value_and_gradients_are_those_of_conv2d(size, stride, layout):
    torch.manual_seed(0)
    x = torch.randn(5, 3, *size, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    expected = F.conv2d(x, weight, stride=stride, padding=1)
    found = gemm_conv.gemm_conv(x, weight, stride)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    g = torch.randn_like(expected)
    theirs, ours = (torch.autograd.grad(y, (x, weight), g) for y in (expected, found))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_backward_has_a_backward():
    torch.manual_seed(0)
    x = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, w: gemm_conv.gemm_conv(x, w, 2).square(), (x, weight))


def test_adding_patches_is_the_transpose_of_taking_them():
    x, g = torch.randn(2, 3, 5, 6, dtype=torch.float64), torch.randn(2, 3, 3, 27, dtype=torch.float64)
    left = (gemm_conv.Patches.apply(x, 2) * g).sum()
    assert torch.allclose(left, (x * gemm_conv.add_patches(g, 5, 6, 2)).sum(), rtol=1e-12)


def test_in_float32_it_differs_by_rounding():
    torch.manual_seed(0)
    net, x = SmallConvNet(num_classes=6), torch.randn(32, 1, 8, 8)
    plain = SmallConvNet(num_classes=6, kernels="plain")
    plain.load_state_dict(net.state_dict())
    assert list(plain.state_dict()) == list(net.state_dict())
    for ours, theirs in zip(_step(net, x), _step(plain, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def _step(net, x):
    """Logits and gradients of a training step."""
    logits = net(x)
    F.cross_entropy(logits, torch.arange(len(x)) % 6).backward()
    return [logits, *(parameter.grad for parameter in net.parameters())]


def test_same_bits_twice():
    torch.manual_seed(0)
    net, x = SmallConvNet(num_classes=6), torch.randn(32, 1, 8, 8)
    again = copy.deepcopy(net)
    assert all(torch.equal(*pair) for pair in zip(_step(net, x), _step(again, x), strict=True))


def test_trains_by_products_and_evaluates_by_convolutions(product):
    net, x = SmallConvNet(num_classes=6), torch.randn(2, 1, 8, 8)
    net(x)
    assert len(product) == 2
    plain = SmallConvNet(num_classes=6, kernels="plain").eval()
    plain.load_state_dict(net.state_dict())
    assert torch.equal(net.eval()(x), plain(x))
    assert len(product) == 2


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (conv(stride=1), (8, 8)),
        (conv(bias=True), (8, 8)),
        (conv(padding=0), (8, 8)),
        (conv(dilation=2), (8, 8)),
        (conv(padding_mode="reflect"), (8, 8)),
        (conv(3, 6, groups=3), (8, 8)),
        (GemmConv2d(3, 4, 5, stride=2, padding=1, bias=False), (8, 8)),
        (conv(), (33, 32)),
    ],
)
def test_other_convolutions_and_larger_images_are_torch_s(product, layer, size):
    x = torch.randn(2, 3, *size)
    assert torch.equal(layer(x), nn.Conv2d.forward(layer, x))
    assert product == []


def test_largest_image(product):
    conv()(torch.randn(1, 3, 32, 32))
    assert len(product) == 1


def test_autocast_is_left_to_torch(product):
    with torch.autocast("cpu", torch.bfloat16):
        y = conv()(torch.randn(2, 3, 8, 8))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert product == []


@pytest.mark.parametrize("x", [torch.randn(2, 5, 8, 8), torch.randn(2, 3, 8, 8).double(), torch.randn(8, 8)])
def test_what_does_not_fit_is_refused_as_torch_refuses_it(x):
    layer = conv()
    with pytest.raises(RuntimeError) as theirs:
        nn.Conv2d.forward(layer, x)
    with pytest.raises(RuntimeError) as ours:
        layer(x)
    assert str(ours.value) == str(theirs.value)


def test_empty_batch():
    y = conv()(torch.randn(0, 3, 8, 8))
    assert y.shape == (0, 4, 4, 4)
    y.sum().backward()


def test_one_graph_for_the_compiler():
    torch.manual_seed(0)
    net, x = SmallConvNet(num_classes=6), torch.randn(4, 1, 8, 8)
    compiled = torch.compile(copy.deepcopy(net), backend="aot_eager", fullgraph=True)
    for ours, theirs in zip(_step(compiled, x), _step(net, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_unknown_kernels_are_named():
    with pytest.raises(ConfigError, match="unknown kernels 'gem'; did you mean 'gemm'"):
        SmallConvNet(num_classes=6, kernels="gem")
