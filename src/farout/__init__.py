"""farout: classifiers that know what is far out.

Out-of-distribution detection for PyTorch. `import farout` is cheap; names load what they need when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farout.config import Config as Config
    from farout.detector import Detector as Detector
    from farout.detector import Verdict as Verdict
    from farout.errors import FaroutError as FaroutError
    from farout.estimators import DALClassifier as DALClassifier
    from farout.estimators import FeatureDetector as FeatureDetector
    from farout.estimators import OEClassifier as OEClassifier
    from farout.nets.split import split as split
    from farout.plugins import load_plugin as load_plugin
    from farout.run import Run as Run
    from farout.run import evaluate as evaluate
    from farout.run import load_run as load_run
    from farout.run import train as train

__version__ = "0.1.0"

_HOMES = {
    "DALClassifier": "farout.estimators",
    "FeatureDetector": "farout.estimators",
    "OEClassifier": "farout.estimators",
    "Config": "farout.config",
    "Detector": "farout.detector",
    "FaroutError": "farout.errors",
    "Run": "farout.run",
    "Verdict": "farout.detector",
    "evaluate": "farout.run",
    "load_plugin": "farout.plugins",
    "load_run": "farout.run",
    "split": "farout.nets.split",
    "train": "farout.run",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'farout' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
