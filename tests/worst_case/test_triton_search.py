"""The Triton kernels against the oracle: on a GPU where there is one, else in Triton's interpreter."""

import importlib
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from farout.errors import FaroutError
from farout.worst_case.search import COSTS, RULES, STEPS, SearchRule, Worst, autograd_search

kernel = importlib.import_module("farout.worst_case.triton_search")  # by name: the package holds a function so called

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRET = ("TRITON_INTERPRET", "1" if DEVICE == "cpu" else "0")
with pytest.MonkeyPatch.context() as environment:  # triton looks when it is imported and when kernels are made
    environment.setenv(*INTERPRET)
    tl = pytest.importorskip("triton").language
    kernel.kernels()
if ("Interpreted" in type(tl.sum).__name__) != (DEVICE == "cpu"):
    pytest.skip("triton was imported before it could be told whether to interpret", allow_module_level=True)


@pytest.fixture(autouse=True)
def interpret(monkeypatch):
    monkeypatch.setenv(*INTERPRET)


def problem(M: int = 2, D: int = 24, K: int = 10, bias: bool = True) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(M + D + K)
    head = nn.Linear(D, K, bias=bias).requires_grad_(False)
    head.weight *= 4  # a softmax far from uniform
    return head.to(DEVICE), torch.randn(M, D, device=DEVICE), torch.randn(M, D, device=DEVICE) * 0.01


def truth(head: nn.Linear, z: Tensor, p0: Tensor, gamma: float, steps: int, rule: SearchRule) -> Worst:
    double = nn.Linear(head.in_features, head.out_features, bias=head.bias is not None).double()
    double.load_state_dict(head.state_dict())
    price = torch.tensor(gamma, dtype=torch.float64)
    return autograd_search(double, z.double().cpu(), p0.double().cpu(), price, steps=steps, step_size=0.5, rule=rule)


def searched(head: nn.Linear, z: Tensor, p0: Tensor, gamma: float, steps: int, rule: SearchRule) -> Worst:
    price = torch.tensor(gamma, device=DEVICE)
    return kernel.triton_search(head, z, p0, price, steps=steps, step_size=0.5, rule=rule)


def tiled(
    head: nn.Linear, z: Tensor, p0: Tensor, gamma: float, steps: int, rule: SearchRule, **options: object
) -> Worst:
    price, before_last = torch.tensor(gamma, device=DEVICE), rule.charge == "before-last"
    at = kernel.Problem(z, p0, head.weight, head.bias, price, steps, 0.5, rule.cost, rule.step, before_last)
    return Worst(*kernel.tiled_search(at, **options))


def assert_close(got: Worst, want: Worst) -> None:
    for mine, true in zip(got, want, strict=True):
        error = (mine.double().cpu() - true).abs().max()
        assert error <= 1e-5 * true.abs().max() > 0  # a NaN fails, too


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("step", STEPS)
def test_rows_agree_with_the_oracle(cost, step):
    rule = SearchRule(cost=cost, step=step)
    case = (*problem(), 0.1, 2, rule)
    assert_close(searched(*case), truth(*case))


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("step", STEPS)
def test_tiles_agree_with_the_oracle(cost, step):
    rule = SearchRule(cost=cost, step=step, charge="before-last")
    case = (*problem(M=1), 0.1, 2, rule)
    assert_close(tiled(*case), truth(*case))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_several_tiles_and_slices_agree_with_the_oracle(rule):
    case = (*problem(M=2, D=160, K=140), 0.1, 1, rule)
    assert kernel._slices(160, 3, 8) == kernel._slices(140, 3, 8) == 2
    got = tiled(*case)
    assert_close(got, truth(*case))
    assert all(map(torch.equal, got, tiled(*case, path="split")))


