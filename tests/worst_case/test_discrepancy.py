"""Wasserstein distances against closed forms, scipy and each other; Theorem 3 with both sides measured."""

import doctest
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from farout.errors import FaroutError, MissingExtraError
from farout.losses import ce_to_uniform
from farout.worst_case import discrepancy as module
from farout.worst_case.certificate import head_constants
from farout.worst_case.discrepancy import estimate, risk_bound, sliced, wasserstein

seeds = st.integers(0, 10_000)
sizes = st.integers(1, 12)
costs = pytest.mark.parametrize("cost", ["l1", "l2"])
ORDER = {"l1": 1, "l2": 2}


def cloud(seed, rows, features=3):
    return torch.randn(rows, features, generator=torch.Generator().manual_seed(seed)).double()


@pytest.fixture
def no_pot(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)  # what `import ot` then raises is an ImportError


@costs
def test_a_shifted_cloud_is_as_far_as_its_shift(cost):
    a, shift = cloud(0, 40, features=5), torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0]).double()
    assert wasserstein(a, a + shift, cost) == pytest.approx(float(shift.norm(p=ORDER[cost])), rel=1e-12)


@given(seed=seeds, n=sizes, m=sizes)
@settings(deadline=None, max_examples=30)
def test_one_feature_is_scipys_distance(seed, n, m):
    a, b = cloud(seed, n, features=1), 2 * cloud(seed + 1, m, features=1)
    witness = wasserstein_distance(a.flatten().numpy(), b.flatten().numpy())
    assert wasserstein(a, b) == pytest.approx(witness, abs=1e-12)
    assert wasserstein(a, b, "l2") == pytest.approx(witness, abs=1e-12)
    assert sliced(a, b, projections=3) == pytest.approx(witness, abs=1e-12)  # every direction is ±1


def test_gaussians_far_apart_are_as_far_as_their_means():
    """Mass that all moves one way costs the difference of the means, whatever the shapes."""
    a, b = cloud(0, 60), 0.3 * cloud(1, 45) + 50
    assert wasserstein(a, b) == pytest.approx(float((b.mean(0) - a.mean(0)).sum()), rel=1e-12)


@costs
@given(seed=seeds, n=sizes, m=sizes)
@settings(deadline=None, max_examples=20)
def test_a_metric(cost, seed, n, m):
    a, b, c = cloud(seed, n), cloud(seed + 1, m) + 0.5, cloud(seed + 2, 5) - 0.5
    between = wasserstein(a, b, cost)
    assert between > 0
    assert wasserstein(b, a, cost) == pytest.approx(between, rel=1e-9)
    assert between <= wasserstein(a, c, cost) + wasserstein(c, b, cost) + 1e-9


@costs
def test_the_same_set_in_another_order_is_at_zero(cost):
    a = 100 + cloud(0, 30)
    assert wasserstein(a, a.flip(0), cost) == 0
    assert wasserstein(a, torch.cat([a, a]), cost) == pytest.approx(0, abs=1e-12)
    assert sliced(a, a.flip(0)) == 0


@costs
def test_the_simplex_agrees_with_the_assignment(cost, monkeypatch):
    a, b = cloud(0, 50, features=8), cloud(1, 50, features=8) + 0.3
    called = []
    monkeypatch.setattr(module, "_simplex", lambda *x, own=module._simplex: called.append(x) or own(*x))
    by_simplex = wasserstein(a, b, cost)
    assert len(called) == 1
    monkeypatch.setitem(sys.modules, "ot", None)
    assert wasserstein(a, b, cost) == pytest.approx(by_simplex, rel=1e-12)
    assert len(called) == 1


def test_precision_and_gradients_of_the_input_do_not_matter():
    a, b = cloud(0, 20).float().requires_grad_(), cloud(1, 20).float()
    exact = wasserstein(a.detach().double(), b.double())
    assert wasserstein(a, b) == pytest.approx(exact, rel=1e-12)
    assert estimate(a, b, draws=2).value > 0
    assert wasserstein(a.half(), b.half()) == pytest.approx(exact, rel=1e-3)


