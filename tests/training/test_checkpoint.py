"""Atomic files, checksums, damaged and foreign checkpoints, a disk that is full."""

import errno
import hashlib
import io
import resource
import warnings
import zipfile

import pytest
import torch

from farout.errors import CheckpointError
from farout.training.checkpoint import HEADER, MAGIC, Checkpoints, OtherFormatError, load_state, write_atomically


def state(step: int, size: int = 100) -> dict:
    return {"objective": {"w": torch.full((size,), float(step))}, "progress": {"step": step}}


def signed(payload: bytes) -> bytes:
    """What an attacker can do: any content, with the right checksum."""
    return MAGIC + hashlib.sha256(payload).digest() + payload


def saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old") and None)

    def full(file):
        file.write(b"half of the n")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left on device; what was there before is untouched"):
        write_atomically(path, full)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_real_write_that_does_not_fit_leaves_the_last_checkpoint(tmp_path):
    """The kernel refuses to let a file grow past a limit, in the middle of the write, as a full disk would."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1), 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*step-00000002.pt: .*File too large"):
            checkpoints.save(state(2, size=10_000), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.pt"]
    assert checkpoints.latest()["progress"] == {"step": 1}


def test_a_fresh_run_has_no_state(tmp_path):
    assert Checkpoints(tmp_path).latest() is None


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES = {
    "truncated": lambda data: data[:-1],
    "cut in the header": lambda data: data[:20],
    "empty": lambda data: b"",
    "a bit of the content": lambda data: flip(data, HEADER + 700),
    "a bit of the checksum": lambda data: flip(data, 20),
    "longer": lambda data: data + b"\0",
    "foreign": lambda data: saved({"weights": 1}),
    "text": lambda data: b"step: 2\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1), 1)
    path = checkpoints.save(state(2), 2)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.warns(UserWarning, match=r"going back to .*step-00000001.pt: .*step-00000002.pt is damaged"):
        found = checkpoints.latest()
    assert found["progress"] == {"step": 1}


def test_whole_ones_load_without_a_warning(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1), 1)
    checkpoints.save(state(2), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoints.latest()["progress"] == {"step": 2}


def test_with_none_left_the_error_says_so(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(state(step), step).write_bytes(b"farout01 and rubbish")
    (tmp_path / "step-00000001.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint is left in .*step-00000002.*step-00000001.*start again"):
        checkpoints.latest()


def test_two_good_ones_stay_whatever_lies_beside_them(tmp_path):
    """After a fall back, a damaged file of a later step is not one of the two; a killed writer's leavings go."""
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(state(step), step)
    (tmp_path / "step-00000009.pt").write_bytes(b"damaged")
    (tmp_path / ".step-00000009.pt.123.part").write_bytes(b"half")
    checkpoints.save(state(4), 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003.pt", "step-00000004.pt"]


def test_another_format_is_refused_and_not_skipped(tmp_path):
    """A newer farout's folder must not be mixed with old states."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1), 1)
    path = checkpoints.save(state(2), 2)
    path.write_bytes(b"farout02" + path.read_bytes()[8:])
    with pytest.raises(OtherFormatError, match="has checkpoint format 02, this farout reads 01"):
        checkpoints.latest()


@pytest.mark.parametrize("content", [{"weights": 1}, [1, 2], {"objective": 3}])
def test_what_is_no_training_state_is_refused(tmp_path, content):
    path = tmp_path / "step-00000001.pt"
    path.write_bytes(signed(saved(content)))
    with pytest.raises(CheckpointError, match="is not a training state: it has no 'objective'"):
        load_state(path)


def test_nothing_in_a_checkpoint_is_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "made"), "w"))

    path = tmp_path / "step-00000001.pt"
    path.write_bytes(signed(saved({"objective": Evil()})))
    with pytest.raises(CheckpointError, match="step-00000001.pt is damaged"):
        load_state(path)
    assert not (tmp_path / "made").exists()


def test_a_compressed_one_is_refused_before_it_unfolds(tmp_path):
    """Ten megabytes of zeros in ten kilobytes; a real one could be ten thousand times larger."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved({"objective": {"w": torch.zeros(2_500_000)}}))) as plain,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for entry in plain.infolist():
            small.writestr(entry.filename, plain.read(entry))
    path = tmp_path / "step-00000001.pt"
    path.write_bytes(signed(packed.getvalue()))
    assert path.stat().st_size < 20_000
    with pytest.raises(CheckpointError, match="it is compressed, and farout's are not"):
        load_state(path)
