"""Named ways to test: which ID, auxiliary and OOD sets, how many samples, which side is positive.

A protocol is a YAML file beside this one, or the user's own. It says what to train and test on; a recipe says how.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Self

import yaml

from farout.components import typed
from farout.config import Config
from farout.data.demo import DEMO_SETS
from farout.data.sets import data_root, find
from farout.errors import ConfigError, DataError
from farout.types import Row


@dataclass(frozen=True)
class OODSet:
    """A test OOD set: its name, where it lies if not by that name, and the classes to leave out."""

    name: str
    path: str | None = None
    drop: tuple[int | str, ...] = ()

    @classmethod
    def read(cls, entry: Any) -> Self:
        if isinstance(entry, str):
            return cls(entry)
        if not isinstance(entry, Mapping) or "name" not in entry or set(entry) - {"name", "path", "drop"}:
            raise ConfigError(f"a test set of a protocol is a name or a mapping {{name, path, drop}}, got {entry!r}")
        return cls(str(entry["name"]), entry.get("path"), tuple(entry.get("drop") or ()))

    def entry(self) -> Any:
        """As `data.test` takes it."""
        if self.path is None and not self.drop:
            return self.name
        path = {} if self.path is None else {"path": self.path}
        return {"name": self.name, **path, **({"drop": list(self.drop)} if self.drop else {})}


@dataclass(frozen=True)
class Protocol:
    """What to train and test on, and how to count. `test` maps near, far, ... to OOD sets."""

    name: str
    what: str
    id: str
    test: Mapping[str, tuple[OODSet, ...]]
    outliers: str | None = None
    drop: tuple[int | str, ...] = ()  # classes of the auxiliary set that are also ID
    held_out: float = 0.02  # share of ID training data for threshold and validation
    ood_count: int | None = None  # random samples of each OOD set; all by default
    size: int = 32
    resize: str = "shorter side to size, centre crop"
    positive: str = "id"  # the side whose FPR95 leads: id (the paper) or ood (OpenOOD)
    recipes: str = ""  # the family of recipes that train for it, e.g. cifar10
    paper: str = "CIFAR-10"  # which of the paper's ID sets stands beside it
    note: str = ""  # what differs from the source
    left_out: tuple[str, ...] = ()  # sets that were absent and that the user agreed to do without

    def sets(self) -> list[OODSet]:
        return [ood for group in self.test.values() for ood in group]

    def apply(self, config: Config, outliers: bool = True) -> Config:
        """The recipe with this protocol's data; without `outliers` the auxiliary set is not named at all."""
        test = {group: [ood.entry() for ood in sets] for group, sets in self.test.items()}
        data = replace(config.data, id=self.id, test=test, held_out=self.held_out, size=self.size)
        data = replace(data, outliers=self.outliers if outliers else None, drop=list(self.drop) if outliers else [])
        return replace(config, data=data, eval=replace(config.eval, ood_count=self.ood_count))

    def missing(self, root: str | None = None) -> list[str]:
        """The OOD sets that are not on the disk."""
        return [ood.name for ood in self.sets() if not _is_there(ood.path or ood.name, root, "test")]

    def without(self, names: Sequence[str]) -> Self:
        """The protocol less these OOD sets; tables say so."""
        test = {group: tuple(ood for ood in sets if ood.name not in names) for group, sets in self.test.items()}
        kept = {group: sets for group, sets in test.items() if sets}
        if not kept:
            raise DataError(f"none of the OOD sets of protocol {self.name!r} is there: {', '.join(names)}")
        return replace(self, test=kept, left_out=(*self.left_out, *names))


def _is_there(name: str, root: str | None, split: str) -> bool:
    if name in DEMO_SETS:
        return True
    try:
        find(name, data_root(root), split)
    except DataError:
        return False
    return True


def ready(protocol: Protocol, root: str | None = None, skip_missing: bool = False) -> Protocol:
    """The protocol as the disk allows: absent OOD sets are an error, or left out when asked."""
    absent = protocol.missing(root)
    if not absent:
        return protocol
    if not skip_missing:
        raise DataError(
            f"protocol {protocol.name!r} needs sets that are not below {data_root(root).absolute()}: "
            f"{', '.join(absent)}. Get them (`farout data check SET` says how), or leave them out with --skip-missing"
        )
    return protocol.without(absent)


def protocol_names() -> list[str]:
    """The protocols that come with farout."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def load_protocol(name: str | Path) -> Protocol:
    """A protocol by name, or from a YAML file of the user's own."""
    path = Path(name)
    if str(name) in protocol_names():
        path = _folder() / f"{name}.yaml"
    elif not path.is_file():
        close = difflib.get_close_matches(str(name), protocol_names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(protocol_names())}"
        raise ConfigError(f"no protocol or file {str(name)!r}; {hint}")
    return read_protocol(path)


def read_protocol(path: Path) -> Protocol:
    """A protocol's YAML, checked."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"cannot read the protocol {path}: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"the protocol {path} must be a mapping, got {type(tree).__name__}")
    tree = {"name": path.stem, "what": "", **tree}
    _check(path, tree)
    tree["test"] = {str(group): tuple(map(OODSet.read, sets)) for group, sets in tree["test"].items()}
    tree["drop"] = tuple(tree.get("drop") or ())
    return Protocol(**tree)


def _check(path: Path, tree: Mapping[str, Any]) -> None:
    """The keys, their types, and that there is something to test on."""
    kinds = {field.name: field.type for field in dataclasses.fields(Protocol) if field.name != "left_out"}
    for key, value in tree.items():
        if key not in kinds:
            raise ConfigError(f"the protocol {path} has no key {key!r}; it takes {', '.join(kinds)}")
        typed(f"{key} of the protocol {path}", value, kinds[key])
    test = tree.get("test")
    if not tree.get("id") or not isinstance(test, dict) or not all(isinstance(s, list) and s for s in test.values()):
        raise ConfigError(f"the protocol {path} needs `id: SET` and `test: {{near: [SET, ...], far: [...]}}`")
    if tree.get("positive", "id") not in ("id", "ood"):
        raise ConfigError(f"positive of the protocol {path} must be id or ood, got {tree['positive']!r}")


def protocol_rows() -> list[Row]:
    """For `farout list protocols`."""
    return [_row(load_protocol(name)) for name in protocol_names()]


def _row(protocol: Protocol) -> Row:
    sets = "; ".join(f"{group}: {', '.join(s.name for s in sets)}" for group, sets in protocol.test.items())
    return {
        "name": protocol.name,
        "what": protocol.what,
        "id": protocol.id,
        "auxiliary": protocol.outliers or "none",
        "test": sets,
        "count": "all" if protocol.ood_count is None else protocol.ood_count,
        "positive": protocol.positive,
    }


def _folder() -> Path:
    return Path(str(resources.files("farout") / "protocols"))
