"""The detector: its threshold, its files, and every broken file."""

import json
import shutil

import pytest
import torch
from torch import nn

from farout.data.named import open_named
from farout.detector import Detector, record_metrics
from farout.errors import CheckpointError, DataError, NotFittedError
from farout.nets.net import Net
from farout.nets.split import split
from farout.preprocess import Preprocess
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


def test_a_conformal_threshold_and_its_p_values():
    held_out = torch.arange(1.0, 100.0).view(-1, 1).repeat(1, 2)
    detector = Detector(identity_net(), Given()).calibrate(held_out, alpha=0.05)
    assert detector.threshold.item() == 5.0
    judged = detector.judge(torch.tensor([[0.0, 0.0], [4.5, 0.0], [5.0, 0.0], [200.0, 0.0]]))
    assert judged.is_ood.tolist() == [True, True, False, False]
    assert judged.p_value.tolist() == [0.01, 0.05, 0.06, 1.0]
    assert torch.equal(detector.p_value(judged.score), judged.p_value)
    assert detector.calibrated_on["alpha"] == 0.05
    assert detector.calibrated_on["count"] == 99
    with pytest.raises(ValueError, match="tpr or alpha, not both"):
        detector.calibrate(held_out, tpr=0.9, alpha=0.1)


def test_probabilities_take_the_temperature_of_labelled_data():
    net, rng = identity_net(3), torch.Generator().manual_seed(0)
    with torch.no_grad():
        net.head.weight.copy_(4 * torch.eye(3))
        net.head.bias.zero_()
    x = torch.randn(500, 3, generator=rng)
    y = torch.distributions.Categorical(logits=x).sample()  # four times less sure than the head
    detector = Detector(net, Energy()).calibrate((x, y))
    assert detector.temperature.item() == pytest.approx(4, rel=0.3)
    scaled = torch.softmax(4 * x / detector.temperature.float(), 1)
    assert torch.allclose(detector.probabilities(x), scaled, atol=1e-6)
    assert Detector(net, Energy()).calibrate(x).temperature.item() == 1  # no labels, no temperature


def test_what_was_trained_on_is_refused(tiny_run):
    detector = Detector.load(tiny_run.folder / "detector")
    before = detector.threshold.item()
    with pytest.raises(DataError, match="was trained on demo/digits"):
        detector.calibrate(open_named("demo/digits", split="train"))
    assert detector.threshold.item() == before
    detector.calibrate(open_named("demo/digits", split="test"), alpha=0.1)
    x = torch.rand(30, 2)
    with pytest.raises(DataError, match="30 of its 30 samples"):
        Detector(identity_net(), Given()).fit(x, x)


def test_images_of_any_size_go_in(tiny_run):
    """Larger and in colour: the same as prepared before."""
    images = torch.randint(256, (10, 3, 21, 33), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    prepared = Preprocess(8, 8, channels=1)(images)
    assert prepared.shape == (10, 1, 8, 8)
    raw = tiny_run.detector(images)
    assert all(torch.equal(a, b) for a, b in zip(raw, tiny_run.detector(prepared), strict=True))
    assert torch.allclose(tiny_run.detector.scores(images), raw.score)


def test_format_1_is_read_without_p_values(tiny_run, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_run.folder / "detector", tmp_path / "old")
    tensors = load_file(folder / "model.safetensors")
    for name in ("calibration", "remembered", "temperature"):
        del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    card = json.loads((folder / "detector.json").read_text())
    old = {key: card[key] for key in ("net", "score", "classes", "size", "threshold", "higher_is", "method")}
    (folder / "detector.json").write_text(json.dumps({"format": 1, "tpr": 0.95, **old}))
    detector = Detector.load(folder)
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert all(torch.equal(a, b) for a, b in zip(detector(x), tiny_run.detector(x), strict=True))
    assert detector.judge(x).p_value.isnan().all()
    with pytest.raises(NotFittedError, match="no calibration scores"):
        detector.p_value(torch.zeros(1))
    again = Detector.load(detector.save(tmp_path / "new"))
    assert again.about["tpr"] == 0.95


def test_the_model_card_says_what_the_detector_is(tiny_run, tmp_path):
    import yaml

    folder = tiny_run.detector.save(tmp_path / "d")
    text = (folder / "README.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["library_name"] == "farout"
    assert "license" not in head
    assert "Not evaluated yet" in text
    row = {"id": "digits", "ood": "flower", "score": "msp", "fpr95_id": 0.1234, "auroc": 0.9, "accuracy": 1.0}
    record_metrics(tmp_path, [row])  # no detector there: nothing happens
    record_metrics(folder, [row])
    text = (folder / "README.md").read_text()
    assert "| flower | msp | 12.34 | 90.00 | 100.00 |" in text
    assert "95.0% of these samples are accepted" in text
    assert tiny_run.detector.about["recipe_hash"] in text
    detector = Detector.load(folder)
    assert detector.about["metrics"] == [row]
    detector.about["licence"] = "apache-2.0"
    text = (
        detector.calibrate(open_named("demo/digits", split="test"), alpha=0.02).save(folder) / "README.md"
    ).read_text()
    assert yaml.safe_load(text.split("---")[1])["license"] == "apache-2.0"
    assert "probability at most 0.02 (conformal)" in text
    card = json.loads((folder / "detector.json").read_text())
    assert card["normalisation"] == {"mean": [pytest.approx(0.305)], "std": [pytest.approx(0.376)]}
    assert len(card["calibrated_on"]["fingerprint"]) == 32


def test_resize_and_crop_come_back(tmp_path):
    net = identity_net()
    detector = Detector(net, Given(), size=(9, 8))
    assert (detector.prepare.resize, detector.prepare.crop) == (9, 8)
    detector.score = MSP()
    detector.threshold.fill_(0)
    folder = detector.save(tmp_path)
    assert Detector.load(folder, net=identity_net()).size == (9, 8)


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
        (damage_format, "has format 99; this version of farout reads formats 1, 2"),
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
