"""A norm with its convolution against the two apart and float64: on a GPU where there is one, else interpreted."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from farout.nets import fused_conv, fused_norm, norm_conv, row_conv
from farout.nets.kernels import KERNELS
from farout.nets.norm_conv import Summands, plain_norm_conv, triton_norm_conv
from farout.nets.wrn import PreActBlock, Stage

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRET = ("TRITON_INTERPRET", "1" if DEVICE == "cpu" else "0")
with pytest.MonkeyPatch.context() as environment:  # triton looks when it is imported and when kernels are made
    environment.setenv(*INTERPRET)
    tl = pytest.importorskip("triton").language
    for module in (fused_norm, fused_conv, row_conv):
        module.kernels()
if ("Interpreted" in type(tl.sum).__name__) != (DEVICE == "cpu"):
    pytest.skip("triton was imported before it could be told whether to interpret", allow_module_level=True)

BF16 = torch.bfloat16
ROUNDING = 2**-7 if DEVICE == "cpu" else 2**-8  # the interpreter cuts instead of rounding
SEED = torch.tensor([123456789, -987654321, 0, 0], dtype=torch.int32, device=DEVICE)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """The interpreter takes time by the program, not by the element."""
    monkeypatch.setenv(*INTERPRET)
    large = {name: {"elements": 4096, "num_warps": 4} for name in fused_norm.LAUNCH}
    monkeypatch.setattr(fused_norm, "LAUNCH", large)
    monkeypatch.setattr(fused_conv, "ADD", {"elements": 4096, "parts": 4, "num_warps": 4})
    for module in (fused_norm, fused_conv, row_conv):
        monkeypatch.setattr(module, "multiprocessors", lambda device: 1)


def images(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype).to(memory_format=torch.channels_last)


def module_of(made: nn.Module) -> nn.Module:
    """With bfloat16 convolutions and norms that do something."""
    for part in made.modules():
        if isinstance(part, nn.Conv2d):
            part.to(BF16)
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.5)
    return made.to(DEVICE)


def pair(c_in: int = 32, c_out: int = 32) -> tuple[nn.BatchNorm2d, nn.Conv2d]:
    conv = fused_conv.FusedConv2d(c_in, c_out, 3, padding=1, bias=False)
    made = module_of(nn.Sequential(nn.BatchNorm2d(c_in), conv))
    return made[0], made[1]


def gradients(out: list[Tensor], given: list[Tensor], module: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(out, [*inputs, *module.parameters()], given))


def farther(got: Tensor, usual: Tensor, exact: Tensor) -> bool:
    """Whether `got` is three times as far from float64 as what torch's bfloat16 makes of it; cutting doubles that."""
    off, allowed = ((one.double() - exact).norm() / exact.norm() for one in (got, usual))
    return not off <= 3 * allowed + ROUNDING  # a NaN is farther, too


def run(stage: Stage, x: Tensor, g: list[Tensor], seeds: list[Tensor | None]) -> list[Tensor]:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = stage(x, None, seeds)
    moved = [b.clone() for name, b in stage.named_buffers() if "running" in name]
    return [out[0] + out[1], *gradients(list(out), g, stage, [x]), *moved]


def test_a_stage_is_as_near_to_float64_as_the_plain_one(monkeypatch):
    """A block that changes width, then one that does not and has an open end."""
    torch.manual_seed(0)
    calls = []
    take = norm_conv._NormConv.apply
    monkeypatch.setattr(norm_conv, "_NormConv", SimpleNamespace(apply=lambda *a: calls.append(a) or take(*a)))
    stage = module_of(Stage(2, 16, 32, 1, 0.0, KERNELS["triton"]))
    x, g = images(3, 16, 4, 4), [images(3, 32, 4, 4) for _ in range(2)]
    plain = copy.deepcopy(stage)
    for block in plain.layer:
        block.kernels = KERNELS["plain"]
    exact = copy.deepcopy(plain).double()
    mine, usual = (run(one, x, g, [None] * 2) for one in (copy.deepcopy(stage), plain))
    oracle = run(exact, x.double(), [one.double() for one in g], [None] * 2)
    assert len(calls) == 3
    assert [call[7] is None for call in calls] == [True, False, False]  # moments are handed on
    for n, (got, other, want) in enumerate(zip(mine, usual, oracle, strict=True)):
        assert got.dtype == other.dtype
        assert not farther(got, other, want), n


