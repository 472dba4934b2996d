"""The vertex oracle against a plain loop, random moves of the same budget, and its fast path."""

import doctest
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farout.losses import ce_to_uniform
from farout.worst_case import vertex as module
from farout.worst_case.certificate import certificate, worst_risk
from farout.worst_case.vertex import vertex, vertex_product

seeds = st.integers(0, 10_000)
budgets = st.floats(0, 20)
both = pytest.mark.parametrize("oracle", [vertex, vertex_product])


def toy(seed, m=6, features=5, classes=4):
    generator = torch.Generator().manual_seed(seed)
    z, weight = torch.randn(m, features, generator=generator), torch.randn(classes, features, generator=generator)
    return z.double(), weight.double(), torch.randn(classes, generator=generator).double()


def loss(z, weight, bias):
    return ce_to_uniform(z @ weight.T + bias)


@both
@given(seed=seeds, budget=budgets)
@settings(deadline=None, max_examples=30)
def test_is_the_plain_loop_over_vertices(oracle, seed, budget):
    z, weight, bias = toy(seed)
    corners = budget * torch.cat([torch.eye(5), -torch.eye(5)]).double()
    p, value = oracle(z, weight, bias, budget)
    for row, move, found in zip(z, p, value, strict=True):
        risks = [float(loss(row + corner, weight, bias)) for corner in corners]
        assert float(found) == pytest.approx(max(risks), abs=1e-10)
        assert float(loss(row + move, weight, bias)) == pytest.approx(max(risks), abs=1e-10)
        assert float(move.abs().sum()) == budget
        assert int((move != 0).sum()) == (budget > 0)


@given(seed=seeds, budget=budgets)
@settings(deadline=None, max_examples=30)
def test_no_move_of_the_same_budget_gains_more(seed, budget):
    z, weight, bias = toy(seed)
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randn(64, *z.shape, generator=generator).double() ** 5  # some nearly along an axis
    moves *= budget / moves.norm(p=1, dim=2, keepdim=True)
    _, value = vertex(z, weight, bias, budget)
    assert (loss(z + moves, weight, bias) <= value + 1e-9).all()


@given(seed=seeds, steps=st.integers(1, 5), step=st.floats(0.1, 3))
@settings(deadline=None, max_examples=20)
def test_no_search_gains_more_than_its_own_lengths_allow(seed, steps, step):
    z, weight, bias = toy(seed)
    p = torch.zeros_like(z)
    for _ in range(steps):
        softmax = ((z + p) @ weight.T + bias).softmax(dim=1)
        p = p + step * (softmax - 1 / 4) @ weight
    _, value = vertex(z, weight, bias, p.norm(p=1, dim=1))
    assert (loss(z + p, weight, bias) <= value + 1e-9).all()


@given(seed=seeds, budget=budgets)
@settings(deadline=None, max_examples=20)
def test_stays_below_the_ball_of_the_same_radius(seed, budget):
    z, weight, bias = toy(seed)
    p, value = vertex(z, weight, bias, budget)
    assert value.mean() <= worst_risk(z, weight, bias, budget).upper + 1e-9
    assert certificate(z, p, weight, bias).efficiency <= 1


def test_each_sample_may_have_its_budget():
    z, weight, bias = toy(0)
    radius = torch.tensor([0.0, 0.1, 1.0, 2.0, 5.0, 9.0]).double()
    p, value = vertex(z, weight, bias, radius)
    for i in range(6):
        alone, risk = vertex(z[i : i + 1], weight, bias, float(radius[i]))
        torch.testing.assert_close(p[i : i + 1], alone)
        torch.testing.assert_close(value[i : i + 1], risk)


def test_chunks_change_nothing(monkeypatch):
    z, weight, bias = toy(1, m=50)
    whole = vertex(z, weight, bias, 2.0)
    monkeypatch.setattr(module, "_CHUNK", 60)  # 3 rows at a time, 2 in the last
    torch.testing.assert_close(vertex(z, weight, bias, 2.0), whole)


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_moves_keep_the_dtype_of_the_features(oracle, dtype):
    z, weight, bias = (x.to(dtype) for x in toy(2))
    p, value = oracle(z, weight, bias, 1.0)
    exact_p, exact = vertex(z.double(), weight.double(), bias.double(), 1.0)
    assert p.dtype == dtype
    torch.testing.assert_close(p.double(), exact_p)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)


@both
def test_a_head_without_bias_and_no_gradient(oracle):
    z, weight, _ = toy(3)
    weight.requires_grad_()
    p, value = oracle(z, weight, None, 1.0)
    torch.testing.assert_close(value, loss(z + p, weight, torch.zeros(4)).detach())
    assert not p.requires_grad
    assert not value.requires_grad


def test_a_wide_range_is_exact_or_refused():
    """Class 1 starts 900 nats behind and gains 2000: exp(-900) is 0 in float64, but the maximum is there."""
    z, weight = torch.zeros(1, 1).double(), torch.tensor([[-1.0], [1.0]]).double()
    bias = torch.tensor([450.0, -450.0]).double()
    p, value = vertex(z, weight, bias, 1000.0)
    assert p.item() == -1000.0
    assert value.item() == 1450.0
    assert vertex_product(z, weight, bias, 1000.0)[1].isnan().all()
    # just inside its range the product is right, however far apart the logits start
    for oracle in (vertex, vertex_product):
        assert oracle(z, weight, bias, 299.0)[1].item() == pytest.approx(749.0)


@both
@pytest.mark.parametrize("budget", [-1.0, math.inf, math.nan])
def test_impossible_budgets(oracle, budget):
    with pytest.raises(ValueError, match=f"budget must be finite and at least 0, but it is {budget}"):
        oracle(*toy(0), budget)


@both
def test_shapes_that_do_not_fit(oracle):
    with pytest.raises(ValueError, match=r"they are \(2, 3\), \(4, 5\)"):
        oracle(torch.zeros(2, 3), torch.zeros(4, 5), None, 1.0)


def test_the_product_takes_one_budget():
    with pytest.raises(ValueError, match=r"one budget for all, not \(6,\): use vertex"):
        vertex_product(*toy(0), torch.ones(6))


def test_docstring_examples():
    result = doctest.testmod(module)
    assert result.attempted >= 1
    assert result.failed == 0
