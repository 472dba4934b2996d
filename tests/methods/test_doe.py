"""methods/doe.py: the regret, the perturbation, two steps a batch, and weights that come back."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from farout import distributed
from farout.errors import ConfigError, TrainingError
from farout.methods.doe import DOE, scale_regret
from farout.nets import Net, Normalise
from farout.nets.make import make_net
from farout.training.descent import Descent, Objective
from farout.types import Batch

SPEC = {"name": "small-conv", "num_classes": 3, "in_channels": 1, "width": 4, "mean": [0.5], "std": [0.5]}


def ready(net, **arguments):
    """DOE past its warm-up."""
    method = DOE(**{"warmup": 0, **arguments})
    method.prepare(net)
    return method


def nothing(loss):
    """A descent that does not move."""
    return {}


def weights(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def regret_by_double_backward(logits):
    scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
    scaled = scale * logits
    surrogate = (scaled.mean(1) - torch.logsumexp(scaled, 1)).mean()
    (slope,) = torch.autograd.grad(surrogate, scale, create_graph=True)
    return slope**2


def test_regret_and_its_gradient_equal_a_double_backward():
    torch.manual_seed(0)
    logits = (3 * torch.randn(7, 4, dtype=torch.float64)).requires_grad_()
    closed, differentiated = scale_regret(logits), regret_by_double_backward(logits)
    assert closed.item() == pytest.approx(differentiated.item(), rel=1e-12)
    assert torch.allclose(
        torch.autograd.grad(closed, logits)[0], torch.autograd.grad(differentiated, logits)[0], atol=1e-12
    )
    assert scale_regret(torch.full((2, 4), 3.0)).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_first_perturbation_equals_one_made_of_a_proxy(net, batch, sign):
    net.double()
    method = ready(net, sign=sign).double()
    method.update(net, batch, nothing)
    regret = regret_by_double_backward(net(torch.cat([batch.x, batch.x_out])).logits[6:])
    matrices = {name: p for name, p in net.named_parameters() if p.ndim >= 2}
    step = torch.autograd.grad(regret, list(matrices.values()))
    assert len(matrices) == 4  # three convolutions and the head
    for (name, weight), gradient in zip(matrices.items(), step, strict=True):
        proxy = weight - gradient  # one step of size 1 down the regret
        delta = (proxy - weight) if sign == -1 else (weight - proxy)
        expected = weight.norm() / delta.norm() * delta
        kept = method.state_dict()["shift/" + name.replace(".", "/")]
        assert torch.allclose(kept, expected, rtol=1e-6)
        assert kept.norm().item() == pytest.approx(weight.norm().item())


def test_the_signs_move_the_regret_down_and_up(net, batch):
    images = torch.cat([batch.x, batch.x_out])
    before = scale_regret(net(images).logits[6:])
    after = {}
    for sign in (-1, 1):
        method = ready(net, sign=sign, strengths=[0.01])

        def look(loss, sign=sign):
            after.setdefault(sign, scale_regret(net(images).logits[6:]))
            return {}

        method.update(net, batch, look)
    assert after[-1] < before < after[1]


def test_the_perturbation_is_a_moving_average(net, batch):
    method, other = ready(net, ema=0.75), Batch(batch.x, batch.y, batch.x_out.flip(2).roll(3, 3))
    key = "shift/head/weight"
    method.update(net, batch, nothing)
    first = method.state_dict()[key].clone()
    fresh = ready(net)
    fresh.update(net, other, nothing)
    method.update(net, other, nothing)
    expected = 0.75 * first + 0.25 * fresh.state_dict()[key]
    assert torch.allclose(method.state_dict()[key], expected, atol=1e-6)
    assert not torch.allclose(first, expected, atol=1e-4)


def test_steps_see_moved_then_restored_weights(net, batch):
    method, before, during = ready(net, strengths=[0.1]), weights(net), []

    def record(loss):
        during.append(weights(net))
        return loss(net, batch)

    terms = method.update(net, batch, record)
    moved, restored = during
    for name, weight in before.items():
        shift = 0.1 * method.state_dict().get("shift/" + name.replace(".", "/"), torch.zeros_like(weight))
        assert torch.allclose(moved[name], weight + shift, atol=1e-6)
        assert torch.allclose(restored[name], weight, atol=1e-6)
    assert not torch.allclose(moved["head.weight"], before["head.weight"], atol=1e-3)
    assert set(terms) == {"ce", "oe"}


def test_the_two_steps_descend_oe_and_then_ce(net, batch):
    terms = []
    ready(net).update(net, batch, lambda loss: terms.append(loss(net, batch)) or {})
    assert [list(part) for part in terms] == [["oe"], ["ce"]]
    logits = net(torch.cat([batch.x, batch.x_out])).logits
    assert torch.allclose(terms[1]["ce"], F.cross_entropy(logits[:6], batch.y), atol=1e-5)


def test_with_a_rate_of_zero_the_weights_stay(net, batch):
    method = ready(net)
    before = weights(net)
    descent = Descent(Objective(net, method).train(), torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9))
    for _ in range(3):
        terms = descent(batch, lr=0.0)
    assert all(torch.isfinite(term) for term in terms.values())
    assert all(torch.allclose(p, before[name], atol=1e-6) for name, p in net.named_parameters())


def test_the_weights_come_back_after_an_error(net, batch):
    def fail(loss):
        raise RuntimeError("out of memory")

    before = weights(net)
    with pytest.raises(RuntimeError, match="out of memory"):
        ready(net, strengths=[0.1]).update(net, batch, fail)
    assert all(torch.allclose(p, before[name], atol=1e-6) for name, p in net.named_parameters())


def test_the_search_uses_no_dropout_and_leaves_the_running_statistics_alone(batch):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU())
    net = Net(body, nn.Linear(16, 3), Normalise((0.5,), (0.5,))).train()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        method = ready(net, strengths=[0.0])
        method.update(net, batch, nothing)
        found.append(method.state_dict()["shift/head/weight"])
    assert torch.equal(*found)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_warm_up_is_plain_oe_in_one_step(net, batch):
    method, calls = DOE(warmup=2, alpha=0.5), []
    method.prepare(net)
    for epoch, expected in ((0, [["ce", "oe"]]), (1, [["ce", "oe"]]), (2, [["oe"], ["ce"]])):
        calls.clear()
        method.begin_epoch(net, None, epoch)
        method.update(net, batch, lambda loss: calls.append(list(loss(net, batch))) or {})
        assert calls == expected
    logits = net(torch.cat([batch.x, batch.x_out])).logits
    oe = 0.5 * -logits[6:].log_softmax(1).mean()
    assert torch.allclose(method.loss(net, batch)["oe"], oe, atol=1e-5)


def test_strengths_are_drawn_from_the_list_and_shared_by_all_ranks(net, batch, monkeypatch):
    method, drawn = ready(net, strengths=[0.5, 0.25]), set()
    for seed in range(12):
        torch.manual_seed(seed)
        method.update(net, batch, nothing)
        drawn.add(method.stats()["strength"].item())
    assert drawn == {0.5, 0.25}
    monkeypatch.setattr(distributed, "same", lambda value: torch.full_like(value, 0.125))
    method.update(net, batch, nothing)
    assert method.stats()["strength"] == 0.125


def test_ranks_average_their_gradients(net, batch, monkeypatch):
    monkeypatch.setattr(distributed, "mean", torch.ones_like)
    method = ready(net)
    method.update(net, batch, nothing)
    shift = method.state_dict()["shift/head/weight"]
    expected = -net.head.weight.norm() / shift.numel() ** 0.5
    assert torch.allclose(shift, expected.expand_as(shift))


def test_state_goes_on_where_it_stopped(net, batch):
    method = ready(net, strengths=[0.0])
    method.begin_epoch(net, None, 6)
    method.update(net, batch, nothing)
    copy = DOE(warmup=0, strengths=[0.0])
    copy.prepare(net)
    copy.load_state_dict(method.state_dict())
    assert copy.epoch == 6
    for each in (method, copy):
        each.update(net, batch, nothing)
    assert all(torch.equal(tensor, copy.state_dict()[name]) for name, tensor in method.state_dict().items())


def test_clip_limits_the_step(net, batch):
    lengths = {}
    for clip in (None, 1e-3):
        torch.manual_seed(0)
        made = make_net(SPEC)
        method = DOE(clip=clip)
        method.prepare(made)
        before = weights(made)
        Descent(Objective(made, method), torch.optim.SGD(made.parameters(), lr=1.0))(batch, lr=1.0)
        moved = [(p - before[name]).flatten() for name, p in made.named_parameters()]
        lengths[clip] = torch.cat(moved).norm().item()
    assert lengths[1e-3] == pytest.approx(1e-3, rel=1e-3)
    assert lengths[None] > 1e-2


@pytest.mark.parametrize(
    "change", [{"alpha": 3.0}, {"strengths": [0.5]}, {"sign": 1}, {"ema": 0.1}, {"clip": 0.01}, {"warmup": 1}]
)
def test_every_argument_changes_the_result(batch, change):
    ends = []
    for arguments in ({}, change):
        torch.manual_seed(0)
        net = make_net(SPEC)
        method = ready(net, **{"strengths": [0.1], **arguments})
        descent = Descent(Objective(net, method).train(), torch.optim.SGD(net.parameters(), lr=0.05))
        for batches in (batch, Batch(batch.x, batch.y, batch.x_out.flip(0, 2))):
            torch.manual_seed(4)
            terms = descent(batches, lr=0.05)
            assert all(torch.isfinite(term) for term in terms.values())
        ends.append(net.head.weight.detach().clone())
    assert not torch.allclose(*ends, atol=1e-5)


def test_mistakes_are_named(net, batch):
    with pytest.raises(ConfigError, match="sign=0; take -1"):
        DOE(sign=0).prepare(net)
    with pytest.raises(ConfigError, match="strengths is empty"):
        DOE(strengths=[]).prepare(net)
    with pytest.raises(TrainingError, match=r"no perturbation for 'body.conv1.weight'; call prepare"):
        DOE(warmup=0).update(net, batch, nothing)


def test_two_batches_of_training_lower_the_loss(net, batch):
    method = ready(net, strengths=[0.01])
    assert method.score == "max-logit"
    descent = Descent(Objective(net, method).train(), torch.optim.SGD(net.parameters(), lr=0.05))
    first, second = (sum(descent(batch, lr=0.05).values()) for _ in range(2))
    assert second < first
