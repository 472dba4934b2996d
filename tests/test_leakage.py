"""What training and test sets share is found once, remembered, told or refused."""

from dataclasses import replace

import numpy as np
import pytest

from farout import leakage as module
from farout.config import Config
from farout.errors import ConfigError, DataError
from farout.leakage import leakage


@pytest.fixture
def config(tmp_path):
    """Two test images were trained on, one as an inlier and one as an outlier."""
    rng = np.random.default_rng(0)
    images = {name: rng.integers(256, size=(40, 8, 8, 3), dtype=np.uint8) for name in ("ours", "aux", "far")}
    images["far"][3], images["far"][5] = images["ours"][7], images["aux"][9]
    labels = np.arange(40) % 2
    for name in ("ours-train", "ours-test", "aux-train", "far"):
        own = images[name.partition("-")[0]] if name != "ours-test" else rng.integers(256, size=(40, 8, 8, 3))
        np.savez(tmp_path / f"{name}.npz", images=own.astype(np.uint8), labels=labels)
    made = Config.load("demo/oe")
    data = replace(made.data, id="ours", outliers="aux", test={"far": ["far"]}, root=str(tmp_path), held_out=0.02)
    return replace(made, data=data)


def test_findings_are_told_and_remembered(config, tmp_path, monkeypatch):
    told = []
    first = leakage([config], tmp_path / "cache", "warn", told.append)
    assert len(first) == 2
    assert all("of the 40 samples of far" in line for line in first)
    assert told == ["looking for images that training and test sets share"]
    monkeypatch.setattr(module, "_look", lambda data: pytest.fail("looked twice"))
    assert leakage([config], tmp_path / "cache", "warn", told.append) == first


def test_other_images_are_looked_at_again(config, tmp_path):
    leakage([config], tmp_path / "cache", "warn", print)
    np.savez(tmp_path / "far.npz", images=np.full((40, 8, 8, 3), 9, np.uint8))
    module.fingerprint.cache_clear()  # within one process a set is taken not to change
    assert leakage([config], tmp_path / "cache", "warn", print) == []


def test_what_has_no_outliers_is_looked_at_with_those_that_have(config, tmp_path):
    without = replace(config, data=replace(config.data, outliers=None))
    told = []
    leakage([without, config, config], tmp_path / "cache", "warn", told.append)
    assert len(told) == 1
    assert len(leakage([without], tmp_path / "cache", "warn", told.append)) == 1
    assert len(told) == 2


def test_refusing_not_looking_and_slips(config, tmp_path):
    with pytest.raises(DataError, match="training and test sets overlap.*1 of the 40 samples of far"):
        leakage([config], tmp_path / "cache", "refuse", print)
    assert leakage([config], tmp_path / "none", "none", print) == [
        "Not looked for: images that training and test sets share."
    ]
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="leakage must be warn, refuse, none, got 'maybe'"):
        leakage([config], tmp_path, "maybe", print)
