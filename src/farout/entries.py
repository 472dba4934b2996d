"""From a method's name to what must be trained for it: which recipe, under which protocol, from which checkpoint."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farout.components import PLUGIN_HINT, choose
from farout.config import Config, EvalConfig, merge, parse_override, recipe_names
from farout.errors import ConfigError
from farout.jobs import Training
from farout.methods import METHODS
from farout.plugins import is_plugins
from farout.protocols import Protocol

ALIASES = {"dal": "dal-reference", "csi": "csi-2"}
"""Where a family has no recipe of the first name, the second stands for it: DAL as released, CSI's last stage."""

DERIVED = ("demo",)
"""Families whose ce and oe recipes serve every method: with small nets the methods' defaults will do.

A plugin's method has no recipes of ours: every family's serve it.
"""

FROM_SCRATCH = ("atom", "ntom", "poem")
"""Outlier methods that their papers do not fine-tune from a classifier."""


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: a method or recipe, the score it is tested with, changes to the recipe."""

    label: str
    method: str
    score: str | None = None  # the method's own
    changes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Entry":
        """`dal`, `ce:energy` (with a score), `cifar10/dal-proximal` or `mine.yaml` (a recipe)."""
        method, _, score = text.strip().partition(":")
        if not method:
            raise ConfigError(f"cannot read the method {text!r}; write e.g. ce,ce:energy,oe,dal")
        label = Path(method).stem if Path(method).suffix in (".yaml", ".yml") else method
        return cls(label, method, score or None)


def recipe_of(family: str, method: str) -> Config:
    """The recipe of a method: one of the family, one by name or path, or one derived from the family's ce and oe."""
    known = recipe_names()
    for name in (f"{family}/{method}", f"{family}/{ALIASES.get(method, method)}", method):
        if name in known or Path(name).is_file():
            return Config.load(name)
    if method in METHODS and (family in DERIVED or (is_plugins("METHODS", method) and f"{family}/oe" in known)):
        return _derived(family, method)
    listed = ", ".join(name.partition("/")[2] for name in known if name.startswith(f"{family}/")) or "no recipe"
    more = "" if method in METHODS else f"; {PLUGIN_HINT}"
    raise ConfigError(
        f"there is no recipe {family}/{method}; {family or 'the protocol'} has {listed}, or give a YAML file{more}"
    )


def _derived(family: str, method: str) -> Config:
    """ID-only methods train as ce does, outlier methods fine-tune as oe does, a few from scratch."""
    scratch = not METHODS[method].needs_outliers or method in FROM_SCRATCH
    base = Config.load(f"{family}/{'ce' if scratch else 'oe'}")
    return replace(base, method={"name": method}, name=f"{family}/{method}")


def training(entry: Entry, protocol: Protocol, seed: int, overrides: Sequence[str] = ()) -> Training:
    """What must be trained for an entry, its starting point included."""
    return _training(recipe_of(protocol.recipes, entry.method), protocol, seed, overrides, entry.changes)


def _training(
    recipe: Config, protocol: Protocol, seed: int, overrides: Sequence[str], changes: Sequence[str] = ()
) -> Training:
    way = METHODS.get(recipe.method.get("name", ""))
    config = protocol.apply(recipe, outliers=way is None or way.needs_outliers)
    config = changed(config, [*(o for o in overrides if _takes(config, o)), *changes])
    start = None
    if config.train.init is not None:  # runs/ce/s{seed}: each seed has its own
        init = config.train.init.replace("{seed}", str(seed))
        config = replace(config, train=replace(config.train, init=init))
    elif config.start is not None:
        start = _training(Config.load(config.start), protocol, seed, overrides)
    # The tests have no part in training, so that one run serves every protocol with the same training data.
    config = replace(config, data=replace(config.data, test={}), eval=EvalConfig(scores=[score_of(config)]))
    return Training(replace(config, train=replace(config.train, seed=seed)), start)


def score_of(config: Config, wanted: str | None = None) -> Any:
    """A score as the recipe has it, with its arguments, else by its name; by default the method's own."""
    name = wanted or choose("method", METHODS, config.method.get("name", "")).score
    specs = [spec for spec in config.eval.scores if (spec if isinstance(spec, str) else spec.get("name")) == name]
    return specs[0] if specs else name


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """The config with `key=value` overrides laid over it."""
    tree: dict[str, Any] = config.to_dict()
    for override in overrides:
        tree = merge(tree, parse_override(override))
    return Config.from_dict(tree)


def _takes(config: Config, override: str) -> bool:
    """Whether an override concerns this recipe: method.rho=5 those that have a rho, train.init=RUN those that start."""
    section, _, argument = override.partition("=")[0].partition(".")
    if (section, argument) == ("train", "init"):
        return config.start is not None
    way = METHODS.get(config.method.get("name", ""))
    return section != "method" or way is None or argument in inspect.signature(way).parameters


def check_overrides(methods: Sequence[str], family: str, overrides: Sequence[str]) -> None:
    """An override that no method takes is a slip."""
    configs = [recipe_of(family, method) for method in methods]
    for override in overrides:
        parse_override(override)
        if not any(_takes(config, override) for config in configs):
            raise ConfigError(f"none of {', '.join(methods)} takes the override {override!r}")
