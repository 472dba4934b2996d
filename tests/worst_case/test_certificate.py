"""The certificate against linear programs, which solve the worst case over a finite support exactly."""

import doctest
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from farout.losses import ce_to_uniform
from farout.worst_case import certificate as module
from farout.worst_case.certificate import certificate, efficiency, head_constants, worst_risk

RADII = torch.tensor([0.0, 0.05, 0.3, 1.0, 4.0], dtype=torch.float64)
ORDER = {"l1": 1, "l2": 2}
seeds = st.integers(0, 10_000)


def loss(z, weight, bias):
    return ce_to_uniform(z @ weight.T + bias)


def toy(seed, m=4, features=2, classes=4):
    """A few features after a ReLU and a head with one entry that makes switching off pay: L₋ > L₊."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, features, generator=generator).double()
    weight[0, 0] -= 3
    bias = 2 * torch.randn(classes, generator=generator).double()
    z = (1.5 * torch.randn(m, features, generator=generator) + 0.5).relu().double()
    return z, weight, bias


def corners(z, top=None):
    """Each feature off, as it is, or at the top: (m, 2^D or 3^D, D)."""
    choices = [torch.zeros_like(z), z] + ([] if top is None else [top.expand_as(z)])
    picks = itertools.product(choices, repeat=z.shape[1])
    return torch.stack([torch.stack([x[:, j] for j, x in enumerate(pick)], dim=1) for pick in picks], dim=1)


def support(z, weight, domain, top=None):
    """Where the LP may move each sample (m, S, D): to corners, on a grid, and far out."""
    features = z.shape[1]
    limit = top if domain == "box" else torch.full((features,), 4.0, dtype=z.dtype)
    axes = [torch.linspace(0, float(t), 7, dtype=z.dtype) for t in limit]
    grid = [point.expand_as(z) for point in torch.cartesian_prod(*axes).view(-1, features)]
    if domain == "box":
        return torch.cat([corners(z, top), torch.stack(grid, dim=1)], dim=1)
    head = weight - weight.mean(dim=0)
    rays = [*torch.eye(features, dtype=z.dtype), *torch.nn.functional.normalize(head.clamp(min=0))]
    if domain == "reals":
        rays += [*-torch.eye(features, dtype=z.dtype), *torch.nn.functional.normalize(head)]
    far = [z + t * ray for ray in rays for t in (1.0, 10.0, 1e3, 1e7)]
    return torch.cat([corners(z), torch.stack(grid + far, dim=1)], dim=1)


def linear_program(z, weight, bias, rho, cost, points):
    """max Σ π ℓ over transports π (m, S) of the samples to their points, of mean cost at most rho."""
    m, size = points.shape[:2]
    gain = loss(points, weight, bias).flatten().numpy()
    length = (points - z[:, None]).norm(p=ORDER[cost], dim=2).flatten().numpy()
    rows = np.kron(np.eye(m), np.ones((1, size)))
    # gains and lengths up to 1e7: measure mass to far points in moved length, so that the LP is well scaled
    scale = np.maximum(length, 1.0)
    result = linprog(-gain / scale, A_ub=(length / scale)[None], b_ub=[rho], A_eq=rows / scale, b_eq=np.full(m, 1 / m))
    assert result.status == 0
    return -result.fun


@pytest.mark.parametrize("cost", ["l1", "l2"])
@pytest.mark.parametrize("seed", range(4))
def test_strong_duality_on_the_reals(cost, seed):
    z, weight, bias = toy(seed)
    z = z - 0.7  # features of both signs
    bounds = worst_risk(z, weight, bias, RADII, cost=cost)
    assert torch.equal(bounds.lower, bounds.upper)
    for rho, exact in zip(RADII.tolist(), bounds.upper.tolist(), strict=True):
        value = linear_program(z, weight, bias, rho, cost, support(z, weight, "reals"))
        assert value <= exact + 1e-9
        assert value == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize(
    ("domain", "cost", "least", "most"),  # the plain form ρL has medians 1.4, 2.2, 1.35, 2.2
    [
        ("nonnegative", "l1", 0.999, 1.05),
        ("box", "l1", 0.97, 1.25),
        ("nonnegative", "l2", 0.999, 1.34),
        ("box", "l2", 0.93, 1.5),
    ],
)
def test_bounds_hold_and_are_tight(domain, cost, least, most):
    shares = []
    for seed in range(8):
        z, weight, bias = toy(seed)
        top = z.amax(dim=0) + 0.5 * (seed % 2)
        bounds = worst_risk(z, weight, bias, RADII, cost=cost, domain=domain, upper=top if domain == "box" else None)
        points, risk = support(z, weight, domain, top), float(loss(z, weight, bias).mean())
        for rho, lower, upper in zip(RADII.tolist(), *(x.tolist() for x in bounds), strict=True):
            value = linear_program(z, weight, bias, rho, cost, points)
            assert lower - 1e-4 <= value <= upper + 1e-9
            if rho > 0:
                shares.append(((lower - risk) / (value - risk), (upper - risk) / (value - risk)))
    low, high = np.transpose(shares)
    assert np.mean(low) > least
    assert np.median(high) < most


def test_the_lower_end_finds_nearly_the_best_corners():
    """A box's worst case sits on corners, so an LP over all of them is exact: V itself, in five dimensions."""
    shares = []
    for seed in range(5):
        z, weight, bias = toy(seed, m=6, features=5, classes=6)
        lower, risk = worst_risk(z, weight, bias, RADII, domain="box").lower, loss(z, weight, bias).mean()
        points = corners(z, z.amax(dim=0))
        for rho, found in zip(RADII.tolist()[1:], lower.tolist()[1:], strict=True):
            exact = linear_program(z, weight, bias, rho, "l1", points)
            assert found <= exact + 1e-9
            shares.append((found - float(risk)) / (exact - float(risk)))
    assert np.mean(shares) > 0.99


