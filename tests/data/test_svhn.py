"""SVHN's .mat files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from farout.data.svhn import CLASSES, read_svhn
from farout.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)


def write(path: Path, pixels: np.ndarray = PIXELS) -> Path:
    savemat(path, {"X": pixels, "y": np.array([[1], [10], [9], [10]], np.uint8)}, do_compression=True)
    return path


def test_pixels_and_digits(tmp_path: Path):
    given = read_svhn(write(tmp_path / "test_32x32.mat"))
    assert (len(given), given.name, given.classes) == (4, "svhn", CLASSES)
    x, y = given.read(torch.tensor([3, 0]))
    assert y.tolist() == [0, 1]
    assert x.shape == (2, 3, 32, 32)
    assert torch.equal(x[0], torch.from_numpy(PIXELS[:, :, :, 3].transpose(2, 0, 1).copy()))


@pytest.mark.parametrize("damage", [lambda data: data[:1500], lambda data: b"", lambda data: b"no" * 400])
def test_damaged_files_are_named(tmp_path: Path, damage):
    path = write(tmp_path / "test_32x32.mat")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"test_32x32\.mat cannot be read"):
        read_svhn(path)


def test_missing_fields_are_named(tmp_path: Path):
    savemat(tmp_path / "m.mat", {"X": PIXELS})
    with pytest.raises(DataError, match=r"m\.mat cannot be read as an SVHN file: KeyError: 'y'"):
        read_svhn(tmp_path / "m.mat")


def test_other_shapes_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"X is \(32, 32, 3, 3\) of uint8, expected \(32, 32, 3, 4\)"):
        read_svhn(write(tmp_path / "m.mat", PIXELS[..., :3]))
