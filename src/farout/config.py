"""One run as frozen plain data: a YAML recipe, then `key=value` overrides.

A recipe may start with `extends: other/recipe`; its own sections are laid over that one. A component section
`{name, **arguments}` with another name replaces the old section, with the same name it changes single arguments.
After `build` nobody sees a config again.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

import yaml

from farout.components import typed
from farout.errors import ConfigError

Spec = dict[str, Any]


def _component(name: str, **arguments: Any) -> Any:
    return field(default_factory=lambda: {"name": name, **arguments})


@dataclass(frozen=True)
class DataConfig:
    """What to train and test on. `test` maps a group (near, far, ...) to its OOD sets: names, or {name, path, drop}."""

    id: str = ""
    outliers: str | None = None
    test: dict[str, list[Any]] = field(default_factory=dict)
    root: str | None = None  # where sets lie; $FAROUT_DATA, else ./data
    drop: list[Any] = field(default_factory=list)  # classes of the auxiliary set to leave out
    outlier_count: int | None = None  # use only this many auxiliary outliers
    held_out: float = 0.02  # share of the ID training data kept for the threshold and for validation
    outlier_held_out: float = 0.0  # share of the auxiliary outliers kept for validation; tuning sets it
    outlier_held_out_by: str = "images"  # or classes: whole classes, to validate on outliers of kinds never trained on
    # What validation looks at: outliers (those held out), synthetic (all that are made of held-out ID images), or
    # single ones of these: jigsaw, mean, geometric, invert, speckle, noise.
    validation: list[str] = field(default_factory=lambda: ["outliers"])
    batch_size: int = 128
    outlier_batch_size: int = 256
    size: int = 32
    resize: int | None = None  # of image files: the shorter side before a crop to `size`; `size` itself by default
    mean: list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])
    std: list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])
    corrupt: str = "raise"  # or skip: what to do with images that cannot be decoded
    augment: Spec = _component("crop-flip")
    outlier_augment: Spec = _component("same")  # as `augment`, or one of the outliers' own: wide
    loader: Spec = _component("resident")


@dataclass(frozen=True)
class TrainConfig:
    """How long and how. `init` is a run, a detector or a weights file to start from."""

    epochs: int = 10
    seed: int = 0
    device: str = "auto"
    precision: str = "float32"  # or bf16
    engine: str = "eager"  # or compiled, graphed, compiled-graph (CUDA)
    init: str | None = None
    deterministic: bool = False  # the same bits again on the same GPU, at some cost; on a CPU they always are
    only_head: bool = False  # linear probe: the body is frozen and its features are computed once
    checkpoint_every: int | None = None  # steps; beside one at each epoch's end
    checkpoint_seconds: float = 0.0  # no checkpoint at an epoch's end that comes sooner than this after the last one
    validate_every: int | None = None  # epochs; validates on held-out data and keeps checkpoints/best.pt
    log_every: int = 50


@dataclass(frozen=True)
class EvalConfig:
    """What to report: `scores` by name (the first one, or the method's own, makes the detector)."""

    scores: list[Any] = field(default_factory=list)
    tpr: float = 0.95
    ood_count: int | None = None  # test on this many random samples of each OOD set; all by default
    leakage: str = "warn"  # or refuse, none: images that training and test sets share


@dataclass(frozen=True)
class Config:
    """A whole run. Sections are checked here, components against their constructors in `build`."""

    data: DataConfig = field(default_factory=DataConfig)
    net: Spec = _component("wrn")
    method: Spec = _component("ce")
    optim: Spec = _component("sgd")
    schedule: Spec = _component("cosine")
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    name: str = "run"
    start: str | None = (
        None  # the recipe whose run this one fine-tunes (`farout compare` sets train.init); None: scratch
    )

    @classmethod
    def load(cls, recipe: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Read a recipe by name (`demo/dal`) or path and lay `key=value` overrides over it."""
        tree = read_recipe(recipe)
        tree.setdefault("name", Path(recipe).stem if Path(recipe).suffix else str(recipe))
        for override in overrides:
            tree = merge(tree, parse_override(override))
        return cls.from_dict(tree)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        sections = {"data": DataConfig, "train": TrainConfig, "eval": EvalConfig}
        _check_keys("recipe", tree, cls)
        values = {
            key: _section(key, sections[key], value) if key in sections else _spec(key, value)
            for key, value in tree.items()
        }
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


def _check_keys(owner: str, tree: Mapping[str, Any], schema: type) -> None:
    known = [f.name for f in dataclasses.fields(schema)]
    for key in tree:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}"
            raise ConfigError(f"{owner} has no key {key!r}; {hint}")


def _section(name: str, schema: type, tree: Any) -> Any:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"the section {name!r} must be a mapping, got {tree!r}")
    _check_keys(f"section {name!r}", tree, schema)
    kinds = {f.name: f.type for f in dataclasses.fields(schema)}
    values = {}
    for key, value in tree.items():
        if key == "test" and isinstance(value, list):
            value = {"ood": value}
        if kinds[key] is Spec:
            value = _spec(f"{name}.{key}", value)
        elif getattr(kinds[key], "__origin__", None) in (list, dict):
            expected: type = kinds[key].__origin__  # type: ignore[union-attr]
            if not isinstance(value, expected):
                raise ConfigError(f"{name}.{key} must be a {expected.__name__}, got {value!r}")
        values[key] = typed(f"{name}.{key}", value, kinds[key])
    return schema(**values)


def _spec(key: str, value: Any) -> Any:
    """A component section; a bare name is short for {name: ...}."""
    if key == "name":
        return str(value)
    if key == "start":
        return typed("start", value, str | None)
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"the section {key!r} must be a name or a mapping with a name, got {value!r}")
    return dict(value)


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-4 is a number (YAML 1.1 would want 1.0e-4)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


MAX_PARTS = 10_000
"""Values in a recipe, aliases counted as often as they stand for something: ten lines of them can mean billions."""


def _parse(text: str, owner: str) -> Any:
    try:
        tree = yaml.load(text, Loader=_Loader)
        parts = _count(tree, MAX_PARTS)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise ConfigError(f"{owner} is not valid YAML{line}: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise ConfigError(f"{owner} is nested too deeply") from None
    except Exception as error:  # a date of month 13, a number of 5,000 digits, !!timestamp on a word, ...
        raise ConfigError(f"{owner} holds a value that is none: {error}") from None
    if parts > MAX_PARTS:
        raise ConfigError(f"{owner} holds more than {MAX_PARTS:,} values")
    return tree


def _count(tree: Any, most: int) -> int:
    """How many values a tree has; counting stops beyond `most`."""
    children = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (list, tuple, set)) else ()
    total = 1
    for child in children:
        if total > most:
            break
        total += _count(child, most - total)
    return total


def parse_override(text: str) -> dict[str, Any]:
    """`method.rho=5` -> {"method": {"rho": 5}}; the value is YAML."""
    key, equals, value = text.partition("=")
    path = key.split(".")
    if not equals or not all(path):
        raise ConfigError(f"cannot read the override {text!r}; write section.key=value, e.g. method.rho=5")
    tree: Any = _parse(value, f"the value of {key!r}")
    for part in reversed(path):
        tree = {part: tree}
    return dict(tree)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, mapping by mapping; a component of another name replaces the old one whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping) and "name" not in value:
            old = {"name": old}  # a bare component name, of which single arguments now change
        if isinstance(old, Mapping) and isinstance(value, str) and "name" in old:
            value = {"name": value}
        if not isinstance(old, Mapping) or not isinstance(value, Mapping):
            merged[key] = value
        elif "name" in value and value["name"] != old.get("name"):
            merged[key] = dict(value)
        else:
            merged[key] = merge(old, value)
    return merged


def recipe_names() -> list[str]:
    """The recipes that come with farout, e.g. `cifar10/dal-reference`."""
    return sorted(str(path.relative_to(_recipes()).with_suffix("")) for path in _recipe_files())


def _recipes() -> Path:
    return Path(str(resources.files("farout") / "recipes"))


def _recipe_files() -> Iterator[Path]:
    return _recipes().rglob("*.yaml")


def recipe_path(recipe: str | Path) -> Path:
    """The file of a recipe given by name or path."""
    try:
        path = Path(recipe)
        if path.is_file():
            return path
    except (OSError, ValueError, TypeError) as error:  # a name of 5,000 letters, one with a zero byte, a list
        raise ConfigError(f"{str(recipe)[:80]!r} names no recipe: {error}") from None
    if str(recipe) in recipe_names():
        return _recipes() / f"{recipe}.yaml"
    close = difflib.get_close_matches(str(recipe), recipe_names(), n=1)
    hint = f"did you mean {close[0]!r}?" if close else "see `farout list recipes`"
    raise ConfigError(f"no recipe or file {str(recipe)!r}; {hint}")


def read_recipe(recipe: str | Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The recipe's tree with everything it extends already laid under it."""
    path = recipe_path(recipe)
    if path in seen:
        raise ConfigError(f"the recipe {str(recipe)!r} extends itself")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from None
    tree = _parse(text, f"the recipe {path}")
    if not isinstance(tree, dict):
        raise ConfigError(f"the recipe {path} must be a mapping of sections, got {type(tree).__name__}")
    base = tree.pop("extends", None)
    return merge(read_recipe(base, (*seen, path)), tree) if base else tree


def recipe_summary(recipe: str) -> str:
    """The first comment line of a recipe's header."""
    first = recipe_path(recipe).read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").strip()
