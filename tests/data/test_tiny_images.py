"""80 Million Tiny Images: plane order, exclusion arithmetic, safety across processes."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from farout.data.tiny_images import TinyImages, read_tiny_images
from farout.errors import DataError

COUNT = 12
RAW = np.random.default_rng(0).integers(0, 256, (COUNT, 3072), dtype=np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "tiny_images.bin").write_bytes(RAW.tobytes())
    return tmp_path / "tiny_images.bin"


def exclude(path: Path, *numbers: int) -> Path:
    listed = path.parent / "80mn_cifar_idxs.txt"
    listed.write_text("".join(f"{number}\n" for number in numbers))
    return listed


def stored(indices: list[int]) -> Tensor:
    """The images as the release reads them: (32, 32, 3), the first axis fastest."""
    return torch.stack(
        [torch.from_numpy(RAW[i].reshape(32, 32, 3, order="F").copy()).permute(2, 0, 1) for i in indices]
    )


def test_pixels_are_column_major_planes(path: Path):
    given = TinyImages(path)
    x, y = given.read(torch.tensor([5, 0]))
    assert torch.equal(x, stored([5, 0]))
    assert x.is_contiguous()
    assert x[0, 1, 2, 3] == RAW[5, 2 + 32 * 3 + 1024]
    assert (y.tolist(), given.labels, given.classes) == ([-1, -1], None, ())


@pytest.mark.parametrize("gone", [(1,), (12,), (1, 2, 3), (3, 4, 8, 12), (2, 4, 6, 8, 10, 12), (5, 5, 5)])
def test_excluded_images_are_not_in_the_set(path: Path, gone: tuple[int, ...]):
    given = TinyImages(path, exclude(path, *gone))
    kept = [i for i in range(COUNT) if i + 1 not in gone]
    assert len(given) == len(kept)
    assert torch.equal(given.read(torch.arange(len(kept)))[0], stored(kept))
    with pytest.raises(IndexError):
        given.read(torch.tensor([len(kept)]))


def test_the_list_beside_the_file_is_used_and_required(path: Path):
    with pytest.raises(DataError, match=r"80mn_cifar_idxs\.txt, which says which, is missing"):
        read_tiny_images(path)
    exclude(path, 1)
    assert len(read_tiny_images(path)) == COUNT - 1


@pytest.mark.parametrize("numbers", [(0,), (13,)])
def test_a_list_of_another_file_is_refused(path: Path, numbers: tuple[int, ...]):
    with pytest.raises(DataError, match=r"80mn_cifar_idxs\.txt lists images .* do not belong together"):
        TinyImages(path, exclude(path, 2, *numbers))


def test_a_list_of_words_is_refused(path: Path):
    (path.parent / "list.txt").write_text("cat\n")
    with pytest.raises(DataError, match=r"list\.txt is not a list of image numbers"):
        TinyImages(path, path.parent / "list.txt")


def test_excluding_everything_is_an_error(path: Path):
    with pytest.raises(DataError, match="excludes all 12 images"):
        TinyImages(path, exclude(path, *range(1, 13)))


@pytest.mark.parametrize("size", [0, 3071, 3072 * 3 + 5])
def test_a_partial_image_is_damage(path: Path, size: int):
    path.write_bytes(RAW.tobytes()[:size])
    with pytest.raises(DataError, match=rf"tiny_images\.bin is damaged: {size:,} bytes found"):
        TinyImages(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"tiny_images\.bin is missing"):
        TinyImages(tmp_path / "tiny_images.bin")


def test_it_is_pickled_without_its_pixels(path: Path):
    given = TinyImages(path, exclude(path, 2))
    given.read(torch.tensor([0]))
    sent = pickle.dumps(given)
    assert len(sent) < RAW.nbytes / 10
    assert torch.equal(pickle.loads(sent).read(torch.tensor([1]))[0], stored([2]))


def read_backwards(given: TinyImages, answer: "multiprocessing.SimpleQueue[bool]") -> None:
    order = list(range(len(given)))[::-1]
    answer.put(all(torch.equal(given.read(torch.tensor([i]))[0], stored([i])) for i in order))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_forked_workers_do_not_disturb_each_other(path: Path):
    given = TinyImages(path)
    given.read(torch.tensor([0]))  # opened before the fork, as a DataLoader's parent may do
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    workers = [context.Process(target=read_backwards, args=(given, answer)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [answer.get() for _ in workers] == [True, True]
    for worker in workers:
        worker.join()
