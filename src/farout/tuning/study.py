"""The study on disk or in a data base: opened, its trials as rows, and those put back whose process died."""

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farout import seeds
from farout.config import Config
from farout.errors import ConfigError
from farout.spaces import parse_space
from farout.spaces.plans import LOST
from farout.training.checkpoint import write_atomically
from farout.training.lock import in_use
from farout.tuning.search import PRUNERS, SAMPLERS, need_optuna
from farout.tuning.terms import Terms, agreed
from farout.types import Row

if TYPE_CHECKING:
    from optuna import Study


def open_study(terms: Terms, address: str) -> "Study":
    """The study, made or continued; one about something else is refused."""
    optuna = need_optuna()
    config, space = Config.from_dict(terms.config), parse_space(terms.space)
    try:
        opened: Study = optuna.create_study(
            storage=_storage(address), study_name=terms.study, direction="minimize", load_if_exists=True
        )
        # Another stream for each process and start: the same seed would draw the same points again.
        stream = seeds.mix(len(opened.get_trials(deepcopy=False)), os.getpid())
    except Exception as error:  # whatever the data base raises
        shown = address.rpartition("@")[2]
        raise ConfigError(f"cannot open the study in {shown}: {type(error).__name__}: {error}") from error
    opened.sampler = SAMPLERS[terms.sampler](terms, config, space, stream)
    opened.pruner = PRUNERS[terms.pruner](config.train.epochs) if terms.pruner else optuna.pruners.NopPruner()
    about, fixed = opened.user_attrs.get("terms"), terms.fixed
    if about is None:
        opened.set_user_attr("terms", fixed)
    elif (begun := agreed(about)) != fixed:
        changed = [key for key in fixed if begun.get(key) != fixed[key]]
        raise ConfigError(
            f"the study {terms.study!r} was begun with another {', '.join(changed)}; use that, or a new --study name"
        )
    return opened


def _storage(address: str) -> Any:
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    if address.startswith("journal:"):
        return JournalStorage(JournalFileBackend(address.removeprefix("journal:")))
    # SQLite lets one write at a time; the others wait instead of giving up after five seconds.
    patient = {"connect_args": {"timeout": 120}} if address.startswith("sqlite:") else {}
    return RDBStorage(address, engine_kwargs=patient)


def reclaim(study: "Study", folder: Path) -> list[int]:
    """Put trials back whose process on this machine died: their lock is free though they are still running."""
    from optuna.trial import TrialState

    found = []
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        here = trial.user_attrs.get("host", socket.gethostname()) == socket.gethostname()
        if here and not in_use(folder / "trials" / trial.user_attrs.get("folder", "")):
            put_back(study, trial.number, trial.params)
            found.append(trial.number)
    return found


def put_back(study: "Study", number: int, params: dict[str, Any]) -> None:
    """Forget a trial and queue its point again; its checkpoints are found by the point."""
    from optuna.trial import TrialState

    study.set_user_attr(LOST, sorted({*study.user_attrs.get(LOST, []), number}))
    study.tell(number, state=TrialState.FAIL, skip_if_finished=True)
    if params:
        study.enqueue_trial(params)


def rows(study: "Study") -> list[Row]:
    """One row a trial that is not lost, in the order of their numbers."""
    lost = set(study.user_attrs.get(LOST, []))
    return [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            **trial.params,
            **trial.user_attrs.get("row", {}),
            **{key: trial.user_attrs[key] for key in ("same_as",) if key in trial.user_attrs},
        }
        for trial in study.get_trials(deepcopy=False)
        if trial.number not in lost
    ]


def write_rows(study: "Study", folder: Path) -> list[Row]:
    """Write `trials.jsonl` anew, whole, from the study; any worker may."""
    known = rows(study)
    text = "".join(json.dumps(row) + "\n" for row in known)
    write_atomically(folder / "trials.jsonl", lambda file: _put(file, text))
    return known


def _put(file: Any, text: str) -> None:
    file.write(text.encode())