def test_without_pot_unequal_sets_ask_for_it(no_pot):
    message = r"the distance between sets of 4 and 3 rows needs POT, .* pip install 'farout\[transport\]'"
    with pytest.raises(MissingExtraError, match=message):
        wasserstein(cloud(0, 4), cloud(1, 3))
    assert estimate(cloud(0, 9), cloud(1, 8), draws=2).value > 0  # its subsamples are of equal size
    assert sliced(cloud(0, 4), cloud(1, 3)) > 0


@pytest.mark.filterwarnings("ignore:numItermax")
def test_an_unfinished_simplex_is_no_answer(monkeypatch):
    monkeypatch.setattr(module, "_PIVOTS", 1)
    with pytest.raises(FaroutError, match=r"no exact distance between sets of \(30, 20\) rows"):
        wasserstein(cloud(0, 30), cloud(1, 20))


def test_in_low_dimension_the_interval_holds_the_full_distance():
    a, b = cloud(0, 400, features=2), cloud(1, 300, features=2) + 5
    found = estimate(a, b, size=100, draws=8, seed=3)
    assert found.low < wasserstein(a, b) < found.high
    assert found.low < found.value < found.high
    assert (found.size, found.draws) == (100, 8)


def test_in_high_dimension_the_estimate_is_too_large_and_says_so():
    """The interval is about subsamples, and misses; from below the features bound the full distance all the same."""
    a, b = cloud(0, 300, features=32), cloud(1, 300, features=32) + 0.3
    exact = wasserstein(a, b)
    found = estimate(a, b, size=40, draws=6)
    assert found.low > exact
    assert found.least < exact < found.value
    assert found.floor > 0.8 * exact  # most of it is there without any discrepancy


@costs
def test_the_floor_is_what_no_discrepancy_looks_like(cost):
    a, fresh, other = cloud(0, 400, features=6), cloud(1, 400, features=6), cloud(2, 400, features=6) + 1
    same, differ = estimate(a, fresh, cost, size=80, draws=8), estimate(a, other, cost, size=80, draws=8)
    assert same.value == pytest.approx(same.floor, rel=0.1)
    assert differ.floor == same.floor
    assert differ.floor < differ.low
    assert same.least < 0.5 * same.floor
    exact = wasserstein(a, other, cost)
    assert 0.9 * exact < differ.least < exact < differ.high


@costs
@given(seed=seeds, n=sizes, m=sizes)
@settings(deadline=None, max_examples=20)
def test_the_features_bound_the_distance_from_below(cost, seed, n, m):
    a, b = cloud(seed, n + 1), 2 * cloud(seed + 1, m + 1) + 0.3
    found = estimate(a, b, cost, draws=2)
    alone = [wasserstein_distance(x.numpy(), y.numpy()) for x, y in zip(a.T, b.T, strict=True)]
    assert found.least == pytest.approx(np.linalg.norm(alone, ord=ORDER[cost]), abs=1e-12)
    assert found.least <= wasserstein(a, b, cost) + 1e-12
    shifted = estimate(a, a + 2, cost, draws=2)
    assert shifted.least == pytest.approx(wasserstein(a, a + 2, cost))


def test_the_floor_shrinks_with_the_size():
    a, b = cloud(0, 400, features=4), cloud(1, 400, features=4)
    small, large = (estimate(a, b, size=size, draws=4) for size in (20, 150))
    assert large.floor < 0.7 * small.floor
    assert large.value < small.value


def test_the_interval_is_students():
    """Over the draws themselves, redone one by one with scipy's quantile of 2 degrees of freedom, 4.3027."""
    a, b = cloud(0, 60), cloud(1, 50) + 1
    three = estimate(a, b, size=20, draws=3, seed=7)
    values = []
    for draw in range(3):
        stream = module.generator(7, draw)
        rows_a, rows_b = (torch.randperm(n, generator=stream)[:20] for n in (60, 50))
        values.append(wasserstein(a[rows_a], b[rows_b]))
    half = 4.302653 * np.std(values, ddof=1) / math.sqrt(3)
    assert three.value == pytest.approx(np.mean(values))
    assert [three.low, three.high] == pytest.approx([np.mean(values) - half, np.mean(values) + half])
    narrow = estimate(a, b, size=20, draws=3, seed=7, confidence=0.5)
    assert three.low < narrow.low < narrow.high < three.high