def test_the_counterexample_has_its_five_gains():
    """One feature, D = (−3, 1, 1, 1): switching it off pays 3 a unit until it is off, then the ray pays 1."""
    weight, bias = torch.tensor([[-3.0], [1.0], [1.0], [1.0]]).double(), torch.tensor([20.0, 0, 0, 0]).double()
    z = torch.ones(1, 1, dtype=torch.float64)
    risk = loss(z, weight, bias).mean()
    assert float(risk) == pytest.approx(12, abs=1e-6)
    bounds = worst_risk(z, weight, bias, [0.25, 0.5, 1, 2, 5], domain="nonnegative")
    for bound in bounds:
        assert (bound - risk).tolist() == pytest.approx([0.75, 1.5, 3, 4, 7], abs=1e-6)
    on_the_reals = worst_risk(z, weight, bias, [0.25, 0.5, 1, 2, 5])
    assert (on_the_reals.upper - risk).tolist() == pytest.approx([0.75, 1.5, 3, 6, 15])


def test_the_second_counterexample_grows_by_l_plus():
    weight, z = torch.tensor([[-3.0], [1.0], [1.0], [1.0]]).double(), torch.ones(1, 1, dtype=torch.float64)
    risk = loss(z, weight, torch.zeros(4)).mean()
    bounds = worst_risk(z, weight, None, RADII, domain="nonnegative")
    assert bounds.lower.tolist() == pytest.approx((risk + RADII).tolist())
    assert (bounds.upper >= bounds.lower).all()
    assert (bounds.upper[2:] < risk + 3 * RADII[2:]).all()


@given(seed=seeds)
@settings(deadline=None, max_examples=10)
def test_exact_where_growing_pays_most(seed):
    z, weight, bias = toy(seed)
    weight = -weight  # mostly L₋ < L₊
    constants = head_constants(weight)
    bounds = worst_risk(z, weight, bias, RADII, domain="nonnegative")
    if constants.l_minus <= constants.l_plus:
        exact = loss(z, weight, bias).mean() + RADII * constants.l
        assert torch.equal(bounds.lower, bounds.upper)
        torch.testing.assert_close(bounds.upper, exact)
    else:
        assert (bounds.lower <= bounds.upper).all()


@given(seed=seeds)
@settings(deadline=None, max_examples=10)
def test_never_looser_than_the_plain_forms(seed):
    z, weight, bias = toy(seed, features=3)
    head = weight - weight.mean(dim=0)
    risk, constants = loss(z, weight, bias).mean(), head_constants(weight)
    endless = {"l1": constants.l_plus, "l2": head.clamp(min=0).norm(dim=1).amax()}
    for cost, steepest in (("l1", constants.l), ("l2", constants.l2)):
        half_line = worst_risk(z, weight, bias, RADII, cost=cost, domain="nonnegative")
        box = worst_risk(z, weight, bias, RADII, cost=cost, domain="box")
        assert (half_line.lower >= risk + RADII * endless[cost] - 1e-12).all()
        assert (half_line.upper <= risk + RADII * steepest + 1e-12).all()
        assert (box.upper <= half_line.upper + 1e-12).all()
        assert (box.lower >= risk - 1e-12).all()


def test_a_box_is_a_finite_world():
    z, weight, bias = toy(0)
    head, top = weight - weight.mean(dim=0), z.amax(dim=0)
    bounds = worst_risk(z, weight, bias, 1e6, domain="box")
    corners = torch.cartesian_prod(*[torch.stack([torch.zeros_like(t), t]) for t in top])
    largest = loss(corners, weight, bias).max()
    assert bounds.lower <= largest + 1e-12
    assert largest <= bounds.upper + 1e-12
    centred = bias - bias.mean()
    torch.testing.assert_close(bounds.upper, torch.logsumexp(head.clamp(min=0) @ top + centred, dim=0))


