"""Architectures of torchvision and timm, built by name; neither is imported before it is asked for."""

import difflib
import importlib
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import torch
from torch import nn

from farout.errors import ConfigError, MissingExtraError


class UnusableLibraryError(MissingExtraError):
    """An optional library is missing, or present but broken beside this torch."""

    def __init__(self, library: str, name: str, cause: Exception) -> None:
        reason = str(cause).strip().split("\n")[0]
        super(MissingExtraError, self).__init__(
            f"net {name!r} needs {library}, which cannot be imported ({type(cause).__name__}: {reason}):"
            f" install the {library} that matches torch {torch.__version__}"
        )


def external(name: str, num_classes: int, **arguments: Any) -> nn.Module:
    """The model "torchvision/<name>" or "timm/<name>" with `num_classes` outputs, by default untrained."""
    library, _, model = name.partition("/")
    if library not in _BUILDERS or not model:
        raise ConfigError(f"unknown net {name!r}: an external net is 'torchvision/<name>' or 'timm/<name>'")
    try:
        module = importlib.import_module(_MODULES[library])
    except Exception as error:  # torchvision beside another torch fails with RuntimeError, and takes timm along
        raise UnusableLibraryError(library, name, error) from error
    try:
        built: nn.Module = _BUILDERS[library](module, model, num_classes, arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"net {name!r} cannot be built with {arguments or 'no arguments'}: {error}") from error
    return built


def _torchvision(models: ModuleType, name: str, num_classes: int, arguments: dict[str, Any]) -> nn.Module:
    _refuse_unknown("torchvision", name, models.list_models(module=models))
    built: nn.Module = models.get_model(name, **{"weights": None, "num_classes": num_classes, **arguments})
    return built


def _timm(timm: ModuleType, name: str, num_classes: int, arguments: dict[str, Any]) -> nn.Module:
    # A name may carry a tag for its weights, "resnet50.a1_in1k"; the list holds architectures.
    _refuse_unknown("timm", name.partition(".")[0], timm.list_models())
    built: nn.Module = timm.create_model(name, **{"pretrained": False, "num_classes": num_classes, **arguments})
    return built


def _refuse_unknown(library: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        close = " or ".join(repr(f"{library}/{match}") for match in difflib.get_close_matches(name, known, n=2))
        raise ConfigError(f"unknown net '{library}/{name}'" + (f", did you mean {close}?" if close else ""))


_MODULES = {"torchvision": "torchvision.models", "timm": "timm"}
_BUILDERS: dict[str, Callable[[ModuleType, str, int, dict[str, Any]], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
}
