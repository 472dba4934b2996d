"""The fused norm against float64, op by op: on a GPU where there is one, else in Triton's interpreter."""

import copy
import pickle
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

from farout.errors import ConfigError, FaroutError
from farout.nets import WideResNet
from farout.nets import fused_norm as fused
from farout.nets.kernels import KERNELS
from farout.nets.launches import runs_on
from farout.nets.make import make_net
from farout.nets.norm_conv import plain_norm_conv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRET = ("TRITON_INTERPRET", "1" if DEVICE == "cpu" else "0")
with pytest.MonkeyPatch.context() as environment:  # triton looks when it is imported and when kernels are made
    environment.setenv(*INTERPRET)
    tl = pytest.importorskip("triton").language
    fused.kernels()
if ("Interpreted" in type(tl.sum).__name__) != (DEVICE == "cpu"):
    pytest.skip("triton was imported before it could be told whether to interpret", allow_module_level=True)


@pytest.fixture(autouse=True)
def small_launches(monkeypatch):
    """Blocks of 4 rows of 16 and two programs: a tiny batch goes several times round every loop."""
    monkeypatch.setenv(*INTERPRET)
    monkeypatch.setattr(fused, "LAUNCH", {name: {"elements": 64, "num_warps": 1} for name in fused.LAUNCH})
    monkeypatch.setattr(fused, "multiprocessors", lambda device: 1)
    monkeypatch.setattr(fused, "PROGRAMS", {"statistics": 2, "reduce_gradient": 2})


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(shape).to(DEVICE, dtype).to(memory_format=torch.channels_last)
    return made.requires_grad_()


def batch_norm(C: int = 16) -> nn.BatchNorm2d:
    bn = nn.BatchNorm2d(C)
    with torch.no_grad():
        bn.weight.uniform_(0.5, 1.5)
        bn.bias.normal_()
        bn.running_mean.normal_()
    return bn.to(DEVICE)


def double(bn: nn.BatchNorm2d) -> nn.BatchNorm2d:
    return copy.deepcopy(bn).double()


