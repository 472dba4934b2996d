"""Every score through a detector: fitted, saved, loaded, the same to the bit."""

import pytest
import torch

from farout.components import make
from farout.detector import Detector
from farout.errors import NotFittedError
from farout.nets.make import make_net
from farout.scores import SCORES, spec_of

SPECS = [
    {"name": "msp"},
    {"name": "max-logit"},
    {"name": "energy", "temperature": 2.0},
    {"name": "react", "percentile": 70.0, "base": {"name": "energy", "temperature": 2.0}},
    {"name": "react", "percentile": 70.0, "base": {"name": "knn", "k": 3, "normalise": False}},
    {"name": "ash", "variant": "b", "percentile": 65.0, "base": "msp"},
    {"name": "ash", "variant": "s", "base": {"name": "react", "percentile": 97.0}},
    {"name": "mahalanobis", "ridge": 1e-4},
    {"name": "mahalanobis", "epsilon": 0.01},
    {"name": "knn", "k": 5, "chunk": 16},
    {"name": "vim", "dim": 4},
    {"name": "gen", "gamma": 0.2, "top": 2},
    {"name": "odin", "temperature": 10.0, "epsilon": 0.01},
    {"name": "outlier-class"},
    {"name": "csi"},
]
FITTED = [spec for spec in SPECS if make("score", SCORES, spec).needs_fit]


def ids(spec):
    return "-".join(map(str, spec.values()))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    made = make_net({"name": "small-conv", "num_classes": 12, "in_channels": 1, "mean": [0.5], "std": [0.5]})
    made(torch.rand(200, 1, 8, 8))  # batch statistics that are not 0 and 1
    return made.eval()


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 256, (80, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("spec", SPECS, ids=ids)
def test_a_detector_comes_back_to_the_bit(spec, net, images, tmp_path):
    train, held_out = (images[20:], torch.arange(60) % 3), images[:20]
    detector = Detector(net, make("score", SCORES, spec)).fit(train, held_out)
    loaded = Detector.load(detector.save(tmp_path))
    scores = detector.scores(held_out)
    assert scores.shape == (20,)
    assert scores.isfinite().all()
    assert scores.unique().numel() > 1
    assert torch.equal(loaded.scores(held_out), scores)
    assert torch.equal(loaded(held_out).score, detector(held_out).score)
    assert spec_of(loaded.score) == spec_of(detector.score)
    assert loaded.score.uses_input == detector.score.uses_input


@pytest.mark.parametrize("spec", SPECS, ids=ids)
def test_the_detector_and_the_cached_outputs_agree(spec, net, images):
    detector = Detector(net, make("score", SCORES, spec)).fit((images[20:], torch.arange(60) % 3), images[:20])
    assert torch.allclose(detector(images[:20]).score, detector.scores(images[:20]), rtol=1e-4, atol=1e-5)
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("spec", FITTED, ids=ids)
def test_what_is_fitted_is_empty_before_and_refused(spec, net, images):
    score = make("score", SCORES, spec)
    assert not score.fitted
    assert all(buffer.numel() == 0 for buffer in score.buffers())
    with pytest.raises(NotFittedError, match="was not fitted"):
        Detector(net, score).scores(images)
    with pytest.raises(NotFittedError, match="was not fitted"):
        score(net(images[:2]))