def test_an_estimate_is_a_function_of_its_seed():
    a, b = cloud(0, 50), cloud(1, 50)
    state = torch.get_rng_state()
    one, again, other = (estimate(a, b, size=10, draws=2, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.value != other.value
    assert torch.equal(torch.get_rng_state(), state)


def test_half_of_the_smaller_set_is_drawn_at_most():
    assert estimate(cloud(0, 31), cloud(1, 90), draws=2).size == 15
    assert estimate(cloud(0, 90), cloud(1, 3), draws=2).size == 1


@given(seed=seeds, n=sizes, m=sizes)
@settings(deadline=None, max_examples=20)
def test_sliced_is_the_mean_of_scipys_distances(seed, n, m):
    a, b = cloud(seed, n), cloud(seed + 1, m) + 0.5
    theta = torch.randn(5, 3, generator=module.generator(seed), dtype=torch.float64)
    theta /= theta.norm(dim=1, keepdim=True)
    witness = np.mean([wasserstein_distance((a @ t).numpy(), (b @ t).numpy()) for t in theta])
    assert sliced(a, b, projections=5, seed=seed) == pytest.approx(witness, abs=1e-12)
    assert sliced(a, b, projections=5, seed=seed) <= wasserstein(a, b, "l2") + 1e-12


def test_sliced_of_a_shift_is_its_length_on_a_random_axis():
    """E|θ_1| = Γ(D/2) / (√π Γ((D+1)/2)), near √(2/πD)."""
    a, shift = cloud(0, 50, features=16), torch.arange(16).double()
    share = math.gamma(8) / (math.sqrt(math.pi) * math.gamma(8.5))
    assert share == pytest.approx(math.sqrt(2 / (math.pi * 16)), rel=0.02)
    found = sliced(a, a + shift, projections=4000, seed=1)
    assert found == pytest.approx(share * float(shift.norm()), rel=0.03)


def test_chunks_change_nothing(monkeypatch):
    a, b = cloud(0, 30), cloud(1, 23) + 1
    whole = sliced(a, b, projections=20)
    monkeypatch.setattr(module, "_CHUNK", 160)  # 3 projections at a time, 2 in the last
    assert sliced(a, b, projections=20) == pytest.approx(whole, rel=1e-12)
    assert estimate(a.tile(1, 2), b.tile(1, 2), draws=2).least == pytest.approx(2 * estimate(a, b, draws=2).least)


def head(seed, classes=4, features=3):
    return cloud(seed + 3, classes, features), cloud(seed + 4, classes, 1).flatten()


@costs
@given(seed=seeds, n=sizes, m=sizes, rho=st.floats(0, 5), scale=st.floats(0.1, 20))
@settings(deadline=None, max_examples=30)
def test_the_bound_holds(cost, seed, n, m, rho, scale):
    weight, bias = head(seed)
    z_out, z_aux = scale * cloud(seed, n), cloud(seed + 1, m)
    found = risk_bound(z_out, z_aux, weight, bias, rho, cost)
    assert found.real <= found.bound + 1e-9
    assert found.real == pytest.approx(float(ce_to_uniform(z_out @ weight.T + bias).mean()))


@costs
def test_the_bound_is_made_of_its_parts(cost):
    weight, bias = head(0)
    z_out, z_aux = cloud(0, 6) + 1, cloud(1, 5)
    slope = float(head_constants(weight).l if cost == "l1" else head_constants(weight).l2)
    near, distance = float(ce_to_uniform(z_aux @ weight.T + bias).mean()), wasserstein(z_out, z_aux, cost)
    radii = [0.0, distance / 2, 2 * distance]
    found = risk_bound(z_out, z_aux, weight, bias, radii, cost)
    assert found.worst.tolist() == pytest.approx([near + rho * slope for rho in radii])
    assert found.transport.tolist() == pytest.approx([distance * slope, distance / 2 * slope, 0])
    torch.testing.assert_close(found.bound, found.worst + found.transport)
    torch.testing.assert_close(found.bound[0], found.bound[1])  # a larger ball only moves it between its parts
    alone = risk_bound(z_out, z_aux, weight, bias, radii[1], cost)
    assert alone.bound.shape == ()
    assert float(alone.bound) == float(found.bound[1])


def test_the_bound_is_reached_far_out_along_the_steepest_feature():
    """So no smaller slope will do: L is the right constant, and the paper's inequality the right form."""
    weight = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 0.0]]).double()
    z_aux = torch.tensor([[100.0, 0.0], [120.0, 0.0]]).double()
    found = risk_bound(z_aux + torch.tensor([40.0, 0.0]).double(), z_aux, weight, None, 3.0)
    assert float(found.bound) == pytest.approx(float(found.real), abs=1e-9)


