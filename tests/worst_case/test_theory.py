"""The paper's claims and what follows from them for a linear head, each checked where it can be computed exactly.

Strong duality, the Lipschitz constants and the counter-example are in test_certificate.py, the vertices in
test_vertex.py, why the released code's γ is 0 in test_search.py, Theorem 3 in test_discrepancy.py.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from farout.losses import ce_to_uniform
from farout.worst_case import PAPER, PROXIMAL, REFERENCE, RULES, DualVariable, closed_form_search
from farout.worst_case.certificate import certificate, head_constants, worst_risk
from farout.worst_case.discrepancy import wasserstein
from farout.worst_case.vertex import vertex

FLOAT64 = torch.float64
ORDER = {"l1": 1.0, "l2": 2.0}
seeds = st.integers(0, 10_000)
costs = pytest.mark.parametrize("cost", ["l1", "l2"])
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=FLOAT64)


def linear(seed, features=128, classes=10, scale=0.25):
    """The size of the CIFAR-10 head; L is about 0.9."""
    head = nn.Linear(features, classes, dtype=FLOAT64).requires_grad_(False)
    head.weight.copy_(scale * normal(seed, classes, features))
    head.bias.copy_(scale * normal(seed + 1, classes))
    return head


def risk(head, z):
    return ce_to_uniform(head(z))


def search(rule, head, z, gamma, steps=10, step_size=1.0):
    torch.manual_seed(0)
    price = torch.tensor(gamma, dtype=FLOAT64)
    return closed_form_search(head, z, rule.draw(z), price, steps=steps, step_size=step_size, rule=rule)


# ---- Lemma 1: the ball of radius ρ around P_A brings it nearer to P_O by ρ, and by no more


def between(x, mass_x, y, mass_y, cost):
    """W1 of two weighted sets."""
    ot = pytest.importorskip("ot")
    costs = torch.cdist(x, y, p=ORDER[cost], compute_mode="donot_use_mm_for_euclid_dist")
    return ot.emd2(mass_x.numpy(), mass_y.numpy(), costs.numpy())


def uniform(x):
    return torch.full((len(x),), 1 / len(x), dtype=FLOAT64)


def moved_along_the_plan(p_a, p_o, share, cost):
    """Every parcel of the optimal plan a share of its way: (S, D), (S,)."""
    ot = pytest.importorskip("ot")
    plan = torch.from_numpy(ot.emd([], [], torch.cdist(p_a, p_o, p=ORDER[cost]).numpy()))
    i, j = plan.nonzero(as_tuple=True)
    return (1 - share) * p_a[i] + share * p_o[j], plan[i, j]


def mixed(p_a, p_o, share, cost):
    """The paper's own: (1 − share)·P_A + share·P_O, for any cost."""
    return torch.cat([p_a, p_o]), torch.cat([(1 - share) * uniform(p_a), share * uniform(p_o)])


@costs
@pytest.mark.parametrize("path", [moved_along_the_plan, mixed])
@given(seed=seeds, share=st.floats(0.05, 0.95), n=st.integers(1, 9), m=st.integers(1, 9))
@settings(deadline=None, max_examples=15)
def test_lemma_1_the_ball_takes_rho_off_the_distance(cost, path, seed, share, n, m):
    p_a, p_o = normal(seed, n, 3), normal(seed + 1, m, 3) + 1
    distance = wasserstein(p_a, p_o, cost)
    q, mass = path(p_a, p_o, share, cost)
    assert between(p_a, uniform(p_a), q, mass, cost) == pytest.approx(share * distance, rel=1e-9)
    assert between(q, mass, p_o, uniform(p_o), cost) == pytest.approx((1 - share) * distance, rel=1e-9)


@given(seed=seeds, scale=st.floats(0, 3))
@settings(deadline=None, max_examples=15)
def test_lemma_1_and_no_more(seed, scale):
    """No Q of the ball is nearer to P_O than W1(P_A, P_O) − ρ: the paper's inequality is an equality."""
    p_a, p_o = normal(seed, 7, 3), normal(seed + 1, 5, 3) + 1
    q = p_a + scale * normal(seed + 2, 7, 3)
    assert wasserstein(q, p_o) >= wasserstein(p_a, p_o) - wasserstein(p_a, q) - 1e-9


