"""CSI: rotations as classes, a contrastive body, a joint head on the frozen body."""

import pytest
import torch
import torch.nn.functional as F

from farout.contrastive import contrastive
from farout.errors import ConfigError, DataError
from farout.methods.csi import CSI
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.types import Batch

CLASSES = 3


def tiny_net(outputs: int = 4 * CLASSES) -> Net:
    torch.manual_seed(0)
    grey = [0.5] * 3
    return make_net(
        {"name": "small-conv", "num_classes": outputs, "in_channels": 3, "width": 2, "mean": grey, "std": grey}
    )


def batch() -> Batch:
    draws = torch.Generator().manual_seed(1)
    return Batch(torch.randint(256, (5, 3, 8, 8), generator=draws, dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1]))


def prepared(net: Net, **arguments) -> CSI:
    method = CSI(**arguments)
    torch.manual_seed(2)
    method.prepare(net)
    return method


def value(name: str, **arguments) -> float:
    net = tiny_net()
    method = prepared(net, **arguments)
    torch.manual_seed(3)
    return method.loss(net, batch())[name].item()


def test_views_are_turned_after_the_flip_and_labelled_by_their_turn():
    """With a crop of everything and no colours a view is the image or its mirror, turned: never mirrored last."""
    data = batch()
    method = CSI(crop=1.0, flip=0.5)
    method.views = type(method.views)(crop=1.0, flip=0.0, jitter=0.0, gray=0.0)
    torch.manual_seed(0)
    views, labels = method.turned(data.x, data.y, CLASSES)
    assert labels.tolist() == [0, 1, 2, 0, 1, 3, 4, 5, 3, 4, 6, 7, 8, 6, 7, 9, 10, 11, 9, 10]
    mirrored = set()
    for row, view in enumerate(views):
        turn, image = divmod(row, 5)
        plain = data.x[image] / 255
        back = view.rot90(-turn, (1, 2))
        flipped = not torch.allclose(back, plain, atol=1e-4)
        assert torch.allclose(back, plain.flip(-1) if flipped else plain, atol=1e-4)
        mirrored.add(flipped)
    assert mirrored == {False, True}


@pytest.mark.parametrize("self_pair", [False, True])
def test_stage_1_contrasts_eight_views_of_each_image(self_pair):
    net = tiny_net()
    method = prepared(net, temperature=0.2, self_pair=self_pair)
    data = batch()
    torch.manual_seed(3)
    terms = method.loss(net, data)
    torch.manual_seed(3)
    views, labels = method.turned(torch.cat([data.x, data.x]), torch.cat([data.y, data.y]), CLASSES)
    assert views.shape == (40, 3, 8, 8)
    expected = contrastive(method.project(net.embed(views)), labels, 0.2, self_pair).mean()
    assert list(terms) == ["csi"]
    torch.testing.assert_close(terms["csi"], expected)
    terms["csi"].backward()
    assert net.body.conv1.weight.grad.abs().sum() > 0
    assert all(p.grad is not None for p in method.parameters())
    assert net.head.weight.grad is None


def test_stage_2_is_cross_entropy_on_the_frozen_features():
    net = tiny_net()
    method = prepared(net, stage=2)
    data = batch()
    torch.manual_seed(3)
    terms = method.loss(net, data)
    assert net.training
    torch.manual_seed(3)
    views, labels = method.turned(data.x, data.y, CLASSES)
    logits = net.eval()(views).logits
    torch.testing.assert_close(terms["joint"], F.cross_entropy(logits, labels))
    assert list(method.parameters()) == []


def test_stage_2_leaves_the_body_as_it_was_to_the_bit():
    net = tiny_net()
    method = prepared(net, stage=2)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        method.loss(net, batch())["joint"].backward()
        optimizer.step()
    changed = {name for name, tensor in net.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    "change", [{"temperature": 0.5}, {"projection": 16}, {"self_pair": True}, {"crop": 0.9}, {"flip": 0.0}]
)
def test_every_knob_changes_the_loss_of_stage_1(change):
    assert value("csi", **change) != value("csi")


@pytest.mark.parametrize("change", [{"crop": 0.9}, {"flip": 0.0}])
def test_knobs_of_the_views_change_stage_2(change):
    assert value("joint", stage=2, **change) != value("joint", stage=2)


def test_the_projection_is_in_the_state():
    net = tiny_net()
    method = prepared(net)
    again = CSI()
    again.prepare(net)
    again.load_state_dict(method.state_dict())
    z = torch.rand(2, 8)
    assert torch.equal(again.project(z), method.project(z))


def test_wrong_stages_heads_and_inputs_are_refused():
    with pytest.raises(ConfigError, match="stage=3"):
        CSI(stage=3)
    with pytest.raises(ConfigError, match="4 logits a class.*got 10"):
        CSI().prepare(tiny_net(outputs=10))
    net = tiny_net()
    with pytest.raises(DataError, match="images"):
        prepared(net).loss(net, Batch(torch.rand(4, 8), torch.arange(4) % 3))
    with pytest.raises(DataError, match="square"):
        prepared(net, stage=2).loss(net, Batch(torch.rand(4, 3, 8, 6), torch.arange(4) % 3))


def test_it_asks_for_four_logits_a_class():
    assert CSI.outputs_per_class == 4
