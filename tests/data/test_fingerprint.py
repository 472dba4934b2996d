"""Fingerprints: spectra against a plain loop, what a classifier makes of them, and the command."""

import json

import numpy as np
import pytest
import torch

from farout.data.arrays import ArraySet
from farout.data.fingerprint import UNSEEN, fingerprint, spectrum, verdict
from farout.errors import ConfigError, DataError


def noise(count, seed, side=16, channels=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator)


def blurred(images):
    return torch.nn.functional.avg_pool2d(images.float(), 3, stride=1, padding=1).round().to(torch.uint8)


def by_loop(image):
    """The rings of one image (C, H, W), frequency by frequency."""
    _, height, width = image.shape
    grey = image.astype(np.float64).mean(axis=0)
    power = np.abs(np.fft.fft2(grey - grey.mean())) ** 2 / (height * width)
    rings = {}
    for y in range(height):
        for x in range(width):
            down = (y if y < (height + 1) // 2 else y - height) / height
            across = (x if x < (width + 1) // 2 else x - width) / width
            radius = round(float(np.hypot(down * min(height, width), across * min(height, width))))
            rings.setdefault(radius, []).append(power[y, x])
    return [np.log(np.mean(rings[radius]) + 1 / 12) for radius in sorted(rings)[1:]]


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 7, 7), (3, 6, 10), (3, 9, 4), (1, 2, 2), (1, 2, 9)])
def test_the_spectrum_is_that_of_a_plain_loop(shape):
    images = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    expected = np.array([by_loop(image) for image in images])
    np.testing.assert_allclose(spectrum(torch.from_numpy(images)).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_rings_go_to_the_corner_and_a_wave_is_in_its_own():
    places = torch.arange(32)
    wave = (127.5 + 100 * torch.cos(2 * torch.pi * 5 * places / 32)).round().to(torch.uint8).expand(1, 1, 32, 32)
    found = spectrum(wave)
    assert found.shape == (1, 23)
    assert found.argmax() == 5 - 1
    assert torch.equal(found, spectrum(wave.mT))


def test_neither_batches_nor_brightness_matter_and_a_flat_image_is_finite(monkeypatch):
    images = noise(7, 0, side=8) // 2
    whole = spectrum(images)
    monkeypatch.setattr("farout.data.fingerprint.CHUNK", 3)
    torch.testing.assert_close(spectrum(images), whole)
    torch.testing.assert_close(spectrum(images + 100), whole)
    flat = spectrum(torch.full((1, 3, 8, 8), 9, dtype=torch.uint8))
    torch.testing.assert_close(flat, torch.full((1, 6), 1 / 12).log())
    assert spectrum(images[:0]).shape == (0, 6)


@pytest.mark.parametrize("images", [torch.rand(2, 3, 8, 8), noise(1, 0)[0], torch.zeros(2, 1, 1, 9, dtype=torch.uint8)])
def test_what_has_no_spectrum(images):
    with pytest.raises(DataError, match=r"uint8 images \(N, C, H, W\)|2x2 pixels"):
        spectrum(images)


def test_a_blur_gives_all_away_and_two_halves_of_a_set_nothing():
    plain, same, soft = noise(400, 1), noise(400, 2), blurred(noise(400, 1))
    tests = {"alike": ArraySet("c", noise(300, 3)), "soft": ArraySet("d", blurred(noise(30, 4)))}
    given = fingerprint(ArraySet("a", plain), ArraySet("b", soft), tests, count=300)
    assert [(row["set"], row["count"]) for row in given] == [(UNSEEN, 150), ("alike", 300), ("soft", 30)]
    assert given[0]["auroc"] > 0.99
    assert 0.4 < given[1]["auroc"] < 0.6
    assert given[2]["auroc"] > 0.99
    hidden = fingerprint(ArraySet("a", plain), ArraySet("b", same), {}, count=400)
    assert 0.4 < hidden[0]["auroc"] < 0.6


def test_what_was_fitted_on_is_not_judged():
    """With as many rings as images in half a set, a fit that judged itself would do far better than chance."""
    a, b = (ArraySet("s", noise(100, seed, side=64)) for seed in (5, 6))
    assert fingerprint(a, b, {})[0]["auroc"] < 0.7


def test_the_same_again_whatever_else_is_tested():
    known, other, third = (ArraySet("s", noise(300, seed, side=8)) for seed in (1, 2, 3))
    first = fingerprint(known, other, {"x": third, "y": other}, count=120)
    assert fingerprint(known, other, {"y": other, "x": third}, count=120) == [first[0], first[2], first[1]]
    assert fingerprint(known, other, {"x": third, "y": other}, count=120, seed=1) != first


def test_errors_name_the_set():
    images, few = ArraySet("many", noise(100, 0)), ArraySet("few", noise(99, 0))
    with pytest.raises(DataError, match="auxiliary set few has 99 images.*100 or more"):
        fingerprint(images, few, {})
    with pytest.raises(DataError, match="ID set few has 99"):
        fingerprint(few, images, {})
    with pytest.raises(DataError, match="test set none has 0"):
        fingerprint(images, images, {"t": ArraySet("none", noise(0, 0))})
    with pytest.raises(DataError, match="ID set vectors holds embeddings"):
        fingerprint(ArraySet("vectors", torch.rand(200, 4)), images, {})
    with pytest.raises(DataError, match="test set small are 8x8, those of many 16x16.*same size"):
        fingerprint(images, images, {"t": ArraySet("small", noise(5, 0, side=8))})
    with pytest.raises(ConfigError, match="count=99.*100 or more"):
        fingerprint(images, images, {}, count=99)


def test_colour_and_grey_sets_can_be_compared():
    grey = noise(200, 0, channels=1)
    rows = fingerprint(ArraySet("grey", grey), ArraySet("colour", noise(200, 1, channels=1).expand(-1, 3, -1, -1)), {})
    assert rows[0]["auroc"] < 0.65


@pytest.mark.parametrize(
    ("area", "words"), [(0.59, "hardly"), (0.6, "something"), (0.7, "something"), (0.71, "data.outlier_augment=wide")]
)
def test_verdicts(area, words):
    assert words in verdict(area)


def test_the_command(cli, tmp_path):
    out_file = tmp_path / "new" / "rows.json"
    given = ("demo/digits", "demo/outliers", "demo/noise", "demo/gratings", "--count", 200)
    code, out, err = cli("data", "fingerprint", *given, "--out", out_file)
    assert code == 0, err
    assert "demo/gratings" in out
    assert "data.validation=[outliers,synthetic]" in out
    written = json.loads(out_file.read_text())
    assert [path.name for path in out_file.parent.iterdir()] == ["rows.json"]
    assert (written["id"], written["outliers"], written["count"]) == ("demo/digits", "demo/outliers", 200)
    assert [row["set"] for row in written["rows"]] == [UNSEEN, "demo/noise", "demo/gratings"]
    code, out, _ = cli("data", "fingerprint", *given, "--json")
    assert (code, json.loads(out)) == (0, written)


def test_the_command_takes_the_sets_of_a_protocol_less_what_it_drops(cli, tmp_path):
    labels = np.arange(240) % 2
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        np.savez(tmp_path / f"{name}.npz", images=noise(240, seed, side=8).permute(0, 2, 3, 1).numpy(), labels=labels)
    text = "id: a\noutliers: b\ndrop: [1]\ntest: {near: [{name: third, path: c, drop: [0]}, absent]}\n"
    (tmp_path / "mine.yaml").write_text(text)
    asked = ("data", "fingerprint", "--protocol", tmp_path / "mine.yaml", "--root", tmp_path, "--json")
    code, out, err = cli(*asked, "--skip-missing")
    assert code == 0, err
    assert [(row["set"], row["count"]) for row in json.loads(out)["rows"]] == [(UNSEEN, 60), ("third", 120)]
    code, _, err = cli(*asked)
    assert code == 1
    assert "absent" in err
    (tmp_path / "mine.yaml").write_text("id: a\ntest: {near: [c]}\n")
    code, _, err = cli(*asked)
    assert code == 1
    assert "no auxiliary set" in err


@pytest.mark.parametrize(
    "arguments", [(), ("demo/digits",), ("demo/digits", "demo/outliers", "--protocol", "demo")], ids=len
)
def test_the_command_wants_sets_or_a_protocol(cli, arguments):
    code, _, err = cli("data", "fingerprint", *arguments)
    assert code == 2
    assert "--protocol" in err


def test_the_command_has_an_example(cli):
    assert "Example" in cli("data", "fingerprint", "--help")[1]
