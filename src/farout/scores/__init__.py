"""Scores by name; higher = more in-distribution. Adding one: its file, a line here, its test."""

import inspect
from collections.abc import Mapping
from typing import Any

from farout.errors import ConfigError
from farout.scores.base import Embedded, Score
from farout.scores.gen import GEN
from farout.scores.inputs import ODIN, Rotations
from farout.scores.knn import KNN
from farout.scores.logits import MSP, Energy, MaxLogit
from farout.scores.mahalanobis import Mahalanobis
from farout.scores.outlier_class import OutlierClass
from farout.scores.shaping import ASH, ReAct
from farout.scores.vim import ViM

SCORES: Mapping[str, type[Score]] = {
    "msp": MSP,
    "max-logit": MaxLogit,
    "energy": Energy,
    "gen": GEN,
    "react": ReAct,
    "ash": ASH,
    "mahalanobis": Mahalanobis,
    "knn": KNN,
    "vim": ViM,
    "odin": ODIN,
    "outlier-class": OutlierClass,
    "csi": Rotations,
}


def spec_of(score: Score) -> dict[str, Any]:
    """The entry {name, **arguments} that rebuilds a score: each constructor argument is an attribute of its name."""
    for name, kind in SCORES.items():
        if type(score) is kind:
            arguments = inspect.signature(kind).parameters
            return {"name": name, **{key: _plain(getattr(score, key)) for key in arguments}}
    raise ConfigError(f"{type(score).__name__} is not in farout.scores.SCORES, so it cannot be saved by name; add it")


def _plain(value: Any) -> Any:
    return spec_of(value) if isinstance(value, Score) else value


__all__ = [
    "ASH",
    "GEN",
    "KNN",
    "MSP",
    "ODIN",
    "SCORES",
    "Embedded",
    "Energy",
    "Mahalanobis",
    "MaxLogit",
    "OutlierClass",
    "ReAct",
    "Rotations",
    "Score",
    "ViM",
    "spec_of",
]
