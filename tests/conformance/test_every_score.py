"""What must hold for every entry of SCORES, whoever wrote it."""

import pytest
import torch

from farout.components import make
from farout.data.arrays import ArraySet
from farout.detector import Detector
from farout.errors import NotFittedError
from farout.nets.make import make_net
from farout.scores import SCORES, spec_of

pytestmark = pytest.mark.parametrize("name", sorted(SCORES))

ARGUMENTS = {"knn": {"k": 5}}


def net():
    """Eight logits: enough for four rotations of two classes and for an outlier class."""
    torch.manual_seed(0)
    return make_net({"name": "small-conv", "num_classes": 8, "in_channels": 1, "width": 4, "mean": [0.5], "std": [0.5]})


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def train_set() -> ArraySet:
    return ArraySet("train", images(90), torch.arange(90) % 8)


def score(name: str):
    return make("score", SCORES, {"name": name, **ARGUMENTS.get(name, {})})


def test_fitted_saved_and_loaded_it_scores_the_same_to_the_bit(name, tmp_path):
    detector = Detector(net(), score(name), size=8).fit(train_set(), images(50, 1), tpr=0.9)
    x = images(20, 2)
    verdict = detector(x)
    assert verdict.score.shape == (20,)
    assert verdict.score.isfinite().all()
    assert not verdict.score.requires_grad
    again = Detector.load(detector.save(tmp_path / "d"))(x)
    assert all(torch.equal(left, right) for left, right in zip(verdict, again, strict=True))


def test_one_by_one_is_all_at_once(name):
    """A score of a sample depends on that sample alone."""
    detector = Detector(net(), score(name), size=8).fit(train_set(), images(50, 1))
    x = images(7, 3)
    together = detector(x).score
    alone = torch.cat([detector(image[None]).score for image in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_unfitted_use_is_refused(name):
    unfitted = score(name)
    if unfitted.needs_fit:
        with pytest.raises(NotFittedError, match="was not fitted; call Detector.fit"):
            Detector(net(), unfitted).scores(images(5))
    else:
        assert Detector(net(), unfitted).scores(images(5)).shape == (5,)


def test_its_entry_rebuilds_it(name):
    entry = spec_of(score(name))
    assert entry["name"] == name
    assert spec_of(make("score", SCORES, entry)) == entry


def test_it_leaves_no_gradients_behind(name):
    model = net()
    Detector(model, score(name), size=8).fit(train_set(), images(50, 1))(images(5))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_says_what_it_is(name):
    assert SCORES[name].paper
    assert SCORES[name].__doc__
