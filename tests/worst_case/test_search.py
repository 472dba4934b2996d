"""The searches against written-out loops, hand-computed steps and each other."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from farout.losses import ce_to_uniform
from farout.worst_case import (
    COSTS,
    PAPER,
    PROXIMAL,
    REFERENCE,
    RULES,
    DualVariable,
    SearchRule,
    autograd_search,
    closed_form_search,
)
from farout.worst_case.search import STEPS

FLOAT64 = torch.float64


def linear(features: int, classes: int, scale: float = 0.3, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    head = nn.Linear(features, classes, dtype=FLOAT64)
    with torch.no_grad():
        head.weight.normal_(0, scale)
        head.bias.normal_(0, scale)
    return head


def released_loop(
    head: nn.Linear, z: Tensor, p0: Tensor, gamma: float, steps: int, strength: float
) -> tuple[Tensor, float]:
    """The released algorithm, written out: autograd on the batch mean, rows normalised, radius seen before the step."""
    p, radius = p0.clone(), float("nan")
    for _ in range(steps):
        p = p.detach().requires_grad_()
        logits = head(z + p)
        risk = (torch.logsumexp(logits, 1) - logits.mean(1)).mean()
        mean_move = p.abs().mean()
        gradient = torch.autograd.grad(risk - gamma * mean_move, p)[0]
        radius = mean_move.item()
        p = p.detach() + strength * gradient / gradient.norm(dim=1, keepdim=True)
    return p.detach(), radius


@pytest.mark.parametrize("search", [autograd_search, closed_form_search])
@pytest.mark.parametrize(("gamma", "steps", "strength"), [(0.0, 10, 1.0), (0.01, 10, 1.0), (5.0, 7, 0.2)])
def test_reference_is_the_released_loop(search, gamma, steps, strength):
    head, z = linear(12, 5), torch.rand(9, 12, dtype=FLOAT64)
    p0 = torch.rand(9, 12, dtype=FLOAT64) * 1e-4
    wanted, radius = released_loop(head, z, p0, gamma, steps, strength)
    got = search(head, z, p0, torch.tensor(gamma, dtype=FLOAT64), steps=steps, step_size=strength, rule=REFERENCE)
    torch.testing.assert_close(got.p, wanted, rtol=0, atol=1e-12)
    assert got.cost.mean().item() == pytest.approx(radius, abs=1e-12)


def gamma_trace(rho: float, beta: float, iterations: int) -> list[float]:
    """γ over several batches of the reference search, as training moves it."""
    head, dual = linear(128, 10, 0.1), DualVariable(rho, beta, gamma0=0.01, gamma_max=10.0).double()
    dual.gamma.fill_(0.01)  # to double precision
    trace = []
    for batch in range(iterations):
        torch.manual_seed(batch)
        z = torch.rand(32, 128, dtype=FLOAT64)
        worst = closed_form_search(head, z, REFERENCE.draw(z), dual.gamma, steps=10, step_size=1.0, rule=REFERENCE)
        dual.update(worst.cost)
        trace.append(dual.gamma.item())
    return trace


def released_gamma_trace(rho: float, beta: float, iterations: int) -> list[float]:
    """The same trace by the written-out loop."""
    head, gamma, trace = linear(128, 10, 0.1), 0.01, []
    for batch in range(iterations):
        torch.manual_seed(batch)
        z = torch.rand(32, 128, dtype=FLOAT64)
        _, radius = released_loop(head, z, torch.rand_like(z) * 1e-4, gamma, 10, 1.0)
        gamma = min(max(gamma - beta * (rho - radius), 0.0), 10.0)
        trace.append(gamma)
    return trace


@pytest.mark.parametrize("beta", [0.01, 0.005])
def test_gamma_is_zero_from_the_first_update_at_the_released_settings(beta):
    assert gamma_trace(rho=10.0, beta=beta, iterations=5) == [0.0] * 5


def test_gamma_grows_at_a_small_radius_and_follows_the_written_out_trace():
    got, wanted = gamma_trace(0.001, 0.01, 6), released_gamma_trace(0.001, 0.01, 6)
    assert got == pytest.approx(wanted, abs=1e-12)
    assert all(later > earlier for earlier, later in itertools.pairwise([0.01, *got]))


def test_the_radius_of_unit_steps_is_bounded():
    """‖p‖₂ ≤ steps · ps + ‖p0‖₂ and mean |p_j| ≤ ‖p‖₂ / √D: why ρ = 10 is out of reach."""
    head, z = linear(128, 10), torch.rand(64, 128, dtype=FLOAT64)
    worst = closed_form_search(head, z, REFERENCE.draw(z), torch.tensor(0.0), steps=10, step_size=1.0, rule=REFERENCE)
    assert worst.cost.max() <= (9 + 1e-4 * 128**0.5) / 128**0.5
    assert worst.p.norm(dim=1).max() <= 10 + 1e-4 * 128**0.5


def two_class_head() -> nn.Linear:
    """h(z) = (z, −z): D = 1, so ∇ℓ = tanh(z), ℓ = log(2 cosh z)."""
    head = nn.Linear(1, 2, dtype=FLOAT64)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        head.bias.zero_()
    return head


@pytest.mark.parametrize("search", [autograd_search, closed_form_search])
def test_paper_two_steps_by_hand(search):
    """p1 = p0 + ps (tanh(z + p0) − γ sign p0), and once more."""
    z, p0, ps, gamma = 0.5, 0.1, 0.4, 0.2
    p1 = p0 + ps * (torch.tensor(z + p0, dtype=FLOAT64).tanh() - gamma)
    p2 = p1 + ps * ((z + p1).tanh() - gamma)
    got = search(
        two_class_head(),
        torch.tensor([[z]], dtype=FLOAT64),
        torch.tensor([[p0]], dtype=FLOAT64),
        torch.tensor(gamma, dtype=FLOAT64),
        steps=2,
        step_size=ps,
        rule=PAPER,
    )
    assert got.p.item() == pytest.approx(p2.item(), abs=1e-15)
    assert got.cost.item() == pytest.approx(p2.item(), abs=1e-15)  # the final p is charged


@pytest.mark.parametrize("search", [autograd_search, closed_form_search])
def test_proximal_two_steps_by_hand(search):
    """p1 = soft(p0 + ps tanh(z + p0), ps γ); with a large γ it stays exactly 0."""
    z, ps, gamma = 0.5, 0.4, 0.2
    p1 = ps * torch.tensor(z, dtype=FLOAT64).tanh() - ps * gamma
    p2 = p1 + ps * (z + p1).tanh() - ps * gamma
    arguments = {"steps": 2, "step_size": ps, "rule": PROXIMAL}
    zero = torch.zeros(1, 1, dtype=FLOAT64)
    near = torch.full((1, 1), z, dtype=FLOAT64)
    got = search(two_class_head(), near, zero, torch.tensor(gamma, dtype=FLOAT64), **arguments)
    assert got.p.item() == pytest.approx(p2.item(), abs=1e-15)
    held = search(two_class_head(), near, zero, torch.tensor(2.0, dtype=FLOAT64), **arguments)
    assert held.p.item() == 0.0
    assert held.cost.item() == 0.0


@settings(max_examples=60, deadline=None)
@given(
    start=st.sampled_from(["gaussian", "uniform", "zero"]),
    cost=st.sampled_from(sorted(COSTS)),
    step=st.sampled_from(sorted(STEPS)),
    charge=st.sampled_from(["final", "before-last"]),
    gamma=st.sampled_from([0.0, 0.01, 0.3, 4.0]),
    shape=st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(2, 7)),
    steps=st.integers(0, 6),
    seed=st.integers(0, 99),
)
def test_closed_form_agrees_with_the_oracle(start, cost, step, charge, gamma, shape, steps, seed):
    rows, features, classes = shape
    rule = SearchRule(start, 1e-3, cost, step, charge)
    head = linear(features, classes, seed=seed)
    z = torch.rand(rows, features, dtype=FLOAT64)
    p0, price = rule.draw(z), torch.tensor(gamma, dtype=FLOAT64)
    oracle = autograd_search(head, z, p0, price, steps=steps, step_size=0.5, rule=rule)
    got = closed_form_search(head, z, p0, price, steps=steps, step_size=0.5, rule=rule)
    torch.testing.assert_close(got.p, oracle.p, rtol=0, atol=1e-12)
    torch.testing.assert_close(got.cost, oracle.cost, rtol=0, atol=1e-12)


@pytest.mark.parametrize("search", [autograd_search, closed_form_search])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_zero_gradient_moves_nothing(search, rule):
    """A head that ignores its input: the released code divides 0 by 0 here."""
    head = linear(4, 3)
    nn.init.zeros_(head.weight)
    z, p0 = torch.rand(5, 4, dtype=FLOAT64), torch.zeros(5, 4, dtype=FLOAT64)
    worst = search(head, z, p0, torch.tensor(0.5, dtype=FLOAT64), steps=3, step_size=1.0, rule=rule)
    assert torch.equal(worst.p, p0)
    assert torch.equal(worst.cost, torch.zeros(5, dtype=FLOAT64))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_without_a_price_the_search_raises_the_risk(rule):
    head, z = linear(16, 4), torch.rand(20, 16, dtype=FLOAT64)
    worst = autograd_search(head, z, rule.draw(z), torch.tensor(0.0), steps=5, step_size=0.1, rule=rule)
    assert (ce_to_uniform(head(z + worst.p)) > ce_to_uniform(head(z))).all()


def test_the_oracle_takes_any_head():
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    z = torch.rand(4, 6, dtype=FLOAT64)
    worst = autograd_search(head, z, PROXIMAL.draw(z), torch.tensor(0.0), steps=5, step_size=0.5, rule=PROXIMAL)
    assert (ce_to_uniform(head(z + worst.p)) > ce_to_uniform(head(z))).all()
    assert all(parameter.grad is None for parameter in head.parameters())
    with pytest.raises(TypeError, match="needs a linear head, this one is a Sequential; use search='autograd'"):
        closed_form_search(head, z, PROXIMAL.draw(z), torch.tensor(0.0), steps=1, step_size=1.0, rule=PROXIMAL)


def test_no_gradient_leaks_out_of_a_search():
    head, z = linear(6, 3), torch.rand(4, 6, dtype=FLOAT64, requires_grad=True)
    for search in (autograd_search, closed_form_search):
        worst = search(
            head, z.detach(), torch.zeros(4, 6).double(), torch.tensor(0.0), steps=2, step_size=1.0, rule=PAPER
        )
        assert not worst.p.requires_grad
        assert not worst.cost.requires_grad


@pytest.mark.parametrize("cost", sorted(COSTS))
def test_the_proximal_map_minimises_its_definition(cost):
    """prox_t(v) = argmin_p ½‖p − v‖² + t c(p): no point near it does better."""
    torch.manual_seed(1)
    table, v, t = COSTS[cost], torch.randn(8, 5, dtype=FLOAT64), torch.tensor(0.4, dtype=FLOAT64)

    def objective(p: Tensor) -> Tensor:
        return 0.5 * ((p - v) ** 2).sum(-1) + t * table.value(p)

    best = table.prox(v, t)
    for _ in range(200):
        assert (objective(best + 0.05 * torch.randn_like(v)) >= objective(best) - 1e-12).all()


def test_costs_differ_by_the_units_that_the_docs_name():
    p = torch.tensor([[3.0, -4.0]])
    assert COSTS["l1"].value(p).item() == 7.0
    assert COSTS["mean-abs"].value(p).item() == 3.5
    assert COSTS["l2"].value(p).item() == 5.0


def test_starts():
    z = torch.zeros(400, 5)
    torch.manual_seed(0)
    uniform, gaussian = REFERENCE.draw(z), PAPER.draw(z)
    assert 0 <= uniform.min() < uniform.max() < 1e-4
    assert gaussian.std().item() == pytest.approx(1e-3, rel=0.1)
    assert not PROXIMAL.draw(z).any()
    assert replace(PAPER, start_scale=1.0).draw(z).std().item() == pytest.approx(1.0, rel=0.1)
