"""Raw images of any size: Pillow as the witness."""

import numpy as np
import pytest
import torch
from PIL import Image

from farout.data.image_files import decode
from farout.errors import DataError
from farout.preprocess import Preprocess


def photograph(height: int, width: int) -> np.ndarray:
    from sklearn.datasets import load_sample_image

    return np.asarray(Image.fromarray(load_sample_image("china.jpg")).resize((width, height)))


@pytest.mark.parametrize(("height", "width"), [(427, 640), (640, 427), (33, 200), (97, 97), (20, 31)])
@pytest.mark.parametrize(("resize", "crop"), [(32, 32), (64, 56)])
def test_within_two_grey_levels_of_pillow(tmp_path, height, width, resize, crop):
    pixels = photograph(height, width)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    wanted = decode(tmp_path / "a.png", resize, crop)
    got = Preprocess(resize, crop)(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])
    assert got.dtype == torch.uint8
    assert got.shape == (1, 3, crop, crop)
    apart = (got[0].int() - wanted.int()).abs()
    assert apart.max() <= 2
    assert apart.float().mean() < 0.3


def test_the_right_size_is_left_alone():
    images = torch.randint(256, (4, 3, 56, 56), dtype=torch.uint8)
    assert torch.equal(Preprocess(64, 56)(images), images)
    wide = torch.randint(256, (1, 3, 64, 80), dtype=torch.uint8)
    assert torch.equal(Preprocess(64, 56)(wide), wide[..., 4:60, 12:68])  # resized already: only the crop


def test_float_pixels_are_not_rounded():
    images = torch.rand(2, 3, 40, 50)
    out = Preprocess(16, 16)(images)
    assert out.dtype == torch.float32
    bytes_out = Preprocess(16, 16)((images * 255).round().to(torch.uint8)).float() / 255
    assert (out - bytes_out).abs().max() < 2 / 255


def test_channels():
    colour = torch.tensor([200, 100, 50], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    grey = Preprocess(8, 8, channels=1)(colour)
    assert grey.shape == (1, 1, 8, 8)
    assert grey.unique().tolist() == [round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)]
    assert Preprocess(8, 8, channels=3)(grey).shape == (1, 3, 8, 8)
    with pytest.raises(DataError, match=r"takes 3 channel\(s\), the images have 4"):
        Preprocess(8, 8, channels=3)(torch.zeros(1, 4, 8, 8))


def test_what_is_no_image_is_named():
    with pytest.raises(DataError, match=r"takes images \(B, C, H, W\).*got \(3, 8, 8\) of torch.uint8"):
        Preprocess(8, 8)(torch.zeros(3, 8, 8, dtype=torch.uint8))
    with pytest.raises(DataError, match="torch.int64"):
        Preprocess(8, 8)(torch.zeros(1, 3, 8, 8, dtype=torch.int64))
    with pytest.raises(ValueError, match="resize=8 and crop=9"):
        Preprocess(8, 9)
