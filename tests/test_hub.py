"""The hub with a stand-in for huggingface_hub: what goes up comes down, and nothing else does."""

import shutil
import sys
import types

import pytest
import torch

from farout import hub
from farout.errors import CheckpointError


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A hub in a folder."""
    store = tmp_path / "hub"

    def create_repo(repo, private, exist_ok):
        (store / repo).mkdir(parents=True, exist_ok=exist_ok)
        return f"https://hub/{repo}"

    def upload_folder(repo_id, folder_path, allow_patterns, commit_message):
        for name in allow_patterns:
            shutil.copy(f"{folder_path}/{name}", store / repo_id / name)

    def snapshot_download(repo, revision, allow_patterns):
        if not (store / repo).is_dir():
            raise OSError("404")
        target = tmp_path / "cache" / repo
        target.mkdir(parents=True)
        for name in allow_patterns:
            shutil.copy(store / repo / name, target / name)
        return str(target)

    module = types.ModuleType("huggingface_hub")
    module.create_repo, module.upload_folder, module.snapshot_download = create_repo, upload_folder, snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return store


def test_push_and_load(fake, tiny_run, tmp_path):
    folder = tiny_run.detector.save(tmp_path / "d")
    (folder / "private.txt").write_text("not for others")
    assert hub.push(folder, "me/digits") == "https://hub/me/digits"
    assert {file.name for file in (fake / "me/digits").iterdir()} == set(hub.FILES)
    loaded = hub.load("me/digits")
    x = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(loaded(x).score, tiny_run.detector(x).score)


def test_what_is_wrong_is_named(fake, tiny_run, tmp_path):
    with pytest.raises(CheckpointError, match="me/none cannot be fetched from the hub: 404"):
        hub.load("me/none")
    with pytest.raises(CheckpointError, match="is not a detector"):
        hub.push(tmp_path, "me/empty")
    folder = tiny_run.detector.save(tmp_path / "d")
    (folder / "README.md").unlink()
    with pytest.raises(CheckpointError, match="lacks README.md"):
        hub.push(folder, "me/digits")


def test_without_the_package_it_says_which_extra(monkeypatch, tiny_run, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'farout\[hub\]'"):
        hub.load("me/digits")


def test_the_real_package_takes_these_arguments():
    """The stand-in cannot drift from the package: the names it is called with exist there."""
    import inspect

    real = pytest.importorskip("huggingface_hub")
    for function, names in {
        real.create_repo: {"private", "exist_ok"},
        real.upload_folder: {"repo_id", "folder_path", "allow_patterns", "commit_message"},
        real.snapshot_download: {"revision", "allow_patterns"},
    }.items():
        assert names <= set(inspect.signature(function).parameters)
