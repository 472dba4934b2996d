"""Training state on disk: written beside, flushed, then renamed, so that a file is whole or absent.

A checkpoint is `farout` and a two-digit format, the SHA-256 of the rest, then what `torch.save` wrote: damage of any
kind is recognised before anything is read from it.
"""

import hashlib
import io
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from farout.errors import CheckpointError

State = dict[str, Any]

FORMAT = 1
NAME = b"farout"
MAGIC = NAME + b"%02d" % FORMAT
HEADER = len(MAGIC) + hashlib.sha256().digest_size


class OtherFormatError(CheckpointError):
    """A checkpoint is whole, but of another version of farout: going back to an older one would not help."""


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a temporary file, flush it to the disk, and give it the name `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _flush_folder(path.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}; what was there before is untouched") from error


def _flush_folder(path: Path) -> None:
    """The rename itself must survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
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
        """Write a state, then drop all but the newest `keep` up to it, and what a killed process left half-written.

        A file of a later step can only be a damaged one, from before which the run was resumed.
        """
        path = self.folder / f"step-{step:08d}.pt"
        write_state(path, state)
        good = [file for file in self.files() if file <= path]
        for other in {*self.files(), *self.folder.glob(".*.part")} - {*good[-self.keep :]}:
            other.unlink(missing_ok=True)
        return path

    def latest(self) -> State | None:
        """The newest state that is whole, with a warning where newer ones are damaged; None in a fresh run."""
        files = self.files()
        reasons = []
        for path in reversed(files):
            try:
                state = load_state(path)
            except OtherFormatError:
                raise
            except CheckpointError as error:
                reasons.append(str(error))
                continue
            if reasons:
                warnings.warn(f"going back to {path}: {'; '.join(reasons)}", stacklevel=2)
            return state
        if files:
            raise CheckpointError(
                f"no checkpoint is left in {self.folder} ({'; '.join(reasons)}); start again in another --run folder"
            )
        return None


def write_state(path: Path, state: State) -> None:
    """Write a state with its checksum."""
    # In memory first: where the disk is full in the middle, torch's writer hides the reason behind its own.
    content = io.BytesIO()
    torch.save(state, content)
    with content.getbuffer() as payload:
        head = MAGIC + hashlib.sha256(payload).digest()
        write_atomically(path, lambda file: _put(file, head, payload))


def _put(file: BinaryIO, *parts: bytes | memoryview) -> None:
    for part in parts:
        file.write(part)


def is_checkpoint(path: Path) -> bool:
    """Whether a file says that it is one of ours, of whatever format."""
    with path.open("rb") as file:
        return file.read(len(NAME)) == NAME


def load_state(path: Path) -> State:
    """A checkpoint's content; nothing in the file is executed."""
    try:
        with path.open("rb") as file:
            _check(path, file)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # torch raises whatever a forged file leads to
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {reason})") from None
    if not isinstance(state, dict) or not isinstance(state.get("objective"), dict):
        raise CheckpointError(f"{path} is not a training state: it has no 'objective'")
    return state


def _check(path: Path, file: BinaryIO) -> None:
    """Refuse what is foreign, of another format, damaged or compressed; leaves `file` where torch's part begins."""
    magic = file.read(len(MAGIC))
    if magic[: len(NAME)] != NAME:
        raise CheckpointError(f"{path} is damaged or not a farout checkpoint: it begins with {magic!r}")
    if magic != MAGIC:
        found = magic[len(NAME) :].decode("latin1")
        raise OtherFormatError(
            f"{path} has checkpoint format {found}, this farout reads {FORMAT:02d}; continue with the version of "
            "farout that wrote it, or start again in another --run folder"
        )
    digest = file.read(HEADER - len(MAGIC))
    if hashlib.file_digest(cast(io.BufferedReader, file), "sha256").digest() != digest:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
    # torch.save stores without compression; a forged file that is compressed could fill the memory.
    entries = zipfile.ZipFile(file).infolist()
    size = os.fstat(file.fileno()).st_size
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
        raise CheckpointError(f"{path} is not a farout checkpoint: it is compressed, and farout's are not")
    file.seek(HEADER)