# ---- no search finds more than theory allows


@costs
@rules
@given(
    seed=seeds,
    gamma=st.sampled_from([0.0, 0.05, 0.5, 5.0]),
    step=st.floats(0.01, 9),
    features=st.sampled_from([1, 1, 2, 6]),  # one feature: a long search is nearly fully efficient, and L is tight
)
@settings(deadline=None, max_examples=20)
def test_the_certificate_holds_for_every_search(cost, rule, seed, gamma, step, features):
    head, z = linear(seed, features, classes=4, scale=1.0), normal(seed + 2, 8, features).relu()
    found = search(rule, head, z, gamma, step_size=step)
    held = certificate(z, found.p, head.weight, head.bias, cost=cost)
    assert held.moved <= held.bound + 1e-9
    assert held.moved <= worst_risk(z, head.weight, head.bias, held.cost, cost=cost).upper + 1e-9
    assert held.efficiency <= 1


@rules
@given(seed=seeds, gamma=st.sampled_from([0.0, 0.05, 0.5]), step=st.floats(0.01, 5))
@settings(deadline=None, max_examples=15)
def test_the_vertex_is_worse_than_any_search_within_its_budget(rule, seed, gamma, step):
    head, z = linear(seed, features=6, classes=4, scale=1.0), normal(seed + 2, 8, 6).relu()
    p = search(rule, head, z, gamma, 5, step).p
    within = float(p.norm(p=1, dim=1).max())
    _, value = vertex(z, head.weight, head.bias, within)
    assert (risk(head, z + p) <= value + 1e-9).all()


# ---- γ* = L: the inner problem φ_γ(z) = sup_p ℓ(z + p) − γ‖p‖₁ has no interior solution


def steepest(head):
    """The signed unit vector along which ℓ grows by L in the end."""
    centred = head.weight - head.weight.mean(dim=0)
    at = int(centred.abs().argmax())
    feature = at % centred.shape[1]
    return centred.flatten()[at].sign() * torch.eye(centred.shape[1], dtype=FLOAT64)[feature]


@given(seed=seeds, scale=st.floats(1e-3, 1e4), more=st.floats(0, 3))
@settings(deadline=None, max_examples=20)
def test_from_l_on_nothing_beats_standing_still(seed, scale, more):
    head, z = linear(seed, features=6, classes=4), normal(seed + 2, 1, 6)
    gamma = (1 + more) * float(head_constants(head.weight).l)
    p = torch.cat([scale * normal(seed + 3, 40, 6) ** 3, scale * steepest(head)[None]])
    # ℓ and γ‖p‖₁ are both as large as `scale` here, and so is their rounding
    assert (risk(head, z + p) - gamma * p.norm(p=1, dim=1) <= risk(head, z) + 1e-9 * (1 + scale)).all()
    assert not search(PROXIMAL, head, z, gamma).p.any()


@given(seed=seeds)
@settings(deadline=None, max_examples=20)
def test_below_l_the_penalised_risk_has_no_limit(seed):
    head, z = linear(seed, features=6, classes=4), normal(seed + 2, 6)
    slope = float(head_constants(head.weight).l)
    away = torch.logspace(3, 8, 6, dtype=FLOAT64)[:, None] * steepest(head)
    values = risk(head, z + away) - 0.99 * slope * away.norm(p=1, dim=1)
    assert (values.diff() > 0).all()
    assert values[-1] > 1e5 * slope


def test_just_below_l_a_local_search_stands_still_beneath_an_infinite_sup():
    """Near the data ℓ is flatter than L: the search takes γ for large enough, and φ_γ for ℓ, which is infinite."""
    head, z = linear(0), normal(1, 32, 128).relu()
    gamma = 0.9 * float(head_constants(head.weight).l)
    assert not search(PROXIMAL, head, z, gamma).p.any()
    near, far = (risk(head, z + t * steepest(head)) - gamma * t for t in (1.0, 1e4))
    assert (near < risk(head, z)).all()
    assert (far > risk(head, z) + 100).all()


