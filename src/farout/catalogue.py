"""What there is, as rows: for `farout list`, for the README's tables and for the docs."""

import inspect
from collections.abc import Callable
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


KINDS: dict[str, Callable[[], list[Row]]] = {
    "methods": methods,
    "scores": scores,
    "nets": nets,
    "sets": sets,
    "recipes": recipes,
    "protocols": protocols,
}


def catalogue(kind: str) -> list[Row]:
    """All entries of one table: methods, scores, nets, sets, recipes or protocols."""
    return KINDS[kind]()