def test_a_batch_of_several_row_tiles():
    case = (*problem(M=18), 0.0, 1, RULES["paper"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kernel.TILE, "BLOCK_M", 16)
        assert_close(tiled(*case), truth(*case))


@pytest.mark.parametrize("step", STEPS)
def test_no_price(step):
    case = (*problem(), 0.0, 2, SearchRule(step=step))
    assert_close(searched(*case), truth(*case))


@pytest.mark.parametrize("charge", ["final", "before-last"])
@pytest.mark.parametrize("search", [searched, tiled])
@pytest.mark.parametrize("steps", [0, 1])
def test_which_p_is_charged(search, charge, steps):
    case = (*problem(M=1), 0.1, steps, SearchRule(cost="mean-abs", step="unit", charge=charge))
    assert_close(search(*case), truth(*case))


def test_ten_steps_of_an_odd_shape_without_a_bias():
    case = (*problem(M=1, D=33, K=7, bias=False), 0.1, 10, RULES["reference"])
    assert_close(searched(*case), truth(*case))


@pytest.mark.parametrize("search", [searched, tiled])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
def test_zero_gradients_move_nothing_but_the_penalty(search, gamma):
    head, z, p0 = problem()
    head.weight.zero_()
    p0[0] = 0.0
    rule = SearchRule(cost="l2", step="unit")
    got = search(head, z, p0, gamma, 2, rule)
    assert torch.equal(got.p[0], torch.zeros_like(p0[0]))
    if gamma == 0:
        assert torch.equal(got.p, p0)
    assert_close(got, truth(head, z, p0, gamma, 2, rule))


def test_a_nan_is_not_hidden():
    head, z, p0 = problem(M=1)
    z[0, 3] = torch.inf  # logits of both signs: inf − inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, in the interpreter
        got = searched(head, z, p0, 0.1, 1, RULES["proximal"])
    assert got.p.isnan().all()


def test_operands_need_not_be_contiguous_nor_gamma_float32():
    head, z, p0 = problem()
    case = (head, z.T.contiguous().T, p0, 0.1, 1, RULES["paper"])
    price = torch.tensor(0.1, dtype=torch.float64)
    got = kernel.triton_search(*case[:3], price, steps=1, step_size=0.5, rule=case[-1])
    assert_close(got, truth(*case))


def test_a_barrier_that_never_opens_ends_in_nan():
    """The count starts far below what it needs, as if programs were missing."""
    arrived = torch.full((1,), -1000, dtype=torch.int32, device=DEVICE)
    got = tiled(*problem(M=2), 0.1, 1, RULES["paper"], arrived=arrived, patience=3)
    assert got.cost.isnan().all()


def test_which_heads_fit_the_registers():
    assert kernel.fits_rows(128, 100)
    assert kernel.fits_rows(512, 64)
    assert not kernel.fits_rows(512, 100)
    assert not kernel.fits_rows(2048, 1000)


def test_large_heads_are_tiled(monkeypatch):
    monkeypatch.setattr(kernel, "ROWS_LIMIT", 100)
    monkeypatch.setattr(kernel, "rows_search", None)
    case = (*problem(M=1), 0.1, 1, RULES["paper"])
    assert_close(searched(*case), truth(*case))


def test_the_operator_declares_its_shapes():
    with FakeTensorMode():
        z, weight = torch.empty(3, 24), torch.empty(10, 24)
        p, cost = torch.ops.farout.worst_case_search(z, z, weight, None, z.sum(), 1, 0.5, "l1", "unit", False)
    assert (p.shape, cost.shape, p.dtype, cost.dtype) == ((3, 24), (3,), torch.float32, torch.float32)


def test_compile_keeps_the_search_in_one_graph():
    """And descends through the head with p held fixed, as DAL does."""
    head, z, p0 = problem(M=1)
    gamma = torch.tensor(0.1, device=DEVICE)
    head.requires_grad_()

    def risk() -> Tensor:
        worst = kernel.triton_search(head, z, p0, gamma, steps=1, step_size=0.5, rule=RULES["reference"])
        return head(z + worst.p).square().sum() + worst.cost.sum()

    whole = torch.compile(risk, backend="aot_eager", fullgraph=True)
    compiled, eager = (torch.autograd.grad(run(), head.weight)[0] for run in (whole, risk))
    torch.testing.assert_close(compiled, eager)


def test_a_head_that_is_not_linear_is_refused():
    _, z, p0 = problem()
    with pytest.raises(TypeError, match="linear head, this one is a Sequential; use search='autograd'"):
        kernel.triton_search(nn.Sequential(), z, p0, z.sum(), steps=1, step_size=1.0, rule=RULES["paper"])


def test_other_precisions_are_refused():
    head, z, p0 = problem()
    with pytest.raises(TypeError, match="float32, this one has torch.float64; use search='closed-form'"):
        searched(head, z.double(), p0, 0.1, 1, RULES["paper"])


@pytest.mark.parametrize(("rows", "columns"), [(1, 24), (2, 23)])
def test_shapes_that_do_not_fit_are_refused(rows, columns):
    head, z, p0 = problem()
    with pytest.raises(ValueError, match=r"z \(2, 24\), p0 \(\d, \d+\) and weight \(10, 24\) do not fit"):
        searched(head, z, p0[:rows, :columns], 0.1, 1, RULES["paper"])


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match="no cost 'l0' with step 'unit'; use search='closed-form'"):
        searched(*problem(), 0.1, 1, SearchRule(cost="l0", step="unit"))


def test_cpu_tensors_are_refused_unless_interpreted(monkeypatch):
    head, z, p0 = problem()
    monkeypatch.setattr(kernel, "interpreted", lambda: False)
    with pytest.raises(FaroutError, match="runs on a GPU, these embeddings are on cpu; use search='closed-form'"):
        kernel.triton_search(
            head.cpu(), z.cpu(), p0.cpu(), torch.tensor(0.1), steps=1, step_size=1.0, rule=RULES["paper"]
        )


def test_without_triton_the_error_says_what_to_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(FaroutError, match="needs triton, which does not import here .*; use search='closed-form'"):
        kernel.kernels.__wrapped__()
