"""The detector: its threshold, its files, and every broken file."""

import json
import shutil

import pytest
import torch
from torch import nn

from farout.data.named import open_named
from farout.detector import Detector
from farout.errors import CheckpointError, NotFittedError
from farout.nets.net import Net
from farout.nets.split import split
from farout.scores import MSP, Energy
from farout.types import Outputs


class Given(MSP):
    """A score that is the first feature."""

    def forward(self, out: Outputs) -> torch.Tensor:
        return out.features[:, 0]


def identity_net(features: int = 2) -> Net:
    return Net(nn.Identity(), nn.Linear(features, 3))


def test_the_threshold_keeps_the_share_of_held_out_data():
    held_out = torch.arange(1.0, 101.0).view(-1, 1).repeat(1, 2)
    detector = Detector(identity_net(), Given()).fit(None, held_out, tpr=0.95)
    assert detector.threshold.item() == 6.0  # 95 of 1..100 are >= 6
    verdict = detector(torch.tensor([[5.0, 0.0], [6.0, 0.0], [7.0, 0.0]]))
    assert verdict.is_ood.tolist() == [True, False, False]
    assert verdict.score.tolist() == [5.0, 6.0, 7.0]
    assert not verdict.score.requires_grad


def test_labels_come_from_the_classes_alone():
    """A network with an outlier class has one logit more, which is no label."""
    net = identity_net()
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.copy_(torch.tensor([0.0, 1.0, 9.0]))
    detector = Detector(net, Given(), classes=("a", "b")).fit(None, torch.rand(10, 2))
    assert detector(torch.rand(4, 2)).label.tolist() == [1, 1, 1, 1]


def test_saved_and_loaded_scores_the_same_to_the_bit(tiny_run, tmp_path):
    images, _ = open_named("demo/digits", split="test").read(torch.arange(50))
    loaded = Detector.load(tiny_run.detector.save(tmp_path / "copy"))
    before, after = tiny_run.detector(images), loaded(images)
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))
    assert loaded.classes == ("0", "1", "2", "3", "4", "5")
    assert loaded.about == tiny_run.detector.about
    assert loaded.size == 8
    card = json.loads((tmp_path / "copy" / "detector.json").read_text())
    assert card["higher_is"] == "in-distribution"
    assert card["method"] == "dal"


def test_uint8_and_float_pixels_are_the_same_input(tiny_run):
    images, _ = open_named("demo/digits", split="test").read(torch.arange(20))
    raw, scaled = tiny_run.detector(images), tiny_run.detector(images.float() / 255)
    assert torch.equal(raw.score, scaled.score)


def test_a_users_own_model_needs_it_again_to_load(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.rand(30, 4)
    detector = Detector(split(model), Energy(temperature=2.0)).fit(None, x)
    folder = detector.save(tmp_path / "own")
    with pytest.raises(CheckpointError, match="saved from a network that is not in farout's tables; pass it"):
        Detector.load(folder)
    torch.manual_seed(1)
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    loaded = Detector.load(folder, net=split(fresh))
    assert loaded.score.temperature == 2.0
    assert torch.equal(loaded(x).score, detector(x).score)


def test_use_before_fit_is_refused():
    with pytest.raises(NotFittedError, match=r"no threshold; call fit\(train, held_out\) first"):
        Detector(identity_net(), MSP())(torch.rand(2, 2))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"tpr must lie in \(0, 1\], got 95"):
        Detector(identity_net(), MSP()).fit(None, torch.rand(9, 2), tpr=95)


def damage_json(folder):
    (folder / "detector.json").write_text("{")


def damage_format(folder):
    (folder / "detector.json").write_text('{"format": 99}')


def damage_kind(folder):
    (folder / "detector.json").write_text("[]")


def damage_keys(folder):
    (folder / "detector.json").write_text('{"format": 1}')


def damage_tensors(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])


def remove_tensors(folder):
    (folder / "model.safetensors").unlink()


def change_width(folder):
    path = folder / "detector.json"
    card = json.loads(path.read_text())
    card["net"]["width"] = 5
    path.write_text(json.dumps(card))


def change_net(folder):
    path = folder / "detector.json"
    card = json.loads(path.read_text())
    card["net"]["name"] = "mall-conv"
    path.write_text(json.dumps(card))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_json, r"detector\.json cannot be read"),
        (damage_format, "has format 99; this version of farout reads format 1"),
        (damage_kind, "has format 'list'"),
        (damage_keys, "lacks classes, net, score, size"),
        (damage_tensors, r"model\.safetensors is damaged"),
        (remove_tensors, "the detector was not saved whole"),
        (change_width, "does not fit its architecture"),
        (change_net, "unknown net 'mall-conv'; did you mean 'small-conv'"),
    ],
)
def test_broken_files_are_named(tiny_run, tmp_path, damage, message):
    folder = shutil.copytree(tiny_run.folder / "detector", tmp_path / "broken")
    damage(folder)
    with pytest.raises((CheckpointError, ValueError), match=message):
        Detector.load(folder)


def test_not_a_detector(tmp_path):
    with pytest.raises(CheckpointError, match="is not a detector: it has no detector.json"):
        Detector.load(tmp_path)
