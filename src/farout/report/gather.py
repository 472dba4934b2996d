"""Run folders as plain data: what each wrote, and which of them are one method under several seeds."""

import json
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farout.config import Config
from farout.errors import CheckpointError, FaroutError
from farout.report.histogram import read_scores
from farout.training.log import read_rows
from farout.types import Row

TRIALS = "trials.jsonl"
_OWN = (
    "train.seed",
    "train.device",
    "train.init",
    "train.checkpoint_every",
    "train.checkpoint_seconds",
    "train.log_every",
    "name",
)
"""What may differ between runs that are one method: where it ran and with which seed."""


@dataclass(frozen=True)
class RunFiles:
    """What a run left; `about` names the versions that trained it, `why` says why a file could not be read."""

    folder: Path
    config: Config
    log: Sequence[Row]
    results: Sequence[Row]
    scores: Mapping[str, Mapping[str, Any]]
    card: Mapping[str, Any]
    about: Mapping[str, Any]
    why: Mapping[str, str]

    @property
    def seed(self) -> int:
        return self.config.train.seed


@dataclass(frozen=True)
class Group:
    """One method: its runs differ in their seed alone. `series` is its number among the groups, hence its colour."""

    label: str
    series: int
    runs: tuple[RunFiles, ...]

    @property
    def first(self) -> RunFiles:
        return self.runs[0]

    @property
    def rows(self) -> list[Row]:
        """The results of all seeds, under the group's name."""
        named = enumerate(self.runs)
        return [{**row, "method": self.label, "seed": place} for place, run in named for row in run.results]

    @property
    def score(self) -> str:
        """The score it is judged by: the first that was evaluated, which is the detector's unless asked otherwise."""
        return str(next((row["score"] for run in self.runs for row in run.results), ""))


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run folders among `paths` and below them, each once; those given first come first, seeds in order."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise CheckpointError(f"no such folder: {path}")
        here = [path] if (path / "config.yaml").is_file() else sorted(_below(path, "config.yaml"), key=_natural)
        found.update(dict.fromkeys(here))
    return list(found)


def find_trials(paths: Iterable[str | Path]) -> list[Row]:
    """The tuning rows that lie in or below `paths`, in files called trials.jsonl."""
    folders = [folder for path in map(Path, paths) for folder in sorted(_below(path, TRIALS), key=_natural)]
    return [row for folder in folders for row in read_rows(folder / TRIALS, broken_tail=True)]


def _below(path: Path, name: str) -> list[Path]:
    """The folders that hold a file of that name; links are followed, for comparisons link to cached runs."""
    return [Path(folder) for folder, _, files in os.walk(path, followlinks=True) if name in files]


def _natural(path: Path) -> list[tuple[int, str]]:
    """s2 before s10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def read_run(folder: Path) -> RunFiles:
    """Everything a run folder holds; what is missing or damaged is left empty, with the reason."""
    config = Config.load(folder / "config.yaml")
    why: dict[str, str] = {}
    todo = f"run `farout eval {folder}`"
    log = _read(why, "log", lambda: read_rows(folder / "log.jsonl", broken_tail=True), [], "it wrote no log.jsonl")
    results = _read(why, "results", lambda: read_rows(folder / "results.jsonl"), [], f"not evaluated yet: {todo}")
    scores = _read(why, "scores", lambda: read_scores(folder), {}, f"no scores.npz: {todo}")
    card = _read(why, "card", lambda: _json(folder / "detector" / "detector.json"), {}, "no detector: not finished yet")
    about = _read({}, "about", lambda: _json(folder / "run.json"), {}, "")  # runs of early versions have none
    named = {key: f"{folder}: {text}" for key, text in why.items()}
    return RunFiles(folder, config, log, results, scores, card, about, named)


def _read(why: dict[str, str], key: str, reader: Any, empty: Any, if_absent: str) -> Any:
    try:
        return reader()
    except FileNotFoundError:
        why[key] = if_absent
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, FaroutError) as error:
        why[key] = f"cannot be read: {error}"
    return empty


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def group_runs(runs: Sequence[RunFiles]) -> list[Group]:
    """Runs of one recipe under several seeds, together; named by the method, and by what differs where that clashes."""
    members: dict[str, list[RunFiles]] = {}
    for run in runs:
        members.setdefault(_identity(run.config), []).append(run)
    together = list(members.values())
    labels = _labels([runs[0].config for runs in together])
    return [
        Group(label, number, tuple(sorted(runs, key=lambda run: run.seed)))
        for number, (label, runs) in enumerate(zip(labels, together, strict=True))
    ]


def flat(config: Config) -> dict[str, Any]:
    """A config as {"method.rho": 10, ...}."""
    return dict(_leaves(config.to_dict(), ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _identity(config: Config) -> str:
    """The same for runs that differ in their seed alone; a start from another seed's run is the same start."""
    choices = {key: value for key, value in flat(config).items() if key not in _OWN}
    start = re.sub(r"(^|/)s\d+(?=[/.]|$)", r"\1s*", config.train.init or "")
    return json.dumps([choices, start], sort_keys=True, default=str)


def _labels(configs: Sequence[Config]) -> list[str]:
    """The method's name; where two groups share it, with the settings in which they differ."""
    names = [str(config.method.get("name", "?")) for config in configs]
    labels = []
    for name, config in zip(names, configs, strict=True):
        peers = [other for other, called in zip(configs, names, strict=True) if called == name]
        changes = [f"{key.rpartition('.')[2]}={value}" for key, value in _apart(config, peers)]
        labels.append(f"{name} ({', '.join(changes[:3])})" if changes else name)
    return [
        label if labels.count(label) == 1 else f"{label} #{labels[:place].count(label) + 1}"
        for place, label in enumerate(labels)
    ]


def _apart(config: Config, peers: Sequence[Config]) -> list[tuple[str, Any]]:
    tables = [flat(peer) for peer in peers]
    own = {key: value for key, value in flat(config).items() if key not in _OWN}
    return [(key, value) for key, value in own.items() if any(table.get(key) != value for table in tables)]


def differences(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """The settings in which the groups differ: (key, one value for each group); "–" where a group has none."""
    tables = [flat(group.first.config) for group in groups]
    keys = dict.fromkeys(key for table in tables for key in table if key not in _OWN[:2])
    lines = [(key, [_plain(table.get(key)) for table in tables]) for key in keys]
    return [(key, values) for key, values in lines if len(set(values)) > 1]


def _plain(value: Any) -> str:
    return "–" if value is None else str(value)
