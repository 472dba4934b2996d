"""scores/embed.py: one pass of a set through the network, and scores from it."""

import pytest
import torch
from torch import nn

from farout.data.arrays import ArraySet
from farout.errors import NotFittedError
from farout.nets.make import make_net
from farout.scores import MSP, Energy, Score
from farout.scores.embed import device_of, embed, evaluating, score_embedded


@pytest.fixture
def net():
    torch.manual_seed(0)
    return make_net({"name": "small-conv", "num_classes": 3, "in_channels": 1, "mean": [0.5], "std": [0.5]})


@pytest.fixture
def samples():
    images = torch.randint(0, 256, (11, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return ArraySet("some", images, torch.arange(11) % 3)


class Recorder(Score):
    """Sees the input: its score is the mean pixel."""

    uses_input = True

    def outputs(self, net, x):
        return net(x)._replace(logits=x.float().mean(dim=(1, 2, 3))[:, None])

    def forward(self, out):
        return out.logits[:, 0]


class Needy(Score):
    needs_fit = True

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.empty(0))


def test_embed_is_one_evaluation_pass_in_the_sets_order(net, samples):
    whole = embed(net, samples, batch_size=4)
    with torch.no_grad():
        expected = net.eval()(samples.images)
    assert torch.allclose(whole.outputs.features, expected.features, atol=1e-6)
    assert torch.allclose(whole.outputs.logits, expected.logits, atol=1e-6)
    assert whole.labels.tolist() == samples.labels.tolist()
    assert whole.samples is samples
    assert not whole.outputs.logits.requires_grad


def test_embed_leaves_mode_and_statistics_as_they_were(net, samples):
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    embed(net.train(), samples)
    assert net.training
    embed(net.eval(), samples)
    assert not net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_embed_gives_unlabelled_samples_the_label_minus_one(net, samples):
    assert embed(net, ArraySet("bare", samples.images)).labels.tolist() == [-1] * 11


def test_evaluating_restores_the_mode_after_an_error(net):
    def fail():
        with evaluating(net.train()):
            assert not net.training
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert net.training


def test_scores_come_from_the_cached_outputs(net, samples):
    embedded = embed(net, samples)
    doubled = embedded._replace(outputs=embedded.outputs._replace(logits=2 * embedded.outputs.logits))
    scores = score_embedded(net, Energy(), doubled, batch_size=4)
    assert torch.allclose(scores, torch.logsumexp(2 * embedded.outputs.logits, dim=1))
    assert not scores.requires_grad


def test_a_score_that_sees_the_input_gets_the_samples(net, samples):
    scores = score_embedded(net, Recorder(), embed(net, samples), batch_size=4)
    assert torch.allclose(scores, samples.images.float().mean(dim=(1, 2, 3)))


def test_a_score_without_its_fit_is_refused(net, samples):
    with pytest.raises(NotFittedError, match=r"Needy was not fitted; call Detector\.fit"):
        score_embedded(net, Needy(), embed(net, samples))


def test_the_scores_own_mode_is_restored(net, samples):
    score = MSP().train()
    score_embedded(net, score, embed(net, samples))
    assert score.training


def test_device_of_a_module_without_parameters():
    assert device_of(nn.Identity()) == torch.device("cpu")