@given(seed=seeds, scale=st.floats(0.01, 3))
@settings(deadline=None, max_examples=15)
def test_no_transport_exceeds_its_domain(seed, scale):
    """Random moves within the domain gain at most what the upper end allows for their mean cost."""
    z, weight, bias = toy(seed, m=12, features=5)
    moves = scale * torch.randn(z.shape, generator=torch.Generator().manual_seed(seed + 1)).double()
    targets = {"reals": z + moves, "nonnegative": (z + moves).relu()}
    targets["box"] = torch.minimum(targets["nonnegative"], z.amax(dim=0))
    for (domain, target), cost in itertools.product(targets.items(), ORDER):
        rho = (target - z).norm(p=ORDER[cost], dim=1).mean()
        upper = worst_risk(z, weight, bias, rho, cost=cost, domain=domain).upper
        assert loss(target, weight, bias).mean() <= upper + 1e-9


@pytest.mark.parametrize("domain", ["nonnegative", "box"])
def test_few_rows_choose_prices_that_suit_all(domain, monkeypatch):
    z, weight, bias = toy(4, m=1500, features=6)
    quick = worst_risk(z, weight, bias, RADII, domain=domain)
    monkeypatch.setattr(module, "_SAMPLE", 1500)  # every price on every row
    full = worst_risk(z, weight, bias, RADII, domain=domain)
    assert (quick.lower <= full.lower + 1e-12).all()
    assert (quick.upper >= full.upper - 1e-12).all()
    for a, b in zip(quick, full, strict=True):
        torch.testing.assert_close(a - full.lower[0], b - full.lower[0], rtol=0.005, atol=1e-9)


@pytest.mark.parametrize("domain", ["reals", "nonnegative", "box"])
def test_chunks_change_nothing(domain, monkeypatch):
    z, weight, bias = toy(1, m=50, features=6)
    whole = worst_risk(z, weight, bias, RADII, domain=domain)
    monkeypatch.setattr(module, "_CHUNK", 21)  # 3 rows at a time, 2 in the last
    torch.testing.assert_close(worst_risk(z, weight, bias, RADII, domain=domain), whole)


