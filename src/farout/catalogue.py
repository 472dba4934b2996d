"""What there is, as rows: for `farout list`, for the README's tables and for the docs."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from farout.config import recipe_names, recipe_summary
from farout.types import Row


def summary(thing: Any) -> str:
    """The first sentence of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def arguments(factory: Callable[..., Any], without: tuple[str, ...] = ("self",)) -> list[str]:
    """A constructor's arguments with their defaults, as `name=default`."""
    shown = []
    for key, parameter in inspect.signature(factory).parameters.items():
        if key in without or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        shown.append(key if parameter.default is parameter.empty else f"{key}={parameter.default}")
    return shown


def methods() -> list[Row]:
    from farout.methods import METHODS

    return [
        {
            "name": name,
            "outliers": kind.needs_outliers,
            "outlier_class": kind.outlier_class,
            "score": kind.score,
            "arguments": arguments(kind),
            "paper": kind.paper,
        }
        for name, kind in METHODS.items()
    ]


def scores() -> list[Row]:
    from farout.scores import SCORES

    return [
        {
            "name": name,
            "fitted": kind.needs_fit,
            "uses_input": kind.uses_input,
            "arguments": arguments(kind),
            "paper": kind.paper,
        }
        for name, kind in SCORES.items()
    ]


def nets() -> list[Row]:
    from farout.nets import NETS

    return [
        {"name": name, "arguments": arguments(kind, ("self", "num_classes")), "what": summary(kind)}
        for name, kind in NETS.items()
    ]


def sets() -> list[Row]:
    from farout.data import SETS
    from farout.data.demo import DEMO_SETS

    listed = [{"name": name, "what": info.role, "get": info.source} for name, info in SETS.items()]
    return listed + [
        {"name": name, "what": summary(kind), "get": "comes with farout"} for name, kind in DEMO_SETS.items()
    ]


def recipes() -> list[Row]:
    return [{"name": name, "what": recipe_summary(name)} for name in recipe_names()]


def protocols() -> list[Row]:
    from farout.protocols import protocol_rows

    return protocol_rows()


def spaces() -> list[Row]:
    from farout.spaces import load_space, space_names, space_summary

    return [{"name": name, "keys": list(load_space(name)), "what": space_summary(name)} for name in space_names()]


def optimizers() -> list[Row]:
    from farout.training import OPTIMIZERS

    return _components(OPTIMIZERS, "parameters")


def schedules() -> list[Row]:
    from farout.training import SCHEDULES

    return _components(SCHEDULES, "lr", "steps_per_epoch", "epochs")


def augments() -> list[Row]:
    from farout.data.augment import AUGMENTS

    return _components(AUGMENTS)


def loaders() -> list[Row]:
    from farout.data.loaders import LOADERS

    return _components(LOADERS, "samples", "device")


def engines() -> list[Row]:
    from farout.training import ENGINES

    return [{"name": name, "what": summary(kind)} for name, kind in ENGINES.items()]


def _components(table: Mapping[str, Callable[..., Any]], *given: str) -> list[Row]:
    """A table's entries, without the arguments that the run gives them."""
    return [
        {"name": name, "arguments": arguments(kind, ("self", *given)), "what": summary(kind)}
        for name, kind in table.items()
    ]


KINDS: dict[str, Callable[[], list[Row]]] = {
    "methods": methods,
    "scores": scores,
    "nets": nets,
    "sets": sets,
    "recipes": recipes,
    "protocols": protocols,
    "spaces": spaces,
    "optimizers": optimizers,
    "schedules": schedules,
    "augments": augments,
    "loaders": loaders,
    "engines": engines,
}


def catalogue(kind: str) -> list[Row]:
    """All entries of one of the tables in KINDS: methods, scores, ..."""
    return KINDS[kind]()
