"""scores/inputs.py: ODIN's step against the released arithmetic, CSI's rotations against a loop."""

import math

import pytest
import torch
from torch import nn

from farout.errors import ConfigError, DataError
from farout.nets.net import Net, Normalise
from farout.scores import MSP
from farout.scores.inputs import ODIN, Rotations, nudge

MEAN, STD = (0.5, 0.4), (0.2, 0.3)


@pytest.fixture
def net():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(18, 6), nn.Tanh())
    return Net(body, nn.Linear(6, 8), Normalise(MEAN, STD)).eval()


@pytest.fixture
def images():
    return torch.randint(0, 256, (10, 2, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def scored(score, net, x):
    with torch.no_grad():
        return score(score.outputs(net, x))


# ODIN


def test_odin_by_hand():
    """f = (x, 0): ∇ log max softmax > 0 for x > 0, so x' = x + ε and s = −log(1 + exp(−x'/T))."""
    net = Net(nn.Flatten(), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[1.0], [0.0]]))
    score = scored(ODIN(temperature=2, epsilon=0.25), net, torch.full((1, 1, 1, 1), 0.5))
    assert score.item() == pytest.approx(-math.log(1 + math.exp(-0.75 / 2)))


def test_odin_step_is_the_released_one_on_normalised_images(net, images):
    mean, std = (torch.tensor(values).view(2, 1, 1) for values in (MEAN, STD))
    normalised = ((images / 255 - mean) / std).requires_grad_()
    logits = net.head(net.body(normalised)) / 1000
    loss = nn.functional.cross_entropy(logits.double(), logits.argmax(dim=1), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, normalised)
    with torch.no_grad():
        moved = net.head(net.body(normalised - 0.01 * gradient.sign() / std)) / 1000
    expected = moved.double().softmax(dim=1).amax(dim=1).log()
    assert torch.allclose(scored(ODIN(epsilon=0.01), net, images), expected, rtol=0, atol=1e-9)


def test_odin_reads_bytes_and_floats_alike(net, images):
    assert torch.equal(scored(ODIN(), net, images), scored(ODIN(), net, images / 255))


def test_odin_raises_the_score_and_each_knob_changes_it(net, images):
    still = scored(ODIN(epsilon=0), net, images)
    assert (scored(ODIN(), net, images) > still).all()
    assert (scored(ODIN(epsilon=0.002), net, images) > scored(ODIN(), net, images)).all()
    assert not torch.allclose(scored(ODIN(temperature=10), net, images), scored(ODIN(), net, images))


def test_odin_at_rest_is_msp(net, images):
    assert torch.allclose(scored(ODIN(1, 0), net, images).float(), scored(MSP(), net, images), rtol=1e-5)


def test_odin_tells_apart_what_float32_would_tie(net):
    out = net(torch.zeros(2, 2, 3, 3))
    close = out._replace(logits=torch.tensor([[1.0, 0.0], [1.0001, 0.0]]))
    assert ODIN()(close).diff() > 0
    assert ODIN()(close).float().diff() == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_odin_needs_no_grad_mode_and_leaves_no_gradients(net, images, mode):
    expected = scored(ODIN(), net, images)
    with mode():
        out = ODIN().outputs(net, images / 255)
        assert torch.allclose(ODIN()(out), expected, rtol=1e-6)
    assert not out.logits.requires_grad
    assert all(parameter.grad is None for parameter in net.parameters())


def test_nudge_moves_every_pixel_by_epsilon_and_not_the_input(net, images):
    x = images / 255
    before = x.clone()
    moved = nudge(net, x, 0.1, MSP())
    assert torch.allclose((moved - x).abs(), torch.tensor(0.1))
    assert torch.equal(x, before)
    assert not x.requires_grad


def test_odin_slips_are_named():
    with pytest.raises(ConfigError, match=r"temperature > 0 and epsilon >= 0, got 0 and 0.1"):
        ODIN(temperature=0, epsilon=0.1)
    with pytest.raises(ConfigError, match="epsilon >= 0"):
        ODIN(epsilon=-1)


# CSI's rotations


def test_rotations_are_a_loop_over_turned_images(net, images):
    expected = []
    for image in images:
        total = torch.zeros(2)
        for r in range(4):
            turned = torch.stack([torch.rot90(channel, r) for channel in image])
            total += net(turned[None]).logits[0, 2 * r : 2 * r + 2].detach()
        expected.append((total / 4).softmax(dim=0).max().log())
    assert torch.allclose(scored(Rotations(), net, images), torch.stack(expected), rtol=1e-5)


def test_rotations_by_hand():
    """A head that reads the top left pixel: rotation r brings another corner there, counter-clockwise."""
    net = Net(nn.Flatten(), nn.Linear(4, 8, bias=False))
    with torch.no_grad():
        net.head.weight.zero_()[::2, 0] = torch.tensor([1.0, 10.0, 100.0, 1000.0])  # class 0 of each rotation
    x = torch.tensor([[[[0.1, 0.2], [0.3, 0.4]]]])
    out = Rotations().outputs(net, x)
    assert torch.allclose(out.logits, torch.tensor([[(0.1 + 2 + 40 + 300) / 4, 0]]))
    assert torch.equal(out.features, x.flatten(1))
    assert not out.logits.requires_grad


def test_rotations_do_not_change_with_the_image_if_the_head_ignores_them(net, images):
    with torch.no_grad():
        net.head.weight.copy_(net.head.weight[:2].repeat(4, 1))
        net.head.bias.copy_(net.head.bias[:2].repeat(4))
    assert torch.allclose(
        scored(Rotations(), net, images), scored(Rotations(), net, images.rot90(1, (2, 3))), rtol=1e-5
    )


def test_rotations_read_bytes_and_floats_alike(net, images):
    assert torch.equal(scored(Rotations(), net, images), scored(Rotations(), net, images / 255))


def test_rotations_slips_are_named(net):
    for shape in ((1, 2, 3, 4), (1, 18)):
        with pytest.raises(DataError, match="turns square images"):
            Rotations().outputs(net, torch.zeros(shape))
    with pytest.raises(ConfigError, match=r"4 logits a class, one for each rotation; this one has 3"):
        Rotations().outputs(Net(nn.Flatten(), nn.Linear(4, 3)), torch.zeros(1, 1, 2, 2))
