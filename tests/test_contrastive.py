"""The contrastive loss against loops in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from farout.contrastive import contrastive

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 3])


def projections() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(7, 5, dtype=torch.float64)


def by_loop(g: torch.Tensor, labels: torch.Tensor, temperature: float, self_pair: bool) -> list[float]:
    rows = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in g.tolist()]
    similarity = [[sum(a * b for a, b in zip(p, q, strict=True)) / temperature for q in rows] for p in rows]
    losses = []
    for i, label in enumerate(labels.tolist()):
        others = [a for a in range(len(rows)) if a != i]
        partition = sum(math.exp(similarity[i][a]) for a in others)
        positives = [a for a in others if labels[a] == label]
        terms = [-math.log(math.exp(similarity[i][p]) / partition) for p in positives]
        if self_pair:
            terms.append(-math.log(1e-8))
        losses.append(sum(terms) / len(terms) if terms else 0.0)
    return losses


@pytest.mark.parametrize("self_pair", [False, True])
@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_is_the_loop(self_pair, temperature):
    got = contrastive(projections(), LABELS, temperature, self_pair)
    assert got.tolist() == pytest.approx(by_loop(projections(), LABELS, temperature, self_pair), rel=1e-12)


def test_nt_xent_is_cross_entropy_to_the_other_view():
    g = projections()[:6]
    u = F.normalize(g, dim=1)
    similarity = (u @ u.T / 0.2).fill_diagonal_(-math.inf)
    partner = torch.tensor([3, 4, 5, 0, 1, 2])
    expected = F.cross_entropy(similarity, partner, reduction="none")
    torch.testing.assert_close(contrastive(g, torch.arange(3).repeat(2), 0.2), expected)


def test_the_view_itself_is_in_neither_sum():
    """Two identical views alone: the positive is the whole partition, so the loss is 0, whatever the temperature."""
    same = torch.ones(2, 3, dtype=torch.float64)
    assert contrastive(same, torch.tensor([0, 0]), 0.07).tolist() == pytest.approx([0.0, 0.0])


def test_the_self_pair_dilutes_the_gradient_by_the_number_of_positives():
    labels = torch.tensor([0, 0, 0, 1, 1, 1])  # two positives each
    gradients = []
    for self_pair in (False, True):
        g = projections()[:6].requires_grad_()
        contrastive(g, labels, 0.1, self_pair).sum().backward()
        gradients.append(g.grad)
    torch.testing.assert_close(gradients[1], gradients[0] * 2 / 3)


def test_only_directions_count_and_the_order_does_not():
    g, order = projections(), torch.randperm(7)
    torch.testing.assert_close(contrastive(7.0 * g, LABELS), contrastive(g, LABELS))
    torch.testing.assert_close(contrastive(g[order], LABELS[order]), contrastive(g, LABELS)[order])


def test_gathered_classes_lose_less_and_a_tiny_temperature_stays_finite():
    gathered = F.one_hot(LABELS).float()
    assert contrastive(gathered, LABELS).mean() < contrastive(projections(), LABELS).mean()
    g = projections().float().requires_grad_()
    contrastive(g, LABELS, 1e-3).sum().backward()
    assert g.grad.isfinite().all()
