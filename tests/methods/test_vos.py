"""VOS: its queues, its Gaussians, the least likely draw, and a regulariser that works."""

from collections import deque

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import ks_2samp
from torch.distributions import MultivariateNormal

from farout import distributed
from farout.errors import ConfigError
from farout.methods.vos import VOS, longest, weighted_energy
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.types import Batch

QUEUE = 4


def tiny_net() -> Net:
    torch.manual_seed(0)
    spec = {"name": "small-conv", "num_classes": 3, "in_channels": 1, "width": 2, "mean": [0.5], "std": [0.5]}
    return make_net(spec)


def batch(seed: int = 0, count: int = 12) -> Batch:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (count, 1, 8, 8), generator=draws, dtype=torch.uint8)
    return Batch(x, torch.arange(count) % 3)


def ready(**arguments) -> tuple[VOS, Net]:
    """A method whose queues are full and whose time has come."""
    net = tiny_net()
    method = VOS(**{"start_epoch": 0, "queue": QUEUE, "samples": 50, **arguments})
    method.prepare(net)
    for seed in range(3):
        method.loss(net, batch(seed))
    return method, net


def value(method: VOS, net: Net, seed: int = 7) -> float:
    torch.manual_seed(seed)
    return method.loss(net, batch(9))["vos"].item()


def test_queues_keep_the_latest_of_each_class_as_deques_do():
    method = VOS(queue=QUEUE)
    method.prepare(tiny_net())
    queues = [deque(maxlen=QUEUE) for _ in range(3)]
    torch.manual_seed(1)
    for count in (5, 1, 7, 3, 20, 2):  # 20 goes round a queue of 4
        z, y = torch.rand(count, 8), torch.randint(2, (count,)) * 2  # class 1 never comes
        method.push(z, y)
        for row, label in zip(z.tolist(), y.tolist(), strict=True):
            queues[label].append(row)
    for label in (0, 2):
        rows = [[round(v, 6) for v in row] for row in method.features[label].tolist()]
        assert sorted(rows) == sorted([round(v, 6) for v in row] for row in queues[label])
    torch.testing.assert_close(method.total, method.features.double().sum(dim=1))
    assert method.features[1].count_nonzero() == 0
    assert method.pushed[1] == 0


def test_gaussians_are_those_of_the_queues_after_many_rounds():
    method = VOS(queue=QUEUE, ridge=0.01)
    method.prepare(tiny_net())
    torch.manual_seed(2)
    for _ in range(40):
        method.push(10 * torch.randn(9, 8), torch.arange(9) % 3)
    mean, lower = method.gaussians()
    stored = method.features.double()
    torch.testing.assert_close(mean, stored.mean(dim=1))
    centred = (stored - stored.mean(dim=1, keepdim=True)).flatten(0, 1)
    covariance = sum(torch.outer(row, row) for row in centred) / len(centred)
    torch.testing.assert_close(lower @ lower.T, covariance + 0.01 * torch.eye(8).double())
    assert torch.equal(lower, lower.tril())


def test_the_least_likely_of_the_same_draws_is_the_longest():
    method, _ = ready()
    mean, lower = method.gaussians()
    torch.manual_seed(3)
    draws = torch.randn(200, 8).double()
    likelihood = MultivariateNormal(mean[1], scale_tril=lower).log_prob(mean[1] + draws @ lower.T)
    assert likelihood.argmin() == draws.norm(dim=1).argmax()


def test_longest_has_the_law_of_the_longest_vector():
    torch.manual_seed(4)
    many = torch.randn(800, 30, 5)
    lengths = many.norm(dim=2)
    drawn = longest(800, 30, 5, many)
    assert ks_2samp(drawn.norm(dim=1).numpy(), lengths.amax(dim=1).numpy()).pvalue > 0.05
    chosen = many[torch.arange(800), lengths.argmax(dim=1)]
    for ours, theirs in zip(drawn.T, chosen.T, strict=True):  # each coordinate, hence the direction too
        assert ks_2samp(ours.numpy(), theirs.numpy()).pvalue > 0.01
    assert torch.corrcoef(drawn.T).fill_diagonal_(0).abs().max() < 0.15