def as_double(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().double().requires_grad_()


def is_fused(y: Tensor) -> bool:
    return type(y.grad_fn).__name__ == "_FusedNormBackward"


def assert_close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    error = (got.double() - want).abs().max()
    assert error <= tolerance * want.abs().max() > 0  # a NaN fails, too


SEED = torch.tensor([123456789, -987654321, 0, 0], dtype=torch.int32, device=DEVICE)


def hash_by_hand(index: int, key: int, other: int) -> int:
    """In Python's own integers."""
    word = 0xFFFFFFFF
    h = index & word ^ key
    h = ((h ^ h >> 16) * 0x7FEB352D & word) ^ other
    h = (h ^ h >> 15) * 0x846CA68B & word
    return h ^ h >> 16


def kept_by_hand(M: int, C: int, threshold: int) -> Tensor:
    """The mask (M, C)."""
    kept, half = torch.empty(M, C, dtype=torch.bool), (M + 1) // 2
    other = hash_by_hand(int(SEED[1]), 0, 0)
    key = hash_by_hand(int(SEED[0]), other, 0)
    for m in range(M):
        for c in range(C):
            h = hash_by_hand(m % half * C + c, key, other)
            kept[m, c] = (h >> 16 if m >= half else h & 0xFFFF) >= threshold
    return kept


@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_all_numbers_agree_with_float64(with_residual, rate):
    torch.manual_seed(0)
    shape = (3, 16, 3, 3)  # 27 rows: an odd number, and no multiple of a block
    x, bn = images(*shape), batch_norm()
    residual, ds = (images(*shape), images(*shape).detach()) if with_residual else (None, None)
    dy, oracle, x64, residual64 = images(*shape).detach(), double(bn), as_double(x), as_double(residual)

    s, y = fused.triton_norm(bn, x, residual, nn.Dropout(rate), SEED)
    assert is_fused(y)
    s64, y64 = fused.plain_norm(oracle, x64, residual64)
    if rate:
        threshold = round(0.3 * 65536)
        kept = kept_by_hand(27, 16, threshold).view(3, 3, 3, 16).permute(0, 3, 1, 2).to(DEVICE)
        y64 = y64 * kept * 65536 / (65536 - threshold)
    assert_close(s, s64)
    assert_close(y, y64)

    torch.autograd.backward([s, y] if with_residual else [y], [ds, dy] if with_residual else [dy])
    given = [ds.double(), dy.double()] if with_residual else [dy.double()]
    torch.autograd.backward([s64, y64] if with_residual else [y64], given)
    assert_close(x.grad, x64.grad)
    if with_residual:
        assert_close(residual.grad, residual64.grad)
    assert_close(bn.weight.grad, oracle.weight.grad)
    assert_close(bn.bias.grad, oracle.bias.grad)
    assert_close(bn.running_mean, oracle.running_mean)
    assert_close(bn.running_var, oracle.running_var)
    assert bn.num_batches_tracked == oracle.num_batches_tracked == 1


def test_bfloat16_rounds_once():
    torch.manual_seed(0)
    x, residual = (images(2, 16, 2, 2, dtype=torch.bfloat16) for _ in range(2))
    bn = batch_norm()
    oracle = double(bn)
    s, y = fused.triton_norm(bn, x, residual)
    assert s.dtype == y.dtype == torch.bfloat16
    x64 = as_double(s)  # statistics are those of s as stored
    _, y64 = fused.plain_norm(oracle, x64)
    dy = torch.randn_like(y)
    y.backward(dy)
    y64.backward(dy.double())
    ulp = 2**-7  # the interpreter cuts instead of rounding
    assert ((y.double() - y64).abs() <= ulp * y64.abs() + 1e-5).all()
    assert ((x.grad.double() - x64.grad).abs() <= ulp * x64.grad.abs() + 1e-5).all()
    assert_close(bn.weight.grad, oracle.weight.grad)
    assert_close(bn.running_var, oracle.running_var)


def test_a_large_mean_costs_no_digits():
    x, bn = images(3, 16, 3, 3), batch_norm()
    x = (x.detach() + 1000).requires_grad_()
    oracle = double(bn)
    _, y = fused.triton_norm(bn, x)
    assert_close(y, fused.plain_norm(oracle, as_double(x))[1], 1e-4)  # float32 itself holds 1000 to 6e-5
    assert_close(bn.running_var, oracle.running_var)


def test_two_calls_give_the_same_bits():
    x, residual, dy = (images(2, 16, 3, 3).detach().requires_grad_() for _ in range(3))
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        bn = nn.BatchNorm2d(16).to(DEVICE)
        s, y = fused.triton_norm(bn, x, residual, nn.Dropout(0.5))
        results.append([s, y, *torch.autograd.grad(y, [x, residual, bn.weight, bn.bias], dy), bn.running_var])
    assert all(map(torch.equal, *results))


def test_what_is_not_used_has_no_gradient_to_give():
    x, bn = images(2, 16, 2, 2), batch_norm()
    s, _ = fused.triton_norm(bn, x)
    (2 * s).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))
    assert bn.weight.grad is None


