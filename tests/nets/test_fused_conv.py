"""The weight gradient of a convolution against float64: on a GPU where there is one, else in Triton's interpreter."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from farout.detector import Detector
from farout.nets import cast_weights as casting
from farout.nets import fused_conv as fused
from farout.nets import fused_norm, row_conv
from farout.nets.make import make_net
from farout.nets.norm_conv import plain_norm_conv
from farout.scores import MSP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRET = ("TRITON_INTERPRET", "1" if DEVICE == "cpu" else "0")
with pytest.MonkeyPatch.context() as environment:  # triton looks when it is imported and when kernels are made
    environment.setenv(*INTERPRET)
    tl = pytest.importorskip("triton").language
    fused.kernels()
    fused_norm.kernels()
if ("Interpreted" in type(tl.sum).__name__) != (DEVICE == "cpu"):
    pytest.skip("triton was imported before it could be told whether to interpret", allow_module_level=True)

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def small_launches(monkeypatch):
    """Blocks of 32 places and two programs: a tiny batch goes several times round every loop."""
    monkeypatch.setenv(*INTERPRET)
    small = {c: {**launch, "block": 32, "programs": 2, "num_stages": 2} for c, launch in fused.LAUNCH.items()}
    monkeypatch.setattr(fused, "LAUNCH", small)
    monkeypatch.setattr(fused, "multiprocessors", lambda device: 1)
    monkeypatch.setattr(row_conv, "multiprocessors", lambda device: 1)
    monkeypatch.setattr(fused, "ADD", {"elements": 4096, "parts": 4, "num_warps": 4})


@pytest.fixture
def large_launches(monkeypatch, small_launches):
    """The interpreter takes time by the program, not by the element."""
    large = {c: {**launch, "block": 128, "programs": 1} for c, launch in fused.LAUNCH.items()}
    monkeypatch.setattr(fused, "LAUNCH", large)


def images(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype).to(memory_format=torch.channels_last)


def convolution(c_in: int, c_out: int, **options) -> nn.Conv2d:
    made = fused.FusedConv2d(c_in, c_out, **{"kernel_size": 3, "padding": 1, "bias": False, **options})
    return made.to(DEVICE, BF16)


def is_fused(y: Tensor) -> bool:
    return type(y.grad_fn).__name__ == "_FusedConvBackward"


def by_hand(x: Tensor, g: Tensor) -> Tensor:
    """dW in float64: for each tap, the product of the gradient with the image moved under it."""
    (_, _, H, W), x, g = x.shape, F.pad(x.double(), (1, 1, 1, 1)), g.double()
    taps = [torch.einsum("bchw,bohw->oc", x[:, :, i : i + H, j : j + W], g) for i in range(3) for j in range(3)]
    return torch.stack(taps, 2).unflatten(2, (3, 3))


def assert_close(got: Tensor, want: Tensor, tolerance: float) -> None:
    error = (got.double() - want.double()).abs().max()
    assert error <= tolerance * want.abs().max() > 0  # a NaN fails, too


ROUNDING = 2**-7 if DEVICE == "cpu" else 2**-8  # the interpreter cuts instead of rounding


@pytest.mark.parametrize(
    ("c_in", "c_out", "batch", "height", "width"),
    [
        (8, 16, 3, 4, 5),  # 60 places: no multiple of a block
        (16, 32, 2, 5, 4),
        (32, 32, 3, 8, 8),
        (32, 64, 1, 3, 7),
        (64, 64, 3, 4, 4),
        (64, 32, 1, 1, 1),  # nothing but border
    ],
)
def test_the_weight_gradient_is_that_of_float64(c_in, c_out, batch, height, width):
    torch.manual_seed(0)
    x, g = images(batch, c_in, height, width), images(batch, c_out, height, width)
    like = torch.empty(c_out, c_in, 3, 3, device=DEVICE)  # a float32 weight shows the sums before they are rounded
    for weight in (like, like.to(memory_format=torch.channels_last)):
        dw = fused.weight_gradient(x, g, weight)
        assert dw.stride() == weight.stride()
        assert_close(dw, by_hand(x, g), 1e-6)
    rounded = fused.weight_gradient(x, g, like.to(BF16))
    assert ((rounded.double() - by_hand(x, g)).abs() <= ROUNDING * by_hand(x, g).abs() + 1e-5).all()


@pytest.mark.parametrize("c", [32, 64])
def test_slabs_may_be_programs_of_their_own(c, monkeypatch):
    torch.manual_seed(0)
    x, g, weight = images(2, c, 4, 4), images(2, c, 4, 4), torch.empty(c, c, 3, 3, device=DEVICE)
    monkeypatch.setitem(fused.LAUNCH, c, {**fused.LAUNCH[c], "slabs": 1})
    assert_close(fused.weight_gradient(x, g, weight), by_hand(x, g), 1e-6)


@pytest.mark.parametrize("ours", [True, False])
def test_forward_and_both_gradients_are_torch_s(ours, monkeypatch):
    """By our kernels or, where there is no launch, by torch itself."""
    if not ours:
        monkeypatch.setattr(row_conv, "LAUNCH", {})
    torch.manual_seed(0)
    conv, x, g = convolution(32, 32), images(2, 32, 4, 4).requires_grad_(), images(2, 32, 4, 4)
    y, plain = conv(x), F.conv2d(x, conv.weight, padding=1)
    assert is_fused(y)
    assert_close(y, plain, 2 * ROUNDING if ours else 1e-6)
    mine, other = (torch.autograd.grad(out, [x, conv.weight], g) for out in (y, plain))
    assert_close(mine[0], other[0], 2 * ROUNDING if ours else 1e-6)
    assert_close(mine[1], other[1], 2 * ROUNDING)


def test_a_gradient_in_another_layout_is_the_same():
    conv, x, g = convolution(32, 32), images(2, 32, 4, 4), images(2, 32, 4, 4)
    one, two = (torch.autograd.grad(conv(x), conv.weight, given)[0] for given in (g, g.contiguous()))
    assert torch.equal(one, two)


def test_two_calls_give_the_same_bits():
    x, g, weight = images(3, 32, 4, 4), images(3, 32, 4, 4), torch.empty(32, 32, 3, 3, device=DEVICE)
    assert torch.equal(*(fused.weight_gradient(x, g, weight) for _ in range(2)))


def test_a_second_derivative_is_refused():
    conv, x = convolution(32, 32), images(1, 32, 2, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(conv(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_few_channels_are_filled_up():
    torch.manual_seed(0)
    conv, x = convolution(3, 16), torch.randn(2, 3, 4, 4, device=DEVICE, requires_grad=True)
    y = conv(x)
    assert is_fused(y)
    x64, w64 = x.detach().to(BF16).double().requires_grad_(), conv.weight.detach().double().requires_grad_()
    y64 = F.conv2d(x64, w64, padding=1)
    g = images(2, 16, 4, 4)
    for got, want in zip(
        (y, *torch.autograd.grad(y, [x, conv.weight], g)),
        (y64, *torch.autograd.grad(y64, [x64, w64], g.double())),
        strict=True,
    ):
        assert got.shape == want.shape
        assert_close(got, want, 2 * ROUNDING)


PLAIN = {
    "stride": (convolution(32, 32, stride=2), images(1, 32, 4, 4)),
    "kernel": (convolution(32, 32, kernel_size=1, padding=0), images(1, 32, 4, 4)),
    "bias": (convolution(32, 32, bias=True), images(1, 32, 4, 4)),
    "groups": (convolution(32, 32, groups=2), images(1, 32, 4, 4)),
    "dilation": (convolution(32, 32, dilation=2, padding=2), images(1, 32, 4, 4)),
    "reflection": (convolution(32, 32, padding_mode="reflect"), images(1, 32, 4, 4)),
    "padding by name": (convolution(32, 32, padding="same"), images(1, 32, 4, 4)),
    "width": (convolution(24, 32), images(1, 24, 4, 4)),
    "wide": (convolution(32, 128), images(1, 32, 4, 4)),
    "layout": (convolution(32, 32), images(1, 32, 4, 4).contiguous()),
    "float32": (convolution(32, 32).float(), images(1, 32, 4, 4, dtype=torch.float32)),
    "frozen": (convolution(32, 32).requires_grad_(False), images(1, 32, 4, 4).requires_grad_()),
}


@pytest.mark.parametrize("case", PLAIN)
def test_elsewhere_it_is_torch_s_convolution(case):
    conv, x = PLAIN[case]
    y = conv(x)
    assert not is_fused(y)
    assert torch.equal(y, nn.Conv2d.forward(conv, x))


def test_nothing_to_learn_nothing_to_keep():
    conv, x = convolution(32, 32), images(1, 32, 4, 4)
    with torch.no_grad():
        assert conv(x).grad_fn is None
    assert not fused.usable(x[:0], conv.weight)


def test_wrong_channels_are_torch_s_error():
    with pytest.raises(RuntimeError, match="channels"):
        convolution(3, 16)(images(1, 4, 4, 4))


# ---- weights, cast at once


def test_cast_all_is_autocast_s_cast():
    weights = [torch.randn(4, 3, 3, 3), images(8, 4, 3, 3, dtype=torch.float32), torch.randn(4, 4, 1, 1)]
    weights = [weight.to(DEVICE).requires_grad_() for weight in weights]
    cast = casting.cast_all(weights)
    assert all(torch.equal(c, w.to(BF16)) and c.stride() == w.stride() for c, w in zip(cast, weights, strict=True))
    given = [torch.randn_like(c) for c in cast]
    got = torch.autograd.grad(cast, weights, given)
    assert all(torch.equal(g, want.float()) and g.dtype == torch.float32 for g, want in zip(got, given, strict=True))


def test_cast_all_leaves_out_what_is_frozen_or_unused():
    frozen, unused, used = (torch.randn(2, 2, device=DEVICE).requires_grad_(i > 0) for i in range(3))
    cast = casting.cast_all([frozen, unused, used])
    assert [c.requires_grad for c in cast] == [False, True, True]
    cast[2].sum().backward()
    assert unused.grad is None
    assert torch.equal(used.grad, torch.ones_like(used))


def network(kernels: str, width: int = 2, precision: str = "bf16"):
    """With plain norms: the fused ones have tests of their own, and the interpreter is slow."""
    torch.manual_seed(0)
    spec = {"name": "wrn", "depth": 10, "width": width, "dropout": 0.0, "kernels": kernels, "num_classes": 4}
    net = make_net({**spec, "mean": [0.5] * 3, "std": [0.25] * 3}).to(DEVICE).to(memory_format=torch.channels_last)
    net.precision = precision
    plain = {"norm": fused_norm.plain_norm, "norm_conv": plain_norm_conv}
    for module in (net.body, *(stage.layer[0] for stage in (net.body.block1, net.body.block2, net.body.block3))):
        module.kernels = module.kernels._replace(**plain)
    return net


def test_parameters_are_back_after_a_pass_even_one_that_fails():
    net = network("triton", 1)
    before = dict(net.named_parameters())
    seen = []
    net.body.block1.register_forward_pre_hook(lambda *_: seen.append(net.body.conv1.weight.dtype))
    net(torch.rand(2, 3, 4, 4, device=DEVICE))
    with pytest.raises(RuntimeError):
        net(torch.rand(2, 5, 4, 4, device=DEVICE))
    net.eval()(torch.rand(2, 3, 4, 4, device=DEVICE))
    assert seen == [BF16, torch.float32]  # in evaluation they stay as they are
    after = dict(net.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_network_is_the_plain_one(precision, large_launches, monkeypatch):
    """In bfloat16, too, its gradients point where float32's point, as well as the plain network's do."""
    calls = []
    gradient = fused.weight_gradient
    monkeypatch.setattr(fused, "weight_gradient", lambda *given: calls.append(given) or gradient(*given))
    x = torch.rand(2, 3, 8, 8, device=DEVICE)
    gradients = []
    for kernels, runs_in in (("triton", precision), ("plain", precision), ("plain", "float32")):
        net = network(kernels, precision=runs_in)
        net(x).logits.square().sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in net.body.parameters())
        gradients.append(dict(net.named_parameters()))
    mine, plain, exact = gradients
    assert len(calls) == (4 if precision == "bf16" else 0)  # conv1, 16 -> 32, 32 -> 32, 64 -> 64
    for name, parameter in mine.items():
        off, usual = (off_by(which[name].grad, exact[name].grad) for which in (mine, plain))
        assert off <= (2 * usual + 0.05 if precision == "bf16" else 1e-3), (name, off, usual)
        assert parameter.grad.stride() == plain[name].grad.stride()


def off_by(gradient: Tensor, exact: Tensor) -> float:
    return float((gradient - exact).norm() / exact.norm())


def test_copies_of_a_network_and_a_compiled_one():
    net = network("triton", 1)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert isinstance(twin.body.conv1, fused.FusedConv2d)
    x = torch.rand(2, 3, 4, 4, device=DEVICE)
    compiled = torch.compile(copy.deepcopy(net), backend="eager", fullgraph=True)
    plain = network("plain", 1)
    assert torch.equal(compiled(x).logits, plain(x).logits)


def test_a_trained_network_serves_on_a_cpu_without_kernels(tmp_path, large_launches, monkeypatch):
    net = network("triton", 1)
    optimiser = torch.optim.SGD(net.parameters(), 0.01)
    net(torch.rand(4, 3, 8, 8, device=DEVICE)).logits.square().sum().backward()
    optimiser.step()
    net.precision = "float32"
    images = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8)
    detector = Detector(net.eval().cpu(), MSP(), size=8).fit(None, images)
    before = detector(images)
    folder = detector.save(tmp_path / "detector")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    loaded = Detector.load(folder)
    assert loaded.net.spec["kernels"] == "triton"
    assert torch.allclose(loaded(images).score, before.score, atol=1e-5)
