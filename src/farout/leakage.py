"""Images that training and test sets share: looked for once for each combination of sets, then remembered.

A look reads and hashes every image, a minute for the sets of a CIFAR; a comparison of many runs on the same sets needs
one, and the next comparison none.
"""

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from farout import build
from farout.config import Config, DataConfig
from farout.errors import ConfigError, DataError
from farout.jobs import code, digest, fingerprint, training_data
from farout.training.checkpoint import write_atomically

CODE = "build data"
MODES = ("warn", "refuse", "none")


def leakage(configs: Iterable[Config], cache: Path, mode: str, tell: Callable[[str], None]) -> list[str]:
    """A line for each finding among the sets that these configs train and test on; `refuse` makes it an error."""
    if mode not in MODES:
        raise ConfigError(f"leakage must be {', '.join(MODES)}, got {mode!r}")
    if mode == "none":
        return ["Not looked for: images that training and test sets share."]
    found = dict.fromkeys(line for config in _fullest(configs) for line in _remembered(config.data, cache, tell))
    if found and mode == "refuse":
        raise DataError(
            f"training and test sets overlap: {'; '.join(found)}. Look with `farout data overlap`, leave those classes "
            "or images out, or compare without --leakage refuse"
        )
    return [f"Shared: {line}." for line in found]


def _fullest(configs: Iterable[Config]) -> list[Config]:
    """One config for each combination of sets; what has no outliers is looked at with those that have."""
    kept = {digest(_sets(config.data)): config for config in configs}
    with_outliers = [config for config in kept.values() if config.data.outliers]
    return with_outliers or list(kept.values())


def _sets(data: DataConfig) -> list[Any]:
    return [data.id, data.outliers, data.drop, data.test, data.held_out, data.size]


def _remembered(data: DataConfig, cache: Path, tell: Callable[[str], None]) -> list[str]:
    entries = [entry if isinstance(entry, dict) else {"name": entry} for sets in data.test.values() for entry in sets]
    names = [data.id, *(entry.get("path") or entry["name"] for entry in entries)]
    prints = [fingerprint(name, data.root, "test", data.size) for name in names]
    path = cache / "leakage" / f"{digest(_sets(data), training_data(data), prints, code(CODE))[:12]}.json"
    if not path.is_file():
        tell("looking for images that training and test sets share")
        text = json.dumps({"sets": _sets(data), "findings": _look(data)})
        write_atomically(path, lambda file: file.write(text.encode()))  # type: ignore[arg-type]
    findings: list[str] = json.loads(path.read_text())["findings"]
    return findings


def _look(data: DataConfig) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the lines say it
        return [
            str(overlap) for overlap in build.leaks(data, *build.test_sets(data), strict=False) if not overlap.clean
        ]
