"""Recipes, overrides and their errors."""

import re

import pytest

from farout.config import Config, merge, parse_override, recipe_names, recipe_path
from farout.errors import ConfigError


def write(tmp_path, text, name="recipe.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_recipe_and_overrides(tmp_path):
    path = write(tmp_path, "data: {id: demo/digits}\nmethod: {name: dal, rho: 1}\noptim: {lr: 1e-3}\n")
    config = Config.load(path, ["method.rho=5", "train.epochs=3", "data.test=[a, b]"])
    assert config.method == {"name": "dal", "rho": 5}
    assert config.optim == {"lr": 1e-3}
    assert isinstance(config.optim["lr"], float)
    assert config.train.epochs == 3
    assert config.data.test == {"ood": ["a", "b"]}
    assert config.name == "recipe"


def test_round_trip(tmp_path):
    config = Config.load("cifar10/dal-reference", ["train.seed=4"])
    path = write(tmp_path, config.to_yaml(), "config.yaml")
    assert Config.load(path) == config


def test_extends_replaces_a_component_of_another_name_and_merges_the_same(tmp_path):
    base = write(tmp_path, "method: {name: dal, rho: 1, ps: 2}\nschedule: cosine\n", "base.yaml")
    same = write(tmp_path, f"extends: {base}\nmethod: {{rho: 7}}\n", "same.yaml")
    other = write(tmp_path, f"extends: {base}\nmethod: {{name: oe, alpha: 3}}\n", "other.yaml")
    bare = write(tmp_path, f"extends: {base}\nmethod: ce\n", "bare.yaml")
    assert Config.load(same).method == {"name": "dal", "rho": 7, "ps": 2}
    assert Config.load(other).method == {"name": "oe", "alpha": 3}
    assert Config.load(bare).method == {"name": "ce"}
    assert Config.load(base, ["schedule.floor=1e-5"]).schedule == {"name": "cosine", "floor": 1e-5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trian: {epochs: 3}", "recipe has no key 'trian'; did you mean 'train'"),
        ("train: {epoch: 3}", "section 'train' has no key 'epoch'; did you mean 'epochs'"),
        ("train: {epochs: many}", "train.epochs must be int, got 'many'"),
        ("train: 3", "the section 'train' must be a mapping, got 3"),
        ("method: [dal]", "the section 'method' must be a name or a mapping with a name"),
        ("data: {test: 5}", "data.test must be a dict, got 5"),
        ("data: {mean: 5}", "data.mean must be a list, got 5"),
        ("- a list", "must be a mapping of sections, got list"),
        ("a: [1, 2", "is not valid YAML (line"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(ConfigError) as error:
        Config.load(write(tmp_path, text))
    assert message in str(error.value)


@pytest.mark.parametrize("override", ["rho5", "=5", "method..rho=1"])
def test_bad_overrides_are_named(override):
    with pytest.raises(ConfigError, match="cannot read the override " + re.escape(repr(override))):
        parse_override(override)


def test_override_values_are_yaml():
    assert parse_override("a.b=[1, x]") == {"a": {"b": [1, "x"]}}
    assert parse_override("a=null") == {"a": None}
    assert parse_override("a.b=1e-4") == {"a": {"b": 1e-4}}
    assert parse_override("a.b=x=y") == {"a": {"b": "x=y"}}


def test_unknown_recipe_and_endless_extension(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'cifar10/dal-paper'"):
        Config.load("cifar10/dal-papr")
    path = tmp_path / "self.yaml"
    write(tmp_path, f"extends: {path}", "self.yaml")
    with pytest.raises(ConfigError, match="extends itself"):
        Config.load(path)


def test_yaml_cannot_name_code(tmp_path):
    with pytest.raises(ConfigError, match="not valid YAML"):
        Config.load(write(tmp_path, "method: !!python/object/apply:os.getcwd []"))


def test_merge_leaves_its_inputs_alone():
    below = {"a": {"b": 1}}
    assert merge(below, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert below == {"a": {"b": 1}}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_states_what_it_is(name):
    header = recipe_path(name).read_text().splitlines()[0]
    assert header.startswith("# ")
    assert len(header) > 20
