"""Detectors on the Hugging Face hub: a repository that holds what `Detector.save` writes."""

from pathlib import Path
from types import ModuleType
from typing import Any

from farout.detector import Detector, read_card
from farout.errors import CheckpointError, MissingExtraError

FILES = ("detector.json", "model.safetensors", "README.md")


def push(folder: str | Path, repo: str, *, private: bool = True, message: str = "A farout detector") -> str:
    """Upload a saved detector to `repo` (owner/name), made if it is not there; returns its address."""
    folder = Path(folder)
    read_card(folder)
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}; save the detector again")
    hub = _hub("pushing a detector")
    address = hub.create_repo(repo, private=private, exist_ok=True)
    hub.upload_folder(repo_id=repo, folder_path=str(folder), allow_patterns=list(FILES), commit_message=message)
    return str(address)


def pull(repo: str, *, revision: str | None = None, **options: Any) -> Path:
    """Download the three files of a detector, and nothing else; returns the folder.

    Name a `revision` (a commit) where it matters which weights you get. `options` go to `snapshot_download`.
    """
    hub = _hub("loading a detector from the hub")
    try:
        folder = Path(hub.snapshot_download(repo, revision=revision, allow_patterns=list(FILES), **options))
    except OSError as error:  # what the hub raises where a repository or the network is missing
        raise CheckpointError(f"{repo} cannot be fetched from the hub: {error}") from None
    read_card(folder)
    return folder


def load(repo: str, *, revision: str | None = None, **options: Any) -> Detector:
    """The detector in a hub repository; nothing in it is executed."""
    return Detector.load(pull(repo, revision=revision, **options))


def _hub(purpose: str) -> ModuleType:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError("huggingface_hub", "hub", purpose) from None
    found: ModuleType = huggingface_hub
    return found
