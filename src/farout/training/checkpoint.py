"""Training state on disk: written beside, flushed, then renamed, so that a file is whole or absent."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from farout.errors import CheckpointError

State = dict[str, Any]


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a temporary file, flush it to the disk, and give it the name `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}; what was there before is untouched") from error
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


class Checkpoints:
    """The checkpoints of one run: `step-00001234.pt`, the newest `keep` of them."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def files(self) -> list[Path]:
        """What there is, oldest first."""
        return sorted(self.folder.glob("step-*.pt"))

    def save(self, state: State, step: int) -> Path:
        path = self.folder / f"step-{step:08d}.pt"
        write_atomically(path, lambda file: torch.save(state, file))
        for old in self.files()[: -self.keep]:
            old.unlink()
        return path

    def latest(self) -> State | None:
        """The newest state, or None in a fresh run."""
        files = self.files()
        return load_state(files[-1]) if files else None


def load_state(path: Path) -> State:
    """A checkpoint's content; nothing in the file is executed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the damaged bytes lead to
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({type(error).__name__}: {error})") from None
    if not isinstance(state, dict) or "objective" not in state:
        raise CheckpointError(f"{path} is not a farout checkpoint: it has no 'objective'")
    return state
