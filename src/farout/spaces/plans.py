"""Searches over candidates as functions of what is known: nothing to remember, so any worker can go on at any time."""

import json
import random
from collections.abc import Mapping, Set
from functools import lru_cache
from itertools import product
from math import prod
from typing import TypeAlias

from farout import seeds
from farout.errors import ConfigError
from farout.spaces import Choices, Point, Range, Space, Value

Candidates: TypeAlias = Mapping[str, tuple[Value, ...]]
Values: TypeAlias = Mapping[str, float]
"""The objective at the points that are done, by `identity`; lower is better, inf for what failed."""

MOST = 1_000_000
LOST = "lost"
"""Attribute of a study: the numbers of trials whose process died; they count as if they had never been."""


def identity(point: Point) -> str:
    """One string for one point."""
    return json.dumps(dict(point), sort_keys=True)


def candidates(space: Space) -> Candidates:
    """The candidates of every dimension, or an error where one is a range."""
    for key, dimension in space.items():
        if isinstance(dimension, Range):
            raise ConfigError(
                f"{key} is a range, and coordinate and grid search need candidates; list some, or use tpe or random"
            )
    return {key: dimension.values for key, dimension in space.items() if isinstance(dimension, Choices)}


def coordinate(
    space: Candidates, start: Point, done: Values, pending: Set[str] = frozenset(), seed: int = 0, rounds: int = 50
) -> Point | None:
    """The next point of the paper's search, None when its rounds are over.

    Round r: pick a hyper-parameter at random, try all its candidates with the others at their best so far, keep the
    best (on a tie the old one). Points that are `done` are not tried again, so once nothing improves the rest of the
    rounds costs nothing. What is still `pending` is taken not to improve: workers go on with what they can.
    """
    names, best = list(space), dict(start)
    for number in range(rounds):
        key = names[seeds.mix(seed, number) % len(names)]
        others = [{**best, key: value} for value in space[key] if value != best[key]]
        line = [best, *others]
        for point in line:
            if identity(point) not in done and identity(point) not in pending:
                return point
        best = min(line, key=lambda point: done.get(identity(point), float("inf")))
    return None


def grid(space: Candidates, done: Values, pending: Set[str] = frozenset(), seed: int = 0) -> Point | None:
    """The next point of the whole grid in a random order that `seed` fixes, None when all are done or under way."""
    for values in _shuffled(tuple(space.values()), seed):
        point = dict(zip(space, values, strict=True))
        if identity(point) not in done and identity(point) not in pending:
            return point
    return None


@lru_cache(maxsize=1)
def _shuffled(values: tuple[tuple[Value, ...], ...], seed: int) -> list[tuple[Value, ...]]:
    count = prod(map(len, values))
    if count > MOST:
        raise ConfigError(f"the grid has {count:,} points; search it with coordinate, random or tpe")
    points = list(product(*values))
    random.Random(seed).shuffle(points)
    return points
