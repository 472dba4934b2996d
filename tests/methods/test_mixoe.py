"""methods/mixoe.py: both mixes by hand, the laws of their draws, the loss against a loop, two steps of training."""

import math

import pytest
import torch
from scipy.stats import beta, kstest

from farout.errors import ConfigError
from farout.methods.mixoe import MixOE, blend, paste
from farout.nets import Net
from farout.training.descent import Descent, Objective
from farout.types import Batch

SPEC = {"name": "small-conv", "num_classes": 3, "in_channels": 1, "width": 4, "mean": [0.5], "std": [0.5]}


@pytest.fixture
def batch():
    torch.manual_seed(1)
    x, x_out = (torch.randint(256, (n, 1, 8, 8), dtype=torch.uint8) for n in (4, 6))
    return Batch(x, torch.tensor([0, 1, 2, 0]), x_out)


def seen(net):
    """What the network is shown from now on."""
    inputs = []
    net.register_forward_hook(lambda module, args, out: inputs.append(args[0].detach()))
    return inputs


def test_blend_by_hand():
    mixed, share = blend(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.4]]), torch.tensor(0.75))
    assert torch.allclose(mixed, torch.tensor([[0.75, 0.1]]))
    assert share == 0.75


def pasted(monkeypatch, drawn, centre, size):
    """One image of zeros with a box of ones around `centre`, and the share that is told."""
    places = iter(centre)
    monkeypatch.setattr(torch, "randint", lambda size, shape, device: torch.tensor(next(places), device=device))
    mixed, share = paste(torch.zeros(1, 1, *size), torch.ones(1, 1, *size), torch.tensor(drawn))
    return mixed[0, 0].tolist(), share.item()


def test_paste_by_hand(monkeypatch):
    """λ = 0.75 on 4 x 6 pixels: sides ⌊2⌋ and ⌊3⌋, from row 2 − 1 and column 3 − 1."""
    rows, share = pasted(monkeypatch, 0.75, (2, 3), (4, 6))
    assert rows == [[0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]
    assert share == 0.75  # 6 of 24 pixels


@pytest.mark.parametrize(
    ("centre", "wanted"),
    [
        ((0, 0), [[1, 0, 0], [0, 0, 0], [0, 0, 0]]),  # rows and columns −1 to 0
        ((0, 2), [[0, 1, 1], [0, 0, 0], [0, 0, 0]]),
        ((2, 1), [[0, 0, 0], [1, 1, 0], [1, 1, 0]]),
    ],
)
def test_paste_cuts_at_the_edges(monkeypatch, centre, wanted):
    """λ = 0.5 on 3 x 3 pixels: sides ⌊3 · 0.7071⌋ = 2, from the centre − 1."""
    rows, share = pasted(monkeypatch, 0.5, centre, (3, 3))
    assert rows == wanted
    assert share == pytest.approx(1 - sum(map(sum, wanted)) / 9)


@pytest.mark.parametrize(("drawn", "wanted"), [(0.0, 3 * [3 * [1]]), (1.0, 3 * [3 * [0]])])
def test_paste_of_all_and_of_nothing(monkeypatch, drawn, wanted):
    assert pasted(monkeypatch, drawn, (1, 1), (3, 3)) == (wanted, drawn)


@pytest.mark.parametrize("drawn", [0.0, 0.3, 0.8, 1.0])
def test_paste_puts_one_box_and_counts_its_pixels(drawn):
    x, x_out = torch.zeros(2, 3, 10, 6), torch.ones(2, 3, 10, 6)
    for seed in range(20):
        torch.manual_seed(seed)
        mixed, share = paste(x, x_out, torch.tensor(drawn))
        assert share.item() == pytest.approx(1 - mixed[0, 0].mean().item(), abs=1e-6)
        assert torch.equal(mixed, mixed[:1, :1].expand_as(mixed))  # one box for all
        rows, columns = mixed[0, 0].amax(1), mixed[0, 0].amax(0)
        assert torch.equal(mixed[0, 0], rows[:, None] * columns[None, :])  # and it is a box
        assert share >= drawn - 1e-6  # edges and rounding only make it smaller
    assert not x.any()  # the input is left alone


def test_every_centre_is_as_likely():
    """A box of one pixel shows its centre: 2000 draws over 4 x 5 places, χ² at 19 degrees of freedom."""
    drawn, counts = torch.tensor(1 - 0.25**2), torch.zeros(4, 5)
    for _ in range(2000):
        counts += paste(torch.zeros(1, 1, 4, 5), torch.ones(1, 1, 4, 5), drawn)[0][0, 0]
    assert counts.sum() == 2000
    assert ((counts - 100) ** 2 / 100).sum() < 43.8  # exceeded once in a thousand seeds


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2])
def test_the_share_is_drawn_from_a_beta_once_a_batch(alpha):
    net, batch = (
        Net(torch.nn.Identity(), torch.nn.Linear(2, 3)),
        Batch(ones := torch.ones(2, 2), torch.tensor([0, 1]), ones),
    )
    method, drawn = MixOE(alpha=alpha), []
    method.mix = lambda x, x_out, share: (drawn.append(share), blend(x, x_out, share))[1]
    for _ in range(1000):
        method.loss(net, batch)
    assert all(share.shape == () for share in drawn)
    assert kstest(torch.stack(drawn).numpy(), beta(alpha, alpha).cdf).pvalue > 0.01