def test_a_known_distance_is_taken_as_it_is(monkeypatch):
    weight, bias = head(1)
    z_out, z_aux = cloud(0, 6), cloud(1, 5)
    monkeypatch.setattr(module, "wasserstein", None)
    found = risk_bound(z_out.float(), z_aux.float(), weight.float(), bias.float(), 1.0, w1=4.0)
    assert float(found.transport) == pytest.approx(3 * float(head_constants(weight).l))
    assert all(x.dtype == torch.float64 for x in found)


GOOD = {"a": torch.zeros(4, 3), "b": torch.zeros(5, 3)}


@pytest.mark.parametrize("function", [wasserstein, estimate, sliced])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": torch.zeros(3)}, r"they are \(3,\), \(5, 3\)"),
        ({"b": torch.zeros(5, 2)}, r"must be \(N, D\) and \(M, D\), not empty, but they are \(4, 3\), \(5, 2\)"),
        ({"b": torch.zeros(0, 3)}, r"they are \(4, 3\), \(0, 3\)"),
        ({"a": torch.full((4, 3), torch.nan)}, "set a holds 12 values that are not finite"),
        ({"b": torch.tensor([[0.0, 1.0, torch.inf]])}, "set b holds 1 values that are not finite"),
    ],
)
def test_sets_that_cannot_be_compared(function, bad, message):
    with pytest.raises(ValueError, match=message):
        function(**GOOD | bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wasserstein(torch.zeros(5001, 1), torch.zeros(2, 1)), "at most 5000 rows .* a has 5001 and b 2: use"),
        (lambda: wasserstein(**GOOD, cost="l3"), "unknown cost 'l3': it is one of 'l1', 'l2'"),
        (lambda: estimate(**GOOD, cost="l3"), "unknown cost 'l3'"),
        (lambda: estimate(**GOOD, size=0), "size must be between 1 and 5000, but it is 0"),
        (lambda: estimate(**GOOD, size=6000), "size must be between 1 and 5000, but it is 6000"),
        (lambda: estimate(**GOOD, draws=1), "draws must be at least 2, .* but it is 1"),
        (lambda: estimate(**GOOD, confidence=1.0), "confidence must be between 0 and 1, but it is 1.0"),
        (lambda: estimate(torch.zeros(1, 3), torch.zeros(9, 3)), "at least 2 rows a set, but a has 1 and b 9"),
        (lambda: sliced(**GOOD, projections=0), "projections must be at least 1, but it is 0"),
        (lambda: risk_bound(*GOOD.values(), torch.eye(3), None, 1.0, w1=-1.0), "w1 must be .* but it is -1.0"),
        (lambda: risk_bound(*GOOD.values(), torch.eye(3), None, 1.0, w1=math.nan), "w1 must be .* but it is nan"),
        (lambda: risk_bound(*GOOD.values(), torch.eye(3), None, -1.0), "rho must be finite and at least 0"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_docstring_examples():
    result = doctest.testmod(module)
    assert result.attempted >= 1
    assert result.failed == 0
