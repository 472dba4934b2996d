"""methods/atom.py: log-odds, mining by rank, the pixel attack, the loss, two steps of training."""

import math

import pytest
import torch
from torch import nn

from farout.data.arrays import ArraySet
from farout.data.loaders import Resident
from farout.errors import ConfigError
from farout.methods.atom import ATOM, attack, log_odds
from farout.nets import Net, Normalise
from farout.training.descent import Descent, Objective
from farout.types import Batch

SPEC = {"name": "small-conv", "num_classes": 4, "in_channels": 1, "width": 4, "mean": [0.5], "std": [0.5]}


def linear_net(weight):
    """Logits W x of flattened pixels."""
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight.data.copy_(weight)
    return Net(nn.Flatten(), head, Normalise((0.0,), (1.0,)))


def brightness_net():
    """Logits (0, mean pixel): the brighter, the more an outlier."""
    return linear_net(torch.tensor([[0.0] * 4, [0.25] * 4]))


def seen(net):
    inputs = []
    net.register_forward_hook(lambda module, args, out: inputs.append(args[0].detach()))
    return inputs


def test_log_odds_rank_as_the_probability_and_do_not_saturate():
    torch.manual_seed(0)
    logits = 3 * torch.randn(500, 5, dtype=torch.float64)
    p = logits.softmax(1)[:, -1]
    assert torch.equal(log_odds(logits).argsort(), p.argsort())
    assert torch.allclose(log_odds(logits), (p / (1 - p)).log())
    certain = torch.tensor([[0.0, 40.0], [0.0, 50.0]])
    assert certain.softmax(1)[0, 1] == certain.softmax(1)[1, 1]  # float32 cannot tell them apart
    assert log_odds(certain).tolist() == [40.0, 50.0]


def test_mining_takes_the_ranks_after_the_quantile_most_id_like_first():
    torch.manual_seed(0)
    values = torch.randperm(80)
    source = Resident(ArraySet("aux", values.to(torch.uint8)[:, None, None, None].expand(80, 1, 2, 2).contiguous()))
    chosen = ATOM(quantile=0.25, pool=80, keep=30).begin_epoch(brightness_net(), source, 0)
    assert values[chosen].tolist() == list(range(20, 50))


def test_a_small_set_keeps_the_same_share():
    source = Resident(ArraySet("aux", torch.randint(256, (40, 1, 2, 2), dtype=torch.uint8)))
    assert len(ATOM(quantile=0.0, pool=400_000, keep=100_000).begin_epoch(brightness_net(), source, 0)) == 10
    assert len(ATOM(quantile=0.0, pool=20, keep=4).begin_epoch(brightness_net(), source, 0)) == 4


def test_a_new_pool_is_drawn_each_epoch_from_the_global_generator():
    source = Resident(ArraySet("aux", torch.randint(256, (90, 1, 2, 2), dtype=torch.uint8)))
    method, chosen = ATOM(pool=30, keep=10), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        chosen.append(method.begin_epoch(brightness_net(), source, 0))
    assert torch.equal(chosen[0], chosen[1])
    assert not torch.equal(chosen[0], chosen[2])
    assert ATOM(mine=False).begin_epoch(brightness_net(), source, 0) is None


def test_attack_on_a_linear_net_by_hand():
    torch.manual_seed(0)
    weight = torch.randn(2, 16)
    x, net = torch.randint(256, (5, 1, 4, 4)) / 255, linear_net(weight)
    torch.manual_seed(7)
    found = attack(net, x, epsilon=8 / 255, steps=5, step=2 / 255)
    torch.manual_seed(7)
    start = ((2 * torch.rand(5, 1, 4, 4) - 1) * 8).round().clamp(-8, 8)
    pixels = (x * 255).round()
    start = (pixels + start).clamp(0, 255) - pixels
    towards_id = (weight[0] - weight[1]).sign().view(1, 1, 4, 4)  # the odds fall along it, at every point
    for _ in range(5):
        start = (start + 2 * towards_id).clamp(-8, 8)
        start = (pixels + start).clamp(0, 255) - pixels
    assert torch.allclose(found, (pixels + start) / 255, atol=1e-6)


def test_attack_stays_in_the_ball_and_in_the_pixels_and_never_helps(net, batch):
    x = batch.x_out / 255
    net.eval()
    before = log_odds(net(x).logits)
    for steps in (0, 1, 5):
        torch.manual_seed(3)
        found = attack(net, x, epsilon=8 / 255, steps=steps, step=2 / 255)
        assert (found - x).abs().max() <= 8 / 255 + 1e-6
        assert found.min() >= 0
        assert found.max() <= 1
        after = log_odds(net(found).logits)
        assert (after <= before + 1e-5).all()
    assert (after < before - 1e-3).all()


