"""Scores by name; higher = more in-distribution. Adding one: its file, a line here, its test."""

import inspect
from collections.abc import Mapping
from typing import Any

from farout.errors import ConfigError
from farout.scores.base import Embedded, Score
from farout.scores.logits import MSP, Energy, MaxLogit

SCORES: Mapping[str, type[Score]] = {"msp": MSP, "max-logit": MaxLogit, "energy": Energy}


def spec_of(score: Score) -> dict[str, Any]:
    """The entry {name, **arguments} that rebuilds a score: each constructor argument is an attribute of its name."""
    for name, kind in SCORES.items():
        if type(score) is kind:
            arguments = inspect.signature(kind).parameters
            return {"name": name, **{key: _plain(getattr(score, key)) for key in arguments}}
    raise ConfigError(f"{type(score).__name__} is not in farout.scores.SCORES, so it cannot be saved by name; add it")


def _plain(value: Any) -> Any:
    return spec_of(value) if isinstance(value, Score) else value


__all__ = ["MSP", "SCORES", "Embedded", "Energy", "MaxLogit", "Score", "spec_of"]
