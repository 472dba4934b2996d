"""Atomic files and damaged ones."""

import errno

import pytest
import torch

from farout.errors import CheckpointError
from farout.training.checkpoint import Checkpoints, load_state, write_atomically


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


def test_a_fresh_run_has_no_state(tmp_path):
    assert Checkpoints(tmp_path).latest() is None


def test_damaged_and_foreign_files_are_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save({"objective": {"w": torch.ones(100)}}, 3)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(CheckpointError, match=r"step-00000003\.pt is damaged or not a checkpoint"):
        checkpoints.latest()
    torch.save({"weights": 1}, path)
    with pytest.raises(CheckpointError, match="is not a farout checkpoint: it has no 'objective'"):
        load_state(path)


def test_nothing_in_a_checkpoint_is_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "made"), "w"))

    torch.save({"objective": Evil()}, tmp_path / "step-00000001.pt")
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        load_state(tmp_path / "step-00000001.pt")
    assert not (tmp_path / "made").exists()
