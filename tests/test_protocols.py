"""Protocols: what they say, what they make of a recipe, what they do about absent sets."""

import numpy as np
import pytest
import torch

from farout import build
from farout.config import Config
from farout.data import SETS
from farout.data.demo import DEMO_SETS
from farout.errors import ConfigError, DataError
from farout.protocols import OODSet, load_protocol, protocol_names, protocol_rows, ready

NAMES = [
    "demo",
    "local-cifar10",
    "local-cifar100",
    "openood-cifar10",
    "openood-cifar100",
    "paper-cifar10",
    "paper-cifar100",
    "paper-hard-cifar10",
    "paper-imagenet",
]


def test_all_are_there_and_listed():
    assert protocol_names() == NAMES
    assert [row["name"] for row in protocol_rows()] == NAMES
    assert all(row["what"] for row in protocol_rows())


@pytest.mark.parametrize("name", NAMES)
def test_every_protocol_makes_a_config_that_reads_back(name):
    protocol = load_protocol(name)
    config = protocol.apply(Config.load("demo/oe"))
    assert Config.from_dict(config.to_dict()) == config
    assert config.data.id == protocol.id
    assert [ood for sets in config.data.test.values() for ood in sets] == [ood.entry() for ood in protocol.sets()]
    assert protocol.apply(Config.load("demo/oe"), outliers=False).data.outliers is None
    if name.startswith("paper-"):
        assert {protocol.id, protocol.outliers, *(ood.name for ood in protocol.sets())} <= set(SETS)
        assert protocol.positive == "id"
        assert protocol.ood_count in (2000, 10_000)
    if name.startswith("openood-"):
        assert (protocol.positive, protocol.ood_count) == ("ood", None)
        assert list(protocol.test) == ["near", "far"]


def test_a_protocol_replaces_the_recipes_test_sets_whole():
    """Laid over key by key, the recipe's far sets would stay beside the protocol's near ones."""
    config = load_protocol("paper-hard-cifar10").apply(Config.load("cifar10/oe"))
    assert list(config.data.test) == ["near"]
    assert config.eval.ood_count == 2000


def test_dropped_classes_of_the_local_protocols():
    ten, hundred = load_protocol("local-cifar10"), load_protocol("local-cifar100")
    assert (len(ten.drop), len(hundred.drop)) == (30, 68)
    drops = {ood.name: ood.drop for ood in [*ten.sets(), *hundred.sets()]}
    assert 5 * (1000 - len(set(drops["imagenet-val5k"]))) == 3005
    assert drops["intel-scenes"] == (1, 3, 4)


def test_absent_sets_are_named_and_left_out_only_when_asked(tmp_path):
    protocol = load_protocol("paper-cifar10")
    np.save(tmp_path / "svhn.npy", np.zeros((3, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match="lsun, isun, textures, places365.*--skip-missing"):
        ready(protocol, str(tmp_path))
    kept = ready(protocol, str(tmp_path), skip_missing=True)
    assert [ood.name for ood in kept.sets()] == ["svhn"]
    assert kept.left_out == ("lsun", "isun", "textures", "places365")
    with pytest.raises(DataError, match="none of the OOD sets"):
        ready(protocol, str(tmp_path / "empty"), skip_missing=True)
    assert ready(load_protocol("demo")) == load_protocol("demo")


def test_a_protocol_of_ones_own_in_one_yaml(tmp_path):
    """A folder's .npz under another name, with a class left out, goes through to the test sets."""
    images, labels = np.zeros((6, 8, 8, 1), np.uint8), np.array([0, 0, 1, 1, 2, 2])
    np.savez(tmp_path / "scenes-2024.npz", images=images, labels=labels)
    (tmp_path / "mine.yaml").write_text(
        "id: demo/digits\noutliers: demo/outliers\nrecipes: demo\nsize: 8\n"
        "test: {far: [demo/noise, {name: scenes, path: scenes-2024, drop: [1]}]}\n"
    )
    protocol = load_protocol(tmp_path / "mine.yaml")
    assert protocol.name == "mine"
    assert protocol.sets()[1] == OODSet("scenes", "scenes-2024", (1,))
    config = protocol.apply(Config.load("demo/ce", [f"data.root={tmp_path}"]))
    _, groups = build.test_sets(config.data)
    assert list(groups["far"]) == ["demo/noise", "scenes"]
    assert len(groups["far"]["scenes"]) == 4
    assert torch.equal(groups["far"]["scenes"].labels, torch.tensor([0, 0, 2, 2]))
    assert set(DEMO_SETS) >= {"demo/noise"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id: demo/digits", "needs `id: SET` and `test"),
        ("id: demo/digits\ntest: {far: []}", "needs `id: SET` and `test"),
        ("id: demo/digits\ntest: {far: [x]}\nfoo: 1", "no key 'foo'"),
        ("id: demo/digits\ntest: {far: [x]}\npositive: both", "must be id or ood"),
        ("id: demo/digits\ntest: {far: [x]}\nsize: big", "size of the protocol"),
        ("id: demo/digits\ntest: {far: [{drop: [1]}]}", "{name, path, drop}"),
        ("- a list", "must be a mapping"),
        ("{", "cannot read"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_protocol(tmp_path / "mine.yaml")


def test_unknown_names_and_test_entries():
    with pytest.raises(ConfigError, match="did you mean 'paper-cifar10'"):
        load_protocol("paper-cifar1")
    data = Config.load("demo/ce", ["data.test={far: [{path: x}]}"]).data
    with pytest.raises(ConfigError, match="{name, path, drop}"):
        build.test_sets(data)
