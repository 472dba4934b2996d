"""Errors a user can act on: each names the thing, shows what came and says what to do.

The command line prints such an error as one line and exits with 1; anything else is a bug and shows its traceback.
"""


class FaroutError(Exception):
    """The root of every error that farout raises on purpose."""


class ConfigError(FaroutError, ValueError):
    """A recipe or an override is wrong."""


class DataError(FaroutError):
    """A data set is missing, truncated or corrupt."""


class CheckpointError(FaroutError):
    """A checkpoint, a run folder or a detector cannot be used."""


class NotFittedError(FaroutError):
    """A score or a detector was used before `fit`."""


class TrainingError(FaroutError):
    """Training cannot go on, e.g. because the loss is not finite."""


class MissingExtraError(FaroutError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'farout[{extra}]'")
