"""Our 3x3 convolutions and what they sum against float64: on a GPU where there is one, else in Triton's interpreter."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from farout.nets import row_conv
from farout.nets.row_conv import Launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRET = ("TRITON_INTERPRET", "1" if DEVICE == "cpu" else "0")
with pytest.MonkeyPatch.context() as environment:  # triton looks when it is imported and when kernels are made
    environment.setenv(*INTERPRET)
    tl = pytest.importorskip("triton").language
    row_conv.kernels()
if ("Interpreted" in type(tl.sum).__name__) != (DEVICE == "cpu"):
    pytest.skip("triton was imported before it could be told whether to interpret", allow_module_level=True)

BF16 = torch.bfloat16
ROUNDING = 2**-7 if DEVICE == "cpu" else 2**-8  # the interpreter cuts instead of rounding
BLOCK = 16 if DEVICE == "cpu" else 64  # what the matrix instruction takes
KERNELS = {"row_conv": Launch("row_conv", BLOCK, 16, 4, 4, 2), "tap_conv": Launch("tap_conv", BLOCK, 16, 16, 4, 2)}


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setenv(*INTERPRET)
    monkeypatch.setattr(row_conv, "multiprocessors", lambda device: 2)


@pytest.fixture(params=KERNELS)
def launched(request, monkeypatch):
    """Small blocks, whatever the channels: a row's places and an image's rows are those of several programs."""
    every = {(c, d, sums): KERNELS[request.param] for c in (16, 32) for d in (16, 32) for sums in (False, True)}
    monkeypatch.setattr(row_conv, "LAUNCH", every)


def images(*shape: int) -> Tensor:
    return torch.randn(shape).to(DEVICE, BF16).to(memory_format=torch.channels_last)


def kernel(c_out: int, c_in: int) -> Tensor:
    return (0.2 * torch.randn(c_out, c_in, 3, 3)).to(DEVICE, BF16)


def assert_rounded(got: Tensor, want: Tensor) -> None:
    assert got.dtype == BF16
    assert got.shape == want.shape
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert ((got.double() - want).abs() <= ROUNDING * want.abs() + 1e-5).all()


SHAPES = [  # images, C_in, C_out, height, width
    (3, 16, 32, 5, 4),  # the last program has one image of four; two programs share the output channels
    (2, 32, 16, 3, 7),  # no power of two: places of a block stay empty
    (1, 16, 16, 1, 1),  # nothing but border
    (1, 16, 16, 6, 16),  # a row is a block
]


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_the_input_s_gradient_are_those_of_float64(shape, launched):
    torch.manual_seed(0)
    batch, c_in, c_out, H, W = shape
    x, g, weight = images(batch, c_in, H, W), images(batch, c_out, H, W), kernel(c_out, c_in)
    want = F.conv2d(x.double(), weight.double(), padding=1)
    turned = F.conv_transpose2d(g.double(), weight.double(), padding=1)
    layouts = (weight, weight.to(memory_format=torch.channels_last)) if H == 1 else (weight,)
    for laid in layouts:
        assert_rounded(row_conv.convolve(x, laid), want)
        assert_rounded(row_conv.input_gradient(g, laid), turned)


@pytest.mark.parametrize("with_add", [True, False])
def test_what_is_added_is_rounded_once_and_the_sums_are_of_what_is_stored(with_add, launched):
    torch.manual_seed(0)
    x, weight, origin = images(3, 16, 3, 5), kernel(32, 16), torch.randn(32, device=DEVICE)
    add = images(3, 32, 3, 5) if with_add else None
    s, parts = row_conv.convolve_with_sums(x, weight, add, origin)
    want = F.conv2d(x.double(), weight.double(), padding=1) + (0 if add is None else add.double())
    assert_rounded(s, want)
    off = s.double() - origin.double().view(-1, 1, 1)
    total, squares = parts.double().sum(2)
    assert parts.shape[2] > 1
    assert torch.allclose(total, off.sum((0, 2, 3)), rtol=1e-5, atol=1e-4)
    assert torch.allclose(squares, off.square().sum((0, 2, 3)), rtol=1e-5)


def test_two_calls_give_the_same_bits(launched):
    x, weight, origin = images(3, 16, 4, 4), kernel(16, 16), torch.zeros(16, device=DEVICE)
    one, two = (row_conv.convolve_with_sums(x, weight, None, origin) for _ in range(2))
    assert all(map(torch.equal, one, two))


def test_a_nan_reaches_its_neighbours_and_the_sums(launched):
    x = images(1, 16, 4, 4)
    x[0, 3, 0, 0] = torch.nan
    s, parts = row_conv.convolve_with_sums(x, kernel(16, 16), None, torch.zeros(16, device=DEVICE))
    seen = s.isnan().all(1)[0]
    assert seen[:2, :2].all()
    assert not seen[2:].any()
    assert not seen[:, 2:].any()
    assert parts.isnan().any(2).all()


@pytest.mark.parametrize("key", row_conv.LAUNCH)
def test_every_launch_of_the_table_runs(key):
    torch.manual_seed(0)
    (c_in, c_out, sums), launch = key, row_conv.LAUNCH[key]
    assert c_out % launch.width == 0
    assert launch.kernel == "row_conv" or c_in % launch.split == 0
    x, weight = images(1, c_in, 2, 2), kernel(c_out, c_in)
    origin = torch.zeros(c_out, device=DEVICE)
    got = row_conv.convolve_with_sums(x, weight, None, origin)[0] if sums else row_conv.convolve(x, weight)
    assert_rounded(got, F.conv2d(x.double(), weight.double(), padding=1))


def test_what_fits():
    assert row_conv.fits(32, 32, 32)
    assert row_conv.LAUNCH[32, 32, False].kernel == "row_conv"
    assert not row_conv.fits(32, 32, row_conv.LAUNCH[32, 32, False].block + 1)  # wider than a program's row
    assert not row_conv.fits(24, 32, 8)
    assert not row_conv.fits(16, 32, 8, sums=True)


@pytest.mark.parametrize(("batch", "ranges"), [(1, 8), (4, 4), (64, 1)])
def test_few_images_share_their_rows_among_more_programs(batch, ranges):
    launch = Launch("row_conv", 16, 16, 4, 4, 2)
    grid = row_conv._row_grid(launch, torch.empty(batch, 16, 8, 8), 16)
    assert grid.arguments[1] == ranges
    assert grid.programs == ranges * -(-batch // 2)
    assert ranges * grid.arguments[2] == 8
