"""Search spaces: for each hyper-parameter (a key of the recipe) its candidates, or the range it lies in.

A space is a YAML file, `method.rho: [0.1, 1, 10]` or `optim.lr: {low: 1e-3, high: 0.1, log: true}`; a range between
whole numbers holds whole numbers only.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from farout.config import parse_override
from farout.errors import ConfigError

Value: TypeAlias = str | int | float | bool | None
Point: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True)
class Choices:
    """Candidates, in the order in which they are tried."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Range:
    """Anything from `low` to `high`, both included; `log` spreads it evenly over orders of magnitude."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


Space: TypeAlias = Mapping[str, Choices | Range]


def space_names() -> list[str]:
    """The spaces that come with farout."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def load_space(name: str | Path) -> Space:
    """A space by name (`paper`) or from a YAML file.

    >>> load_space("paper")["method.rho"].values
    (0.01, 0.1, 1, 10, 100)
    """
    path = Path(name) if Path(name).is_file() else _folder() / f"{name}.yaml"
    if not path.is_file():
        close = difflib.get_close_matches(str(name), space_names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(space_names())}, or a YAML file"
        raise ConfigError(f"no search space {str(name)!r}; {hint}")
    try:
        # Read as overrides are, so that 1e-3 is a number here too.
        tree = parse_override(f"space={path.read_text(encoding='utf-8')}")["space"]
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"cannot read the search space {path}: {error}") from None
    return parse_space(tree, str(path))


def space_summary(name: str) -> str:
    """The first comment line of a space that comes with farout."""
    return (_folder() / f"{name}.yaml").read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ").strip()


def parse_space(tree: Any, owner: str = "the space") -> Space:
    """A space from plain data, checked."""
    if not isinstance(tree, Mapping) or not tree:
        raise ConfigError(f"{owner} must map keys such as method.rho to candidates, got {tree!r}")
    return {str(key): _dimension(f"{owner}: {key}", value) for key, value in tree.items()}


def plain_space(space: Space) -> dict[str, Any]:
    """A space as plain data, as `parse_space` reads it."""
    return {
        key: list(dimension.values)
        if isinstance(dimension, Choices)
        else {"low": dimension.low, "high": dimension.high, "log": dimension.log}
        for key, dimension in space.items()
    }


def _dimension(owner: str, value: Any) -> Choices | Range:
    if isinstance(value, list) and value and all(isinstance(v, (str, int, float, bool, type(None))) for v in value):
        if len(set(map(repr, value))) < len(value):
            raise ConfigError(f"{owner} names a candidate twice: {value}")
        return Choices(tuple(value))
    if isinstance(value, Mapping) and {"low", "high"} <= set(value) <= {"low", "high", "log"}:
        low, high, log = value["low"], value["high"], value.get("log", False)
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (low, high))
        if numbers and isinstance(log, bool) and low < high and (low > 0 or not log):
            return Range(low, high, log)
        raise ConfigError(
            f"{owner} is no range: low < high are needed, and low > 0 where log is true, got {dict(value)}"
        )
    raise ConfigError(f"{owner} must be a list of candidates or a mapping {{low, high, log}}, got {value!r}")


def _folder() -> Path:
    return Path(str(resources.files("farout") / "spaces"))