def test_virtual_outliers_are_the_class_means_moved_by_the_longest_draws():
    method, _ = ready()
    mean, lower = method.gaussians()
    torch.manual_seed(5)
    got = method.virtual_outliers()
    torch.manual_seed(5)
    draws = longest(3, 50, 8, mean)
    for label in range(3):
        torch.testing.assert_close(got[label], mean[label] + lower @ draws[label])


def test_weighted_energy_by_loop_and_with_dead_weights():
    logits = torch.randn(5, 3).double()
    w = torch.tensor([0.5, -1.0, 2.0]).double()
    expected = [(0.5 * a.exp() + 2.0 * c.exp()).log().item() for a, _, c in logits]
    assert weighted_energy(logits, w).tolist() == pytest.approx(expected)
    dead = torch.tensor([-1.0, 0.0, -2.0], requires_grad=True)
    seen = torch.randn(5, 3, requires_grad=True)
    weighted_energy(seen, dead).sum().backward()
    assert seen.grad.isfinite().all()
    assert dead.grad.isfinite().all()


def test_the_loss_is_its_formula():
    method, net = ready(weight=0.3)
    net.eval()  # the features do not depend on the rest of the batch
    data = batch(9)
    torch.manual_seed(6)
    terms = method.loss(net, data)
    torch.manual_seed(6)
    logits = torch.cat([net(data.x).logits, net.head(method.virtual_outliers().float())])
    energy = (logits.exp() * method.w.relu()).sum(dim=1).log()
    log_odds = method.phi(energy[:, None]).log_softmax(dim=1)
    expected = -(log_odds[:12, 1].sum() + log_odds[12:, 0].sum()) / 15
    torch.testing.assert_close(terms["vos"], 0.3 * expected)
    torch.testing.assert_close(terms["ce"], F.cross_entropy(net(data.x).logits, data.y))


def test_the_regularisers_gradient_reaches_everything_it_should():
    method, net = ready()
    method.loss(net, batch(9))["vos"].backward()
    trained = [net.body.conv1.weight, net.head.weight, method.w, method.phi.weight, method.phi.bias]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained)


def test_it_waits_for_its_epoch_and_for_full_queues():
    method, net = ready(start_epoch=2)
    terms = method.loss(net, batch(9))
    assert terms["vos"].item() == 0
    sum(terms.values()).backward()
    assert method.w.grad is None
    method.begin_epoch(net, None, 1)
    assert value(method, net) == 0
    method.begin_epoch(net, None, 2)
    assert value(method, net) > 0
    filling = VOS(start_epoch=0, queue=5)  # batches bring four of each class
    filling.prepare(net)
    assert value(filling, net) == 0
    assert value(filling, net) > 0


@pytest.mark.parametrize("change", [{"queue": 3}, {"samples": 500}, {"weight": 0.2}, {"ridge": 1.0}])
def test_every_knob_changes_the_loss(change):
    assert value(*ready(**change)) != value(*ready())


def test_everything_it_keeps_is_in_the_state():
    method, net = ready()
    method.begin_epoch(net, None, 3)
    again = VOS(start_epoch=0, queue=QUEUE, samples=50)
    again.prepare(net)
    again.load_state_dict(method.state_dict())
    assert again.epoch == 3
    assert value(again, net) == value(method, net)
    assert torch.equal(again.second, method.second)


def test_halves_on_two_ranks_average_to_the_whole(monkeypatch):
    method, _ = ready()
    logits, virtual = torch.randn(8, 3), torch.randn(3, 3)
    whole = method.uncertainty(logits, virtual)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    halves = [method.uncertainty(half, virtual) for half in logits.split(4)]
    torch.testing.assert_close(sum(halves) / 2, whole)


def test_features_of_all_ranks_enter_the_queues(monkeypatch):
    method, net = ready()
    before = method.pushed.clone()
    monkeypatch.setattr(distributed, "gather", lambda value: torch.cat([value, value]))
    method.loss(net, batch(9))
    assert (method.pushed - before).tolist() == [8, 8, 8]


def test_features_that_are_not_numbers_show_in_the_loss_not_in_the_algebra():
    method, net = ready()
    method.push(torch.full((3, 8), torch.nan), torch.arange(3))
    assert torch.isnan(method.loss(net, batch(9))["vos"])


@pytest.mark.parametrize("change", [{"queue": 0}, {"samples": 0}])
def test_empty_queues_and_draws_are_refused(change):
    with pytest.raises(ConfigError, match="counts"):
        VOS(**change).prepare(tiny_net())
