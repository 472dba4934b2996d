"""What a study is about, and points of its space as recipes."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any

from farout.config import Config, merge, parse_override
from farout.methods import METHODS
from farout.spaces import Choices, Point, Space, Value
from farout.training import OPTIMIZERS, SCHEDULES


@dataclass(frozen=True)
class Terms:
    """What a study is about; only `trials`, how many trainings it may take, can change later."""

    config: dict[str, Any]
    space: dict[str, Any]
    study: str
    sampler: str = "coordinate"
    pruner: str | None = None
    seed: int = 0
    rounds: int = 50
    trials: int = 50

    @property
    def fixed(self) -> dict[str, Any]:
        """What all workers must agree on; where the data lie and what computes may differ."""
        plain = agreed(json.loads(json.dumps(asdict(self))))
        del plain["trials"]
        return plain


def agreed(terms: dict[str, Any]) -> dict[str, Any]:
    """Terms without what workers may differ in; a key that the recipe got after the study was begun has its default."""
    config = Config.from_dict(terms["config"]).to_dict()
    del config["data"]["root"], config["train"]["device"]
    return {**terms, "config": config}


def at(config: Config, point: Point) -> Config:
    """The config with the values of `point`."""
    tree: dict[str, Any] = config.to_dict()
    for override in as_overrides(point):
        tree = merge(tree, parse_override(override))
    return Config.from_dict(tree)


def as_overrides(point: Point) -> list[str]:
    """`key=value` for each of the point's values, as the command line takes them."""
    return [f"{key}={json.dumps(value)}" for key, value in point.items()]


def start_point(config: Config, space: Space) -> dict[str, Value]:
    """For each key the candidate nearest to the recipe's own value: where the coordinate search sets out."""
    return {key: _nearest(_own(config, key), d.values) for key, d in space.items() if isinstance(d, Choices)}


def _own(config: Config, key: str) -> Any:
    """The recipe's value of a key; the constructor's default where the recipe leaves it open."""
    section, _, argument = key.partition(".")
    tree: Any = config.to_dict()
    for part in key.split("."):
        tree = tree.get(part, _own) if isinstance(tree, dict) else _own
    if tree is not _own:
        return tree
    table: Any = {"method": METHODS, "optim": OPTIMIZERS, "schedule": SCHEDULES}.get(section, {})
    maker = table.get(config.to_dict().get(section, {}).get("name"))
    found = signature(maker).parameters.get(argument) if maker else None
    return found.default if found else None


def _nearest(own: Any, values: Sequence[Value]) -> Value:
    """By order of magnitude among numbers; the first where there is nothing to measure."""
    if own in values:
        return values[values.index(own)]
    if not isinstance(own, (int, float)) or not all(isinstance(value, (int, float)) for value in values):
        return values[0]
    return min(values, key=lambda value: abs(_size(value) - _size(own)))


def _size(value: Any) -> float:
    return math.log10(max(abs(float(value)), 1e-12))