@pytest.mark.parametrize("domain", ["reals", "nonnegative", "box"])
def test_radii_come_one_by_one_or_together(domain):
    z, weight, bias = toy(2)
    together = worst_risk(z, weight, bias, RADII, domain=domain)
    assert together.lower.shape == together.upper.shape == RADII.shape
    for number, rho in enumerate(RADII.tolist()):
        alone = worst_risk(z, weight, bias, rho, domain=domain)
        assert alone.lower.shape == ()
        torch.testing.assert_close(alone, type(alone)(*(x[number] for x in together)))
    assert together.lower[0] == together.upper[0] == pytest.approx(float(loss(z, weight, bias).mean()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("domain", ["reals", "nonnegative", "box"])
def test_low_precision_features(domain, dtype):
    z, weight, bias = (x.to(dtype) for x in toy(5))
    low = worst_risk(z, weight, bias, RADII, domain=domain)
    exact = worst_risk(z.double(), weight.double(), bias.double(), RADII, domain=domain)
    torch.testing.assert_close(low, exact, rtol=1e-5, atol=1e-5)


@given(seed=seeds)
@settings(deadline=None, max_examples=30)
def test_head_constants_are_attained_and_never_exceeded(seed):
    _, weight, bias = toy(seed, features=3)
    head, constants = weight - weight.mean(dim=0), head_constants(weight)
    start = torch.zeros(3, dtype=torch.float64)

    def slope(direction):
        """Of ℓ far out along a direction."""
        return (loss(start + 2e5 * direction, weight, bias) - loss(start + 1e5 * direction, weight, bias)) / 1e5

    axes = torch.eye(3, dtype=torch.float64)
    steepest_row = head[head.norm(dim=1).argmax()]
    torch.testing.assert_close(max(slope(e) for e in axes), constants.l_plus)
    torch.testing.assert_close(max(slope(-e) for e in axes), constants.l_minus)
    torch.testing.assert_close(slope(steepest_row / steepest_row.norm()), constants.l2)
    a, b = torch.randn(2, 64, 3, generator=torch.Generator().manual_seed(seed)).double() * 3
    rise = (loss(a, weight, bias) - loss(b, weight, bias)).abs()
    assert (rise <= constants.l * (a - b).norm(p=1, dim=1) + 1e-12).all()
    assert (rise <= constants.l2 * (a - b).norm(dim=1) + 1e-12).all()


def test_the_penalty_touches_one_column():
    weight = torch.tensor([[5.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 0.0]], requires_grad=True)
    head_constants(weight).l.backward()
    assert weight.grad.tolist() == [[0.75, 0.0], [-0.25, 0.0], [-0.25, 0.0], [-0.25, 0.0]]


@pytest.mark.parametrize("rows", [torch.ones(3, 2), torch.full((3, 2), 0.1), torch.randn(1, 4)])
def test_a_constant_head_has_no_slope(rows):
    constants = torch.stack(head_constants(rows))
    assert (constants >= 0).all()
    assert (constants < 1e-6).all()


@pytest.mark.parametrize("cost", ["l1", "l2"])
@given(seed=seeds, step=st.floats(0.01, 5), steps=st.integers(1, 10))
@settings(deadline=None, max_examples=10)
def test_gradient_searches_stay_below_the_certificate(cost, seed, step, steps):
    z, weight, bias = toy(seed, m=8, features=5)
    p = torch.full_like(z, 1e-4, requires_grad=True)
    for _ in range(steps):
        (slope,) = torch.autograd.grad(loss(z + p, weight, bias).sum(), p)
        p = (p + step * slope).detach().requires_grad_()
    found = certificate(z, p, weight, bias, cost=cost)
    gain = found.moved - found.risk
    assert gain <= found.bound - found.risk + 1e-12
    assert not found.bound.requires_grad
    constant = head_constants(weight).l if cost == "l1" else head_constants(weight).l2
    torch.testing.assert_close(found.cost, p.detach().norm(p=ORDER[cost], dim=1).mean())
    torch.testing.assert_close(found.efficiency, gain / (found.cost * constant))
    assert 0 < found.efficiency <= 1
    torch.testing.assert_close(found.bound, worst_risk(z, weight, bias, found.cost, cost=cost).upper)


def test_a_far_move_along_the_steepest_axis_is_fully_efficient():
    z, weight, _ = toy(0)
    head = (weight - weight.mean(dim=0)).flatten()
    steepest = head.abs().argmax()
    p = torch.zeros_like(z)
    p[:, steepest % 2] = 1e6 * head[steepest].sign()
    assert float(certificate(z, p, weight, None).efficiency) == pytest.approx(1, abs=1e-5)


def test_efficiency_of_nothing_of_a_loss_and_of_rounding():
    assert efficiency(gain=0.0, mean_cost=0.0, constant=2.0) == 0
    assert efficiency(gain=-1.0, mean_cost=1.0, constant=2.0) == 0
    assert efficiency(gain=2.0000002, mean_cost=1.0, constant=2.0) == 1
    assert efficiency(gain=torch.tensor(1.0), mean_cost=torch.tensor(1.0), constant=torch.tensor(2.0)) == 0.5


GOOD = {"z": torch.ones(2, 3), "weight": torch.eye(3), "bias": torch.zeros(3), "rho": 1.0}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"domain": "ball"}, "unknown domain 'ball': it is one of 'reals', 'nonnegative', 'box'"),
        ({"cost": "l3"}, "unknown cost 'l3': it is one of 'l1', 'l2'"),
        ({"rho": -1.0}, "rho must be finite and at least 0, but it is -1.0"),
        ({"rho": [1.0, torch.nan]}, r"but it is \[1.0, nan\]"),
        ({"rho": torch.ones(2, 2)}, r"one dimension, but its shape is \(2, 2\)"),
        ({"z": -torch.ones(2, 3), "domain": "nonnegative"}, "'nonnegative' needs .* the smallest is -1"),
        ({"z": -torch.ones(2, 3), "domain": "box"}, "'box' needs .* the smallest is -1"),
        ({"domain": "box", "upper": torch.tensor([1.0, 0.5, 2.0])}, "upper is 0.5 for feature 1, .* reaches 1"),
        ({"domain": "box", "upper": torch.inf}, "upper must be finite"),
        ({"upper": 2.0}, "upper is the corner of domain='box', but the domain is 'reals'"),
        ({"z": torch.ones(2, 4)}, r"they are \(2, 4\), \(3, 3\), \(3,\)"),
        ({"bias": torch.zeros(2)}, r"they are \(2, 3\), \(3, 3\), \(2,\)"),
        ({"z": torch.ones(0, 3), "bias": None}, r"they are \(0, 3\), \(3, 3\), None"),
        ({"z": torch.full((2, 3), torch.nan)}, "z holds 6 values that are not finite"),
    ],
)
def test_errors_name_what_came(bad, message):
    with pytest.raises(ValueError, match=message):
        worst_risk(**{**GOOD, **bad})


def test_a_certificate_knows_its_costs():
    with pytest.raises(ValueError, match="unknown cost 'sum'"):
        certificate(GOOD["z"], GOOD["z"], GOOD["weight"], None, cost="sum")


def test_docstring_examples():
    result = doctest.testmod(module)
    assert result.attempted >= 4
    assert result.failed == 0