def test_attack_keeps_each_samples_worst_point():
    class Fickle(nn.Module):
        """Log-odds by call and sample; a different call is the worst of each sample."""

        table = torch.tensor([[0.0, 0.0, 0.0], [1.0, -5.0, 1.0], [-3.0, -1.0, 1.0], [-2.0, 2.0, 2.0]])

        def __init__(self):
            super().__init__()
            self.points = []

        def forward(self, x):
            odds = self.table[len(self.points)] + 1e-3 * x.flatten(1).sum(1)  # so that the points move
            self.points.append(x.detach().clone())
            return torch.stack([0 * odds, odds], dim=1)

    fickle = Fickle()
    x = torch.full((3, 1, 2, 2), 0.5)
    torch.manual_seed(0)
    found = attack(Net(fickle, nn.Identity()), x, epsilon=0.1, steps=2, step=0.01)
    assert len(fickle.points) == 4  # x, the start, two steps
    assert torch.equal(found[0], fickle.points[2][0])
    assert torch.equal(found[1], fickle.points[1][1])
    assert torch.equal(found[2], x[2])


def test_attack_runs_in_eval_mode_and_leaves_no_trace(net, batch):
    net.train()
    modes, state = [], {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.body.register_forward_hook(lambda module, inputs, out: modes.append(module.training))
    with torch.no_grad():  # the attack turns gradients on for itself
        found = attack(net, batch.x_out / 255, epsilon=0.1, steps=2, step=0.05)
    assert modes == [False] * 4
    assert net.training
    assert not found.requires_grad
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())


def test_loss_equals_a_loop_in_float64(net, batch):
    net.double()
    terms = ATOM(attack_share=0.0, beta=0.7).loss(net, batch)
    rows = net(torch.cat([batch.x, batch.x_out])).logits.tolist()
    lse = [math.log(sum(math.exp(value) for value in row)) for row in rows]
    cross = sum(lse[i] - rows[i][y] for i, y in enumerate(batch.y.tolist())) / 6
    outlier = sum(s - row[-1] for s, row in zip(lse[6:], rows[6:], strict=True)) / 8
    assert terms["ce"].item() == pytest.approx(cross, abs=1e-10)
    assert terms["outlier"].item() == pytest.approx(0.7 * outlier, abs=1e-8)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.5, 4), (1.0, 8)])
def test_the_share_of_attacked_outliers(net, batch, share, count):
    inputs = seen(net)
    ATOM(attack_share=share).loss(net, batch)
    trained = inputs[-1] if share else inputs[-1] / 255
    assert len(inputs) == (8 if share else 1)  # x, start, five steps, then the training pass
    assert torch.equal(trained[:6], batch.x / 255)
    changed = (trained[6:] != batch.x_out / 255).flatten(1).any(1)
    assert int(changed.sum()) == count


def test_bytes_and_floats_give_the_same_loss(net, batch):
    net.eval()  # so that the first loss leaves the running statistics alone
    values = []
    for x, x_out in ((batch.x, batch.x_out), (batch.x / 255, batch.x_out / 255)):
        torch.manual_seed(2)
        values.append(sum(ATOM().loss(net, Batch(x, batch.y, x_out)).values()))
    assert torch.equal(*values)


@pytest.mark.parametrize(
    "change", [{"attack_share": 1.0}, {"epsilon": 0.2}, {"attack_steps": 1}, {"attack_step": 0.01}, {"beta": 2.0}]
)
def test_every_argument_of_the_loss_changes_it(net, batch, change):
    values = []
    for arguments in ({}, change):
        torch.manual_seed(2)
        values.append(sum(ATOM(**arguments).loss(net, batch).values()))
    assert not torch.isclose(*values, rtol=1e-6)


def test_embeddings_train_only_without_the_attack():
    net = Net(nn.Identity(), nn.Linear(5, 4))
    batch = Batch(torch.randn(3, 5), torch.tensor([0, 1, 2]), torch.randn(4, 5))
    with pytest.raises(ConfigError, match=r"attacks pixels .* got outliers \(4, 5\); set attack_share to 0"):
        ATOM().loss(net, batch)
    assert torch.isfinite(ATOM(attack_share=0.0).loss(net, batch)["outlier"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantile": 1.0}, "quantile=1.0 leaves nothing"),
        ({"keep": 500_000}, "cannot keep 500000 of a pool of 400000"),
        ({"keep": 0}, "cannot keep 0"),
        ({"attack_share": 1.5}, "attack_share=1.5 is not a share"),
    ],
)
def test_impossible_arguments_are_named(net, arguments, message):
    with pytest.raises(ConfigError, match=message):
        ATOM(**arguments).prepare(net)


def test_has_an_outlier_class_and_trains_two_steps(net, batch):
    method = ATOM()
    method.prepare(net)
    assert (method.outlier_class, method.score) == (True, "outlier-class")
    descent = Descent(Objective(net, method).train(), torch.optim.SGD(net.parameters(), lr=0.05))
    losses = []
    for _ in range(2):
        torch.manual_seed(3)
        losses.append(sum(descent(batch, lr=0.05).values()))
    assert all(torch.isfinite(loss) for loss in losses)
    assert losses[1] < losses[0]