@pytest.mark.parametrize("with_add", [True, False])
def test_it_is_the_two_apart_with_dropout_and_a_shortcut(with_add, monkeypatch):
    torch.manual_seed(0)
    (bn, conv), dropout, x = pair(), nn.Dropout(0.3), images(3, 32, 3, 3).requires_grad_()
    residual = images(3, 32, 3, 3).requires_grad_()
    add = images(3, 32, 3, 3).requires_grad_() if with_add else None
    ds, g = images(3, 32, 3, 3), images(3, 32, 3, 3)
    results = []
    for together in (True, False):
        norm, other = copy.deepcopy(bn), copy.deepcopy(conv)
        if not together:
            monkeypatch.setattr(norm_conv, "usable", lambda *given: False)
        s, out = triton_norm_conv(norm, other, Summands(x, residual), add, dropout, SEED, origin=bn.running_mean)
        assert (out.moments is None) != together
        assert (out.residual is None) == (together or not with_add)
        whole = nn.ModuleList((norm, other))
        inputs = [x, residual] if add is None else [x, residual, add]
        made = gradients([s, out.total()], [ds, g], whole, inputs)
        results.append([s, out.total(), *made, norm.running_mean, norm.running_var])
    for got, want in zip(*results, strict=True):
        assert (got.double() - want.double()).abs().max() <= 2 * ROUNDING * want.abs().max()
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][2], results[0][3])  # x's gradient is the residual's


def test_moments_are_those_of_what_came_out():
    torch.manual_seed(0)
    (bn, conv), nxt, add = pair(), nn.BatchNorm2d(32).to(DEVICE), (images(3, 32, 3, 3) + 50).to(BF16)
    _, out = triton_norm_conv(bn, conv, Summands(images(3, 32, 3, 3)), add)
    stats = fused_norm.finish_statistics(*out.moments, nxt, 27)
    s = out.x.double()
    assert torch.allclose(stats[0].double(), s.mean((0, 2, 3)), rtol=1e-5)
    assert torch.allclose(stats[1].double(), (s.var((0, 2, 3), correction=0) + nxt.eps).rsqrt(), rtol=1e-3)
    assert torch.allclose(nxt.running_mean.double(), 0.1 * s.mean((0, 2, 3)), rtol=1e-5)


def test_the_running_mean_is_read_as_origin_before_it_moves():
    (bn, conv), nxt = pair(), nn.BatchNorm2d(32).to(DEVICE)
    nxt.running_mean.fill_(3.0)
    _, out = triton_norm_conv(bn, conv, Summands(images(2, 32, 3, 3)), origin=nxt.running_mean)
    want = 0.9 * nxt.running_mean.double() + 0.1 * out.x.double().mean((0, 2, 3))
    fused_norm.triton_norm(nxt, out.x, moments=out.moments)
    assert torch.allclose(nxt.running_mean.double(), want, rtol=1e-5)


def test_two_calls_give_the_same_bits():
    (bn, conv), x, add, g = pair(), images(3, 32, 3, 3).requires_grad_(), images(3, 32, 3, 3), images(3, 32, 3, 3)
    results = []
    for _ in range(2):
        s, out = triton_norm_conv(bn, conv, Summands(x), add, nn.Dropout(0.5), SEED)
        results.append([out.x, *torch.autograd.grad([s, out.x], [x, bn.weight, bn.bias, conv.weight], [g, g])])
    assert all(map(torch.equal, *results))


def test_a_shortcut_alone_has_its_gradient():
    (bn, conv), x = pair(), images(2, 32, 2, 2).requires_grad_()
    s, _ = triton_norm_conv(bn, conv, Summands(x), images(2, 32, 2, 2))
    (2 * s).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))
    assert bn.weight.grad is None
    assert conv.weight.grad is None