@costs
def test_the_optimal_price_is_the_slope_at_every_radius(cost):
    """min over γ of γρ + mean φ_γ is at γ = L whatever ρ and z: V is a straight line, and its slope is the price."""
    head = linear(3)
    constants = head_constants(head.weight)
    for z in (normal(4, 20, 128), 10 + normal(5, 9, 128)):
        value = worst_risk(z, head.weight, head.bias, [0.0, 0.1, 1.0, 100.0], cost=cost).upper
        slopes = (value[1:] - value[0]) / torch.tensor([0.1, 1.0, 100.0])
        assert slopes.tolist() == pytest.approx([float(constants.l if cost == "l1" else constants.l2)] * 3)


# ---- what the searches do in training, at the published settings: ρ = 10, β = 0.01, γ from 0.01 to at most 10, ps = 1


def trace(rule, iterations=120, steps=10):
    """γ and the mean ‖p‖₁ over iterations of a fixed head, the dual variable being updated as in Algorithm 1."""
    head, z = linear(0), normal(1, 32, 128).relu()
    dual = DualVariable(rho=10.0, beta=0.01, gamma0=0.01, gamma_max=10.0).double()
    torch.manual_seed(0)
    path = []
    for _ in range(iterations):
        worst = closed_form_search(head, z, rule.draw(z), dual.gamma, steps=steps, step_size=1.0, rule=rule)
        dual.update(worst.cost)
        path.append((float(dual.gamma), float(worst.p.norm(p=1, dim=1).mean())))
    return path


def test_algorithm_1_read_literally_chatters():
    """γ climbs to its cap, far above L, where p = 0 is the worst case; p keeps flipping its signs about 0 instead."""
    slope = float(head_constants(linear(0).weight).l)
    path = trace(PAPER)
    assert all(gamma == 10.0 > 5 * slope for gamma, _ in path[-100:])
    assert all(length > 80 for _, length in path)  # ρ is 10
    # where it stops is a matter of parity: about γ·ps·D after an odd number of steps
    assert all(length > 1000 for _, length in trace(PAPER, steps=11)[-50:])
    # and what it found is below doing nothing by about γ‖p‖₁
    head, z = linear(0), normal(1, 32, 128).relu()
    worst = search(PAPER, head, z, 10.0)
    assert (risk(head, z + worst.p) - 10.0 * worst.cost < risk(head, z) - 500).all()


def test_the_proximal_step_does_not_chatter():
    """It stands still at any γ >= L, and cut off after ten steps it lets γ settle where the mean ‖p‖₁ is ρ."""
    head, z = linear(0), normal(1, 32, 128).relu()
    slope = float(head_constants(head.weight).l)
    for gamma in (slope, 2 * slope, 10.0):
        assert not search(PROXIMAL, head, z, gamma).p.any()
        assert search(PAPER, head, z, gamma).p.norm(p=1, dim=1).mean() > 50
    gamma, length = zip(*trace(PROXIMAL)[-20:], strict=True)
    assert length == pytest.approx([10.0] * 20, rel=0.02)
    assert 0 < min(gamma) <= max(gamma) < slope


@pytest.mark.parametrize("classes", [10, 100])
def test_the_released_search_finds_less_than_half_of_what_its_length_allows(classes):
    """Its steps are steepest for l2 while the cost is l1; a single feature, the vertex, has nearly all."""
    head, z = linear(0, classes=classes), normal(1, 32, 128).relu()
    p = search(REFERENCE, head, z, 0.0).p
    corner, _ = vertex(z, head.weight, head.bias, p.norm(p=1, dim=1))
    found, best = (certificate(z, x, head.weight, head.bias) for x in (p, corner))
    assert float(found.cost) == pytest.approx(float(best.cost))
    assert 0.25 < found.efficiency < 0.5 * best.efficiency
    assert best.efficiency > 0.9
    assert certificate(z, p, head.weight, head.bias, cost="l2").efficiency > 0.8
