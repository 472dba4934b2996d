"""Decoding, resizing and cropping of image files, and what happens to bad ones."""

import pickle
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from farout.data.image_files import ImageFiles, decode
from farout.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def picture(height: int, width: int) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path: Path, array: np.ndarray) -> Path:
    Image.fromarray(array).save(path)
    return path


def png_header(path: Path, width: int, height: int) -> Path:
    """A PNG file that claims a size and has next to no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 10)) + chunk(b"IEND", b""))
    return path


def test_an_image_of_the_right_size_is_untouched(tmp_path: Path):
    array = picture(8, 8)
    image = decode(save(tmp_path / "a.png", array), 8, 8)
    assert image.dtype == torch.uint8
    assert torch.equal(image, torch.from_numpy(array).permute(2, 0, 1))


def test_the_centre_is_cropped(tmp_path: Path):
    array = picture(8, 15)
    # (15 - 8) / 2 = 3.5 rounds to the even 4, as in the released evaluations
    image = decode(save(tmp_path / "a.png", array), 8, 8)
    assert torch.equal(image, torch.from_numpy(array[:, 4:12].copy()).permute(2, 0, 1))
    assert torch.equal(
        decode(save(tmp_path / "b.png", array.transpose(1, 0, 2)), 8, 8), image.transpose(1, 2).contiguous()
    )


def test_the_shorter_side_is_halved_by_an_antialiased_triangle(tmp_path: Path):
    # Halving with the bilinear (triangle) kernel weighs four pixels a side 1/8, 3/8, 3/8, 1/8; the border
    # ones are cut off and the rest made to sum to one. Checked by hand inside the image, where no border is.
    array = np.repeat(np.arange(0, 256, 16, dtype=np.uint8)[None, :, None], 16, axis=0).repeat(3, axis=2)
    image = decode(save(tmp_path / "a.png", array), 8, 8)
    weights = np.array([1, 3, 3, 1]) / 8
    row = array[0, :, 0].astype(float)
    expected = [weights @ row[2 * i - 1 : 2 * i + 3] for i in range(1, 7)]
    assert image[0, 3, 1:7].tolist() == [round(value) for value in expected]


def test_resize_and_crop_may_differ(tmp_path: Path):
    path = save(tmp_path / "a.png", picture(20, 30))
    whole = decode(path, 16, 16)
    assert torch.equal(decode(path, 16, 8), whole[:, 4:12, 4:12])


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str):
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.fromarray(picture(8, 8)).convert(mode).save(tmp_path / f"a.{suffix}")
    assert decode(tmp_path / f"a.{suffix}", 8, 8).shape == (3, 8, 8)


def test_a_set_reads_in_the_order_asked(tmp_path: Path):
    arrays = [picture(8, 8) for _ in range(3)]
    for number, array in enumerate(arrays):
        save(tmp_path / f"{number}.png", array)
    given = ImageFiles("f", tmp_path, ["2.png", "0.png", "1.png"], [5, 6, -1], size=8)
    x, y = given.read(torch.tensor([1, 0]))
    assert torch.equal(x, torch.from_numpy(np.stack([arrays[0], arrays[2]])).permute(0, 3, 1, 2))
    assert y.tolist() == [6, 5]
    assert given.file(2) == tmp_path / "1.png"
    assert ImageFiles("f", tmp_path, ["0.png"]).read(torch.tensor([0]))[1].tolist() == [-1]


def test_a_set_survives_pickling(tmp_path: Path):
    save(tmp_path / "é.png", picture(8, 8))
    given = ImageFiles("f", tmp_path, ["é.png"], size=8)
    again = pickle.loads(pickle.dumps(given))
    assert torch.equal(again.read(torch.tensor([0]))[0], given.read(torch.tensor([0]))[0])


def bad_images(folder: Path) -> list[str]:
    """Seven files that no decoder reads, one of each kind of damage, between two good ones."""
    save(folder / "a.png", picture(40, 40))
    whole = save(folder / "z.jpg", picture(40, 40)).read_bytes()
    (folder / "b.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "c.jpg").write_bytes(b"")
    (folder / "d.png").write_bytes((folder / "a.png").read_bytes()[:60])
    (folder / "e.png").write_text("not an image")
    (folder / "f.png").write_bytes(whole[2:])
    png_header(folder / "g.png", 30_000, 30_000)
    png_header(folder / "h.png", 8, 8)
    return sorted(path.name for path in folder.iterdir())


def test_a_bad_image_is_named_when_it_is_read(tmp_path: Path):
    given = ImageFiles("f", tmp_path, bad_images(tmp_path))
    assert given.read(torch.tensor([0, 8]))[0].shape == (2, 3, 32, 32)
    for index in range(1, 8):
        with pytest.raises(DataError, match=given.file(index).name):
            given.read(torch.tensor([0, index]))


def test_bad_images_can_be_skipped(tmp_path: Path):
    files = bad_images(tmp_path)
    with pytest.warns(UserWarning, match=r"f: skipped 7 damaged image\(s\): .*b\.jpg.*f\.png, \.\.\.$") as caught:
        given = ImageFiles("f", tmp_path, files, list(range(9)), corrupt="skip")
    assert len(caught) == 1
    assert "g.png" not in str(caught[0].message)
    assert given.skipped == tuple(str(tmp_path / file) for file in files[1:8])
    assert given.labels is not None
    assert (len(given), given.labels.tolist()) == (2, [0, 8])
    assert given.read(torch.tensor([1]))[1].tolist() == [8]


def test_nothing_is_said_where_nothing_is_skipped(tmp_path: Path):
    save(tmp_path / "a.png", picture(8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ImageFiles("f", tmp_path, ["a.png"], corrupt="skip").skipped == ()


def test_skipping_everything_is_an_error(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"f: none of the 1 images .* can be decoded: .*a\.png"):
        ImageFiles("f", tmp_path, ["a.png"], corrupt="skip")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("limit", [Image.MAX_IMAGE_PIXELS, None])
def test_decompression_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(DataError, match=r"a\.png is 10000 x 10000, .* refused as a decompression bomb"):
        decode(png_header(tmp_path / "a.png", 10_000, 10_000), 32, 32)


def test_a_thin_image_that_would_explode_when_resized_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"a\.png is 80000000 x 1, .* refused"):
        decode(png_header(tmp_path / "a.png", 80_000_000, 1), 32, 32)


def test_other_formats_are_not_decoded(tmp_path: Path):
    Image.fromarray(picture(8, 8)).save(tmp_path / "a.gif")
    (tmp_path / "a.gif").rename(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png cannot be decoded"):
        decode(tmp_path / "a.png", 8, 8)


@pytest.mark.parametrize("size", [0, -3, (16, 32), (16, 16, 16)])
def test_impossible_sizes_are_refused(tmp_path: Path, size):
    with pytest.raises(ConfigError, match="is not a crop inside a resized image"):
        ImageFiles("f", tmp_path, ["a.png"], size=size)


def test_unknown_treatment_of_corrupt_images_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="corrupt='ignore' is not known; use 'raise' or 'skip'"):
        ImageFiles("f", tmp_path, ["a.png"], corrupt="ignore")


def test_no_images_is_an_error(tmp_path: Path):
    with pytest.raises(DataError, match="f: no images"):
        ImageFiles("f", tmp_path, [])
