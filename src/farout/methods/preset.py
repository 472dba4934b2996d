"""A method under another name with other defaults: a variant that is data, not code."""

import inspect
from typing import Any

from farout.methods.base import Method


def preset(base: type[Method], summary: str, **defaults: Any) -> type[Method]:
    """`base` with some defaults changed; its arguments, their types and their checks stay the same.

    >>> preset(DAL, "Algorithm 1.", rule="paper")().rule.step                # doctest: +SKIP
    'gradient'
    """
    signature = inspect.signature(base, eval_str=True)
    unknown = set(defaults) - set(signature.parameters)
    if unknown:
        raise TypeError(f"{base.__name__} takes no {', '.join(sorted(unknown))}")
    changed = [
        parameter.replace(default=defaults.get(name, parameter.default))
        for name, parameter in signature.parameters.items()
    ]

    def __init__(self: Method, *arguments: Any, **named: Any) -> None:
        base.__init__(self, *arguments, **{**defaults, **named})

    body = {"__init__": __init__, "__doc__": summary, "__module__": base.__module__}
    made = type(base.__name__, (base,), body)
    made.__signature__ = signature.replace(parameters=changed)  # type: ignore[attr-defined]
    return made