def test_a_second_derivative_is_refused():
    (bn, conv), x = pair(), images(2, 32, 2, 2).requires_grad_()
    _, out = triton_norm_conv(bn, conv, Summands(x), images(2, 32, 2, 2))
    (gradient,) = torch.autograd.grad(out.x.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# ---- where the kernels do not fit


def plain_cases():
    bn, conv = pair()
    wide, x = pair(128, 64), images(2, 32, 2, 2)
    add = images(2, 32, 2, 2)
    return {
        "eval": (copy.deepcopy(bn).eval(), conv, x, add),
        "all ranks": (nn.SyncBatchNorm(32).to(DEVICE).eval(), conv, x, add),
        "frozen": (bn, copy.deepcopy(conv).requires_grad_(False), x, add),
        "another convolution": (bn, nn.Conv2d(32, 32, 3, padding=1, bias=False).to(DEVICE, BF16), x, add),
        "strides": (bn, fused_conv.FusedConv2d(32, 32, 3, 2, 1, bias=False).to(DEVICE, BF16), x, None),
        "widths": (*wide, images(2, 128, 2, 2), images(2, 64, 2, 2)),
        "float32": (bn, copy.deepcopy(conv).float(), x.float(), add.float()),
        "layout of the shortcut": (bn, conv, x, add.contiguous()),
        "type of the shortcut": (bn, conv, x, add.float()),
        "nothing to centre at": (bn, conv, x, None),
    }


@pytest.mark.parametrize("case", plain_cases())
def test_elsewhere_it_is_a_norm_and_a_convolution(case):
    bn, conv, x, add = plain_cases()[case]
    bn.train(bn.training and case != "all ranks")
    twin = copy.deepcopy(bn)
    s, out = triton_norm_conv(bn, conv, Summands(x), add)
    assert s is x or torch.equal(s, x)
    assert out.residual is add
    assert out.moments is None
    want = plain_norm_conv(twin, conv, Summands(x), add)[1].x
    assert (out.x.double() - want.double()).abs().max() <= 4 * ROUNDING * want.abs().max()


def test_without_launches_or_gradients_it_is_a_norm_and_a_convolution(monkeypatch):
    bn, conv = pair()
    x, add = images(2, 32, 2, 2), images(2, 32, 2, 2)
    with torch.no_grad():
        assert triton_norm_conv(bn, conv, Summands(x), add)[1].moments is None
    assert triton_norm_conv(bn, conv, Summands(x), add)[1].moments is not None
    monkeypatch.delitem(row_conv.LAUNCH, (32, 32, True))
    assert triton_norm_conv(bn, conv, Summands(x), add)[1].moments is None


def test_moments_are_of_no_use_to_a_plain_norm():
    """A norm of another kind comes next: it makes its own sums."""
    (bn, conv), nxt = pair(), nn.BatchNorm2d(32, momentum=None).to(DEVICE)
    _, out = triton_norm_conv(bn, conv, Summands(images(2, 32, 2, 2)), images(2, 32, 2, 2))
    y = fused_norm.triton_norm(nxt, out.x, moments=out.moments)[1]
    assert torch.equal(y, fused_norm.plain_norm(copy.deepcopy(nxt), out.x)[1])


def test_a_block_alone_gives_its_sum():
    block = module_of(PreActBlock(32, 32, 1, 0.0, KERNELS["triton"]))
    plain = copy.deepcopy(block)
    plain.kernels = KERNELS["plain"]
    x = images(2, 32, 3, 3)
    assert (block(x) - plain(x)).abs().max() <= 4 * ROUNDING * plain(x).abs().max()


def test_nobody_traces_or_transforms_it():
    (bn, conv), x, add = pair(), images(2, 32, 2, 2), images(2, 32, 2, 2)

    def call(x: Tensor) -> Tensor:
        return triton_norm_conv(bn, conv, Summands(x), add)[1].total()

    compiled = torch.compile(call, backend="eager", fullgraph=True)(x)
    with torch.no_grad():  # by torch's convolution
        assert torch.equal(compiled, plain_norm_conv(bn, conv, Summands(x), add)[1].total())
