"""Spoilt files through every reader: a result or an error that says what is wrong. `make fuzz` does 100,000 each."""

import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spoil import KINDS, TOKENS, Edit, spoil
from targets import TARGETS, Target, content

from farout.data.folders import FolderSet
from farout.detector import Detector
from farout.errors import FaroutError

COMMON = {"deadline": None, "derandomize": True, "database": None}
QUICK = settings(max_examples=200, suppress_health_check=list(HealthCheck), **COMMON)

edits = st.lists(
    st.builds(
        Edit,
        st.integers(0, KINDS - 1),
        st.floats(0, 1),
        st.one_of(st.sampled_from(TOKENS), st.binary(min_size=1, max_size=6)),
        st.integers(1, 64),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> dict[str, tuple[Path, dict[str, bytes]]]:
    made = {}
    for name, target in TARGETS.items():
        folder = tmp_path_factory.mktemp(name)
        made[name] = folder, content(target, folder)
    return made


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def read(target: Target, folder: Path) -> None:
    """Either it works, or FaroutError or ValueError with a message; any other exception fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            target.read(folder)
        except (FaroutError, ValueError) as error:
            assert str(error)  # noqa: PT017  # either way is fine, so `raises` would not do


@pytest.mark.parametrize("name", TARGETS)
def test_a_valid_tree_is_read(trees, name):
    """Guards the test below: a reader that refuses everything would pass it."""
    folder, valid = trees[name]
    for file, data in valid.items():
        (folder / file).write_bytes(data)
    assert TARGETS[name].read(folder) is not False


@pytest.mark.parametrize("name", TARGETS)
def test_a_spoilt_file_is_read_or_refused(trees, name):
    folder, valid = trees[name]
    before = names_below(folder.parent)

    @QUICK
    @given(file=st.sampled_from(TARGETS[name].files), change=edits)
    def check(file, change):
        for other, data in valid.items():
            (folder / other).write_bytes(spoil(data, change) if other == file else data)
        read(TARGETS[name], folder)

    check()
    assert names_below(folder.parent) == before


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def test_a_detector_card_may_say_anything(trees):
    """Every entry of the card, one after the other, replaced by whatever JSON can hold."""
    folder, valid = trees["detector"]
    card = json.loads(valid["knn/detector.json"])
    for file, data in valid.items():
        (folder / file).write_bytes(data)
    places = [(key,) for key in card] + [(key, inner) for key in ("net", "score") for inner in card[key]]

    @QUICK
    @given(place=st.sampled_from(places), value=plain)
    def check(place, value):
        changed = json.loads(valid["knn/detector.json"])
        (changed if len(place) == 1 else changed[place[0]])[place[-1]] = value
        (folder / "knn" / "detector.json").write_text(json.dumps(changed))
        read(TARGETS["detector"], folder)

    check()


def test_detector_tensors_may_have_any_shape_and_type(trees):
    from safetensors.torch import load, save

    folder, valid = trees["detector"]
    tensors = load(valid["knn/model.safetensors"])
    (folder / "knn" / "detector.json").write_bytes(valid["knn/detector.json"])
    kinds = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64])
    shapes = st.lists(st.integers(0, 6), max_size=3)

    @QUICK
    @given(name=st.sampled_from(sorted(tensors)), kind=kinds, shape=shapes, extra=st.booleans(), drop=st.booleans())
    def check(name, kind, shape, extra, drop):
        changed = {**tensors, name: torch.ones(shape, dtype=kind)}
        if drop:
            del changed[name]
        if extra:
            changed["net.more"] = torch.zeros(1)
        (folder / "knn" / "model.safetensors").write_bytes(save(changed))
        if extra or drop:
            with pytest.raises(FaroutError):
                Detector.load(folder / "knn")
        read(TARGETS["detector"], folder)

    check()


file_names = st.binary(min_size=1, max_size=12).map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"\n"))


@settings(max_examples=100, **COMMON)
@given(names=st.lists(file_names, min_size=1, max_size=4, unique=True))
def test_folders_hold_names_of_any_bytes(names, tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    picture = (folder / "seed.png").resolve()
    TARGETS["image-list"].make(folder)
    data = (folder / "one.png").read_bytes()
    for path in (folder / "one.png", folder / "sub" / "two words.png", folder / "list.txt"):
        path.unlink()
    picture.write_bytes(data)
    for name in names:
        with open(os.fsencode(folder) + b"/" + name + b".png", "wb") as file:
            file.write(data)
    found = FolderSet("names", folder, 4)
    visible = [name for name in names if not name.startswith(b".")]
    assert len(found) == len({*visible, b"seed"})
    assert found.read(torch.arange(len(found)))[0].shape == (len(found), 3, 4, 4)