@pytest.mark.parametrize("mix", [blend, paste])
def test_a_mix_stays_on_the_images_device(mix):
    """Meta tensors have no values to read, and do not mix with those of another device."""
    mixed, share = mix(*(torch.empty(2, 3, 8, 8, device="meta") for _ in range(2)), torch.empty((), device="meta"))
    assert (mixed.shape, share.shape) == ((2, 3, 8, 8), ())
    assert mixed.is_meta
    assert share.is_meta


def test_without_a_beta_there_is_no_training(net):
    with pytest.raises(ConfigError, match=r"alpha=0.0 gives no Beta\(alpha, alpha\); take one above 0"):
        MixOE(alpha=0.0).prepare(net)


@pytest.mark.parametrize("mode", ["linear", "cut"])
def test_loss_equals_a_loop_in_float64(net, batch, mode):
    net.double()
    inputs = seen(net)
    torch.manual_seed(5)
    method = MixOE(alpha=2.0, weight=0.7, mode=mode)
    terms = method.loss(net, batch)
    torch.manual_seed(5)
    share = torch.distributions.Beta(2.0, 2.0).sample()
    partner = [0, 1, 2, 3, 0, 1]
    mixed, share = (blend if mode == "linear" else paste)(batch.x[partner] / 255, batch.x_out / 255, share)
    assert torch.equal(inputs[0], torch.cat([batch.x / 255, mixed]))
    total, left, rest = 0.0, share.item(), ((1 - share) / 3).item()  # of λ in float32
    for row, i in zip(net(inputs[0]).logits[4:].tolist(), partner, strict=True):
        lse = math.log(sum(math.exp(value) for value in row))
        target = [rest + left * (k == batch.y[i].item()) for k in range(3)]
        total += sum(t * (lse - value) for t, value in zip(target, row, strict=True))
    assert terms["mix"].item() == pytest.approx(0.7 * total / 6, abs=1e-10)
    assert torch.isfinite(terms["ce"])


def test_a_share_of_one_is_plain_cross_entropy_and_of_zero_is_oe(net, batch):
    net.eval()
    for share, expected in ((1.0, net(batch.x[[0, 1, 2, 3, 0, 1]])), (0.0, net(batch.x_out))):
        method = MixOE(weight=1.0)
        method.mix = lambda x, x_out, drawn, share=share: blend(x, x_out, torch.tensor(share))
        log_p = expected.logits.log_softmax(1)
        labels = batch.y[[0, 1, 2, 3, 0, 1]]
        wanted = -log_p.gather(1, labels[:, None]).mean() if share else -log_p.mean()
        assert torch.allclose(method.loss(net, batch)["mix"], wanted, atol=1e-5)


def test_bytes_and_floats_give_the_same_loss(net, batch):
    values = []
    for x, x_out in ((batch.x, batch.x_out), (batch.x / 255, batch.x_out / 255)):
        torch.manual_seed(2)
        values.append(MixOE().loss(net, Batch(x, batch.y, x_out))["mix"])
    assert torch.equal(*values)


@pytest.mark.parametrize("change", [{"alpha": 0.1}, {"weight": 1.0}, {"mode": "cut"}])
def test_every_argument_changes_the_loss(net, batch, change):
    values = []
    for arguments in ({}, change):
        torch.manual_seed(2)
        values.append(MixOE(**arguments).loss(net, batch)["mix"])
    assert not torch.isclose(*values)


def test_embeddings_mix_linearly_and_refuse_a_cut():
    net = Net(torch.nn.Identity(), torch.nn.Linear(5, 3))
    batch = Batch(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]), torch.randn(4, 5))
    assert torch.isfinite(MixOE().loss(net, batch)["mix"])
    with pytest.raises(ConfigError, match=r"mode 'cut' needs images .* got \(4, 5\); use mode 'linear'"):
        MixOE(mode="cut").loss(net, batch)


def test_an_unknown_mode_is_named():
    with pytest.raises(ConfigError, match="unknown mode 'cutt'; did you mean 'cut'"):
        MixOE(mode="cutt")


def test_two_steps_of_training_lower_the_loss(net, batch):
    descent = Descent(Objective(net, MixOE(weight=1.0)), torch.optim.SGD(net.parameters(), lr=0.05))
    losses = []
    for _ in range(2):
        torch.manual_seed(3)  # the same mixture twice
        losses.append(sum(descent(batch, lr=0.05).values()))
    assert all(torch.isfinite(loss) for loss in losses)
    assert losses[1] < losses[0]
