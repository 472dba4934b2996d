"""From a name and arguments to an object: `{name: dal, rho: 5}` is checked against the constructor's signature.

Defaults live in signatures alone, and every mistake is named: an unknown name, an argument that does not exist,
one that is missing, one of the wrong type.
"""

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from farout.errors import ConfigError

T = TypeVar("T")

PLUGGABLE = ("method", "score", "net", "augment", "outlier_augment")
PLUGIN_HINT = "or is it a plugin's? name its file: --plugin, FAROUT_PLUGINS or farout.load_plugin"


def choose(kind: str, table: Mapping[str, T], name: str) -> T:
    """The entry called `name`, or an error that suggests the nearest one."""
    if name in table:
        return table[name]
    close = difflib.get_close_matches(str(name), table, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(table))}"
    more = f" {PLUGIN_HINT}" if close else f"; {PLUGIN_HINT}"
    raise ConfigError(f"unknown {kind} {name!r}; {hint}{more if kind in PLUGGABLE else ''}")


def make(kind: str, table: Mapping[str, Callable[..., T]], spec: Mapping[str, Any], **given: Any) -> T:
    """The component that `spec` = {name, **arguments} describes; `given` are arguments the recipe cannot set."""
    if "name" not in spec:
        raise ConfigError(f"the {kind} section needs a name; known: {', '.join(sorted(table))}")
    name = spec["name"]
    factory = choose(kind, table, name)
    arguments = {key: value for key, value in spec.items() if key != "name"}
    return factory(**check_arguments(f"{kind} {name!r}", factory, arguments, given), **given)


def check_arguments(
    owner: str, factory: Callable[..., Any], arguments: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments with ints made floats where a float is asked for, or a ConfigError that names the first slip."""
    signature = inspect.signature(factory, eval_str=True)
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        return dict(arguments)
    takes = {key: p for key, p in signature.parameters.items() if key not in given and key != "self"}
    for key in arguments:
        if key not in takes:
            listed = ", ".join(takes) or "none"
            raise ConfigError(f"{owner} has no argument {key!r}; it takes {listed}")
    for key, parameter in takes.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise ConfigError(f"{owner} needs the argument {key!r}")
    return {key: typed(f"{owner} argument {key!r}", value, takes[key].annotation) for key, value in arguments.items()}


def typed(owner: str, value: Any, annotation: Any) -> Any:
    """`value` if it fits a plain annotation (int, float, bool, str, or a union of them); others pass unchecked."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    allowed = typing.get_args(annotation) if union else (annotation,)
    if not set(allowed) <= {int, float, bool, str, types.NoneType}:
        return value
    if isinstance(value, bool):
        fits = bool in allowed
    elif isinstance(value, int) and float in allowed and int not in allowed:
        return float(value)
    else:
        fits = isinstance(value, tuple(allowed))
    if not fits:
        names = " or ".join("nothing" if a is types.NoneType else a.__name__ for a in allowed)
        raise ConfigError(f"{owner} must be {names}, got {value!r}")
    return value
