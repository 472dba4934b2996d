"""Examples beside a detector: gathered, found again, refused where the file is not what it should be."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from farout.data.named import open_named
from farout.detector import Detector
from farout.errors import CheckpointError
from farout.examples import LARGEST, MOST, NAME, SIDE, Examples, gather, load, save
from farout.nets.make import make_net
from farout.nets.net import Net, Normalise
from farout.scores import MSP


@pytest.fixture
def detector(tiny_run) -> Detector:
    return tiny_run.detector


@pytest.fixture
def digits():
    return open_named("demo/digits", split="test")


def test_they_come_back_and_an_image_is_nearest_to_itself(detector, digits, tmp_path):
    kept = gather(detector, digits, 40)
    save(kept, detector, tmp_path)
    again = load(tmp_path, detector)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    assert kept.images.shape == (40, 1, 8, 8)
    rows = torch.linspace(0, len(digits) - 1, 40, dtype=torch.float64).round().long()
    x, y = digits.read(rows)
    assert torch.equal(kept.images, x)
    assert torch.equal(kept.labels, y)
    with torch.no_grad():
        features = detector.net(x).features
    distances, indices = again.nearest(features, 3)
    assert distances.shape == indices.shape == (40, 3)
    assert (distances[:, 0] < 1e-5).all()
    assert (kept.images[indices[:, 0]] == kept.images).flatten(1).all(dim=1).float().mean() > 0.9
    assert (distances.diff(dim=1) >= 0).all()
    unit = features / features.norm(dim=1, keepdim=True)
    wanted = (unit[0] - unit).norm(dim=1).sort().values[:3]
    torch.testing.assert_close(distances[0], wanted, atol=1e-5, rtol=0)
    assert again.nearest(features, 99)[1].shape == (40, 40)


def test_large_images_become_thumbnails_and_few_samples_are_all_kept():
    body = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
    wide = Detector(Net(body, nn.Linear(48, 3), Normalise([0.5] * 3, [0.5] * 3)), MSP(), size=128)
    wide.fit(None, torch.randint(256, (9, 3, 128, 128), dtype=torch.uint8))
    kept = gather(wide, torch.randint(256, (5, 3, 140, 200), dtype=torch.uint8), 100)
    assert kept.images.shape == (5, 3, SIDE, SIDE)
    assert kept.labels.tolist() == [-1] * 5
    torch.testing.assert_close(kept.features.norm(dim=1), torch.ones(5))


def test_without_the_file_there_are_none_and_bad_counts_are_refused(detector, digits, tmp_path):
    assert load(tmp_path, detector) is None
    for count in (0, MOST + 1):
        with pytest.raises(ValueError, match=f"1 to {MOST} examples, got {count}"):
            gather(detector, digits, count)
    with pytest.raises(ValueError, match="uint8 images of 1 or 3 channels"):
        gather(Detector(Net(nn.Identity(), nn.Linear(5, 3)), MSP()), torch.rand(5, 5), 5)


def test_examples_of_another_network_are_refused(detector, digits, tmp_path):
    save(gather(detector, digits, 4), detector, tmp_path)
    spec = detector.net.spec
    other = Detector(make_net(spec), MSP(), classes=detector.classes, size=8)
    with pytest.raises(CheckpointError, match="made with another network; delete it"):
        load(tmp_path, other)


HOSTILE = {
    "float images": {"images": torch.zeros(4, 1, 8, 8)},
    "no channels": {"images": torch.zeros(4, 8, 8, dtype=torch.uint8)},
    "two channels": {"images": torch.zeros(4, 2, 8, 8, dtype=torch.uint8)},
    "no pixels": {"images": torch.zeros(4, 1, 0, 0, dtype=torch.uint8)},
    "huge images": {"images": torch.zeros(4, 1, SIDE + 1, 8, dtype=torch.uint8)},
    "too few images": {"images": torch.zeros(3, 1, 8, 8, dtype=torch.uint8)},
    "labels of no class": {"labels": torch.tensor([0, 1, 2, 6])},
    "negative labels": {"labels": torch.tensor([0, 1, 2, -2])},
    "float labels": {"labels": torch.zeros(4)},
    "a table of labels": {"labels": torch.zeros(2, 2, dtype=torch.int64)},
    "narrow features": {"features": torch.zeros(4, 3)},
    "double features": {"features": torch.zeros(4, 1).double()},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_what_no_example_has_is_refused(change, detector, digits, tmp_path):
    path = save(gather(detector, digits, 4), detector, tmp_path)
    save_file({**load_file(path), **change}, path)
    with pytest.raises(CheckpointError, match=f"its {next(iter(change))} are .*, which no example has"):
        load(tmp_path, detector)


def test_features_that_are_not_finite_empty_sets_and_foreign_files_are_refused(detector, digits, tmp_path):
    path = save(gather(detector, digits, 4), detector, tmp_path)
    good = load_file(path)
    save_file({**good, "features": good["features"] * float("nan")}, path)
    with pytest.raises(CheckpointError, match="its features"):
        load(tmp_path, detector)
    save_file({**good, **{name: good[name][:0] for name in Examples._fields}}, path)
    with pytest.raises(CheckpointError, match="which no example has"):
        load(tmp_path, detector)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=r"holds \['other'\], which are no examples"):
        load(tmp_path, detector)
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=f"{NAME} is damaged"):
        load(tmp_path, detector)
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(CheckpointError, match="at most 67,108,864 are read"):
        load(tmp_path, detector)