def test_a_second_derivative_is_refused():
    x = images(2, 16, 2, 2)
    _, y = fused.triton_norm(batch_norm(), x)
    (gradient,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_nan_is_not_hidden():
    x = images(2, 16, 2, 2).detach()
    x[0, 3, 0, 0] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, in the interpreter
        _, y = fused.triton_norm(batch_norm(), x)
    assert y[:, 3].isnan().all()
    assert not y[:, :3].isnan().any()


# ---- the mask


def mask(seed: Tensor, rate: float, M: int = 4096, C: int = 16) -> Tensor:
    """Which elements (M, C) are kept, from the kernel that applies."""
    s = torch.ones(1, C, M, 1, device=DEVICE).contiguous(memory_format=torch.channels_last)
    stats, ones = torch.tensor([[0.0], [1.0]], device=DEVICE).repeat(1, C), torch.ones(C, device=DEVICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fused.LAUNCH, "apply", {"elements": M * C // 2, "num_warps": 4 if DEVICE == "cpu" else 32})
        y = fused.forward_apply(s, stats, ones, 0 * ones, fused.Mask(seed, fused.threshold(rate)))
    return (y > 0)[0, :, :, 0].T


def assert_independent(one: Tensor, two: Tensor, rate: float) -> None:
    """Kept both: (1 − rate)² of the elements, within four standard errors."""
    both, expected = (one & two).double().mean().item(), (1 - rate) ** 2
    assert abs(both - expected) < 4 * (expected * (1 - expected) / one.numel()) ** 0.5


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_the_rate_is_kept_to(rate):
    kept = mask(SEED, rate)
    off = 4 * (rate * (1 - rate) / kept.numel()) ** 0.5
    assert kept.double().mean().item() == pytest.approx(1 - rate, abs=off)
    for part in (kept[:2048], kept[2048:], kept[::2], kept[:, ::2]):
        assert part.double().mean().item() == pytest.approx(1 - rate, abs=2 * off)


def test_neighbours_halves_layers_and_seeds_are_independent():
    torch.manual_seed(0)
    seeds = fused.draw_seeds(2, torch.device(DEVICE))
    kept = mask(seeds[0], 0.3)
    for rows, columns in [(1, 0), (0, 1), (2, 0), (0, 2), (0, 4), (0, 8), (16, 0), (256, 0), (2048, 0)]:
        assert_independent(kept, kept.roll((rows, columns), (0, 1)), 0.3)
    assert_independent(kept, mask(seeds[1], 0.3), 0.3)
    for bit in (0, 1, 7, 15, 31):
        for word in (0, 1):
            near = seeds[0].clone()
            near[word] ^= (1 << bit) - (1 << 32 if bit == 31 else 0)
            assert_independent(kept, mask(near, 0.3), 0.3)


def test_columns_are_uncorrelated_over_rows():
    signs = mask(SEED, 0.5).double() * 2 - 1
    correlation = signs.T @ signs / len(signs) - torch.eye(16, device=DEVICE)
    assert correlation.abs().max() < 5 / len(signs) ** 0.5


def test_seeds_come_from_the_global_generator():
    x, bn, dropout = images(2, 16, 3, 3), batch_norm(), nn.Dropout(0.5)
    torch.manual_seed(1)
    one, two = (fused.triton_norm(bn, x, None, dropout)[1] for _ in range(2))
    torch.manual_seed(1)
    again = fused.triton_norm(bn, x, None, dropout)[1]
    assert torch.equal(one, again)
    assert not torch.equal(one, two)


# ---- where the kernels do not fit


def plain_cases():
    eval_bn = nn.BatchNorm2d(16).eval()
    return {
        "eval": (eval_bn, images(2, 16, 2, 2), nn.Dropout(0.0)),
        "channels": (nn.BatchNorm2d(24), images(2, 24, 2, 2), nn.Dropout(0.0)),
        "few channels": (nn.BatchNorm2d(4), images(2, 4, 2, 2), nn.Dropout(0.0)),
        "layout": (nn.BatchNorm2d(16), torch.randn(2, 16, 2, 2, requires_grad=True), nn.Dropout(0.0)),
        "float64": (nn.BatchNorm2d(16).double(), images(2, 16, 2, 2, dtype=torch.float64), nn.Dropout(0.0)),
        "affine": (nn.BatchNorm2d(16, affine=False), images(2, 16, 2, 2), nn.Dropout(0.0)),
        "momentum": (nn.BatchNorm2d(16, momentum=None), images(2, 16, 2, 2), nn.Dropout(0.0)),
        "untracked": (nn.BatchNorm2d(16, track_running_stats=False), images(2, 16, 2, 2), nn.Dropout(0.0)),
        "everything dropped": (nn.BatchNorm2d(16), images(2, 16, 2, 2), nn.Dropout(1.0)),
    }


@pytest.mark.parametrize("case", plain_cases())
def test_elsewhere_it_is_the_plain_norm(case):
    bn, x, dropout = plain_cases()[case]
    bn, x = bn.to(DEVICE), x.detach().to(DEVICE).requires_grad_()
    s, y = fused.triton_norm(bn, x, None, dropout)
    assert not is_fused(y)
    assert torch.equal(y, fused.plain_norm(bn, x, None, dropout)[1])
    assert s is x


def test_residual_of_another_layout_or_type():
    bn, x = nn.BatchNorm2d(16).to(DEVICE), images(2, 16, 2, 2)
    for residual in (torch.randn(2, 16, 2, 2, device=DEVICE), images(2, 16, 2, 2, dtype=torch.bfloat16)):
        assert not is_fused(fused.triton_norm(bn, x, residual)[1])


def test_one_value_a_channel_is_torch_s_error():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        fused.triton_norm(nn.BatchNorm2d(16).to(DEVICE), images(1, 16, 1, 1))


def test_on_a_cpu_it_is_the_plain_norm(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    x = images(2, 16, 2, 2).detach().cpu().requires_grad_()
    assert not is_fused(fused.triton_norm(nn.BatchNorm2d(16), x)[1])
    assert fused.layer_seeds(x, 2) == [None, None]


def test_nobody_traces_or_transforms_the_kernels():
    bn, x = batch_norm(), images(2, 16, 2, 2)
    assert runs_on(x)
    assert not torch.func.vmap(lambda x: x * runs_on(x))(x).any()
    assert not is_fused(torch.compile(fused.triton_norm, backend="eager", fullgraph=True)(bn, x)[1])


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(FaroutError, match="needs triton.*use kernels: plain"):
        fused.kernels.__wrapped__()


# ---- the network


def networks(dropout: float) -> tuple[WideResNet, WideResNet]:
    torch.manual_seed(0)
    net = WideResNet(depth=10, width=1, dropout=dropout, kernels="triton").to(DEVICE)
    plain = WideResNet(depth=10, width=1, dropout=dropout).to(DEVICE)
    plain.load_state_dict(net.state_dict())
    return net.to(memory_format=torch.channels_last), plain


@pytest.fixture
def large_launches(monkeypatch, small_launches):
    """The interpreter takes time by the program, not by the element."""
    monkeypatch.setattr(fused, "LAUNCH", {name: {"elements": 4096, "num_warps": 4} for name in fused.LAUNCH})
    monkeypatch.setattr(fused, "PROGRAMS", {"statistics": 1, "reduce_gradient": 1})


def test_a_network_is_the_plain_one(large_launches):
    net, plain = networks(0.0)
    x, used = torch.randn(2, 3, 8, 8, device=DEVICE), []
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for module, into in zip((net, plain), inputs, strict=True):
        out = module(into)
        out.square().sum().backward()
        used.append(out)
    assert_close(used[0], used[1].double(), 1e-4)
    assert_close(inputs[0].grad, inputs[1].grad.double(), 1e-3)
    for (name, mine), other in zip(net.named_parameters(), plain.parameters(), strict=True):
        assert (mine.grad - other.grad).abs().max() <= 1e-3 * other.grad.abs().max(), name
    for (name, mine), other in zip(net.named_buffers(), plain.buffers(), strict=True):
        assert torch.allclose(mine.double(), other.double(), rtol=1e-4, atol=1e-5), name


def test_a_network_draws_a_seed_for_each_block():
    net, seen = networks(0.5)[0], []

    def spy(call):
        def spied(*args, seed=None, **options):
            seen.append(seed)
            return call(*args, **options)

        return spied

    for block in [stage.layer[0] for stage in (net.block1, net.block2, net.block3)]:
        block.kernels = block.kernels._replace(norm=spy(fused.plain_norm), norm_conv=spy(plain_norm_conv))
    net.bn1.eval()  # the one norm that is not spied on
    torch.manual_seed(3)
    net(torch.randn(2, 3, 4, 4, device=DEVICE))
    drawn = [seed for seed in seen if seed is not None]
    assert len(seen) == 6  # two norms a block, one of them with dropout
    assert len({tuple(seed.tolist()) for seed in drawn}) == len(drawn) == 3
    net.eval()(torch.randn(2, 3, 4, 4, device=DEVICE))
    assert seen[6:] == [None] * 6


def test_kernels_are_a_value_of_the_recipe():
    spec = {"name": "wrn", "depth": 10, "width": 1, "kernels": "triton", "num_classes": 4}
    net = make_net(spec)
    assert net.spec == spec
    assert net.body.kernels is KERNELS["triton"]
    copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    assert all(twin.body.block3.layer[0].kernels == KERNELS["triton"] for twin in copies)
    plain = make_net({**spec, "kernels": "plain"})
    assert plain.state_dict().keys() == net.state_dict().keys()
    with pytest.raises(ConfigError, match="unknown kernels 'tritan'; did you mean 'triton'"):
        make_net({**spec, "kernels": "tritan"})


def test_statistics_of_all_ranks_are_left_to_torch():
    x = torch.zeros(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    assert fused.usable(x, None, nn.BatchNorm2d(8), 0.0)
    assert not fused.usable(x, None, nn.SyncBatchNorm(8), 0.0)
