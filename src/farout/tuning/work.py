"""Workers: each takes the next trial in turn, trains it, and goes on until the budget or the search is at its end."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import farout
from farout.config import Config
from farout.errors import TrainingError
from farout.plugins import load_plugins
from farout.spaces import Point, parse_space
from farout.spaces.plans import LOST, identity
from farout.training import Interrupted
from farout.training.interrupt import Interrupts
from farout.training.lock import LockedError, RunLock, fcntl
from farout.tuning.search import ETA, distributions
from farout.tuning.study import open_study, put_back, reclaim, write_rows
from farout.tuning.terms import Terms, as_overrides, at
from farout.tuning.trial import measure, stops
from farout.types import Row

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

POLL = 0.2  # seconds between looks at the workers
STORAGE = "FAROUT_TUNE_STORAGE"  # how workers get the address: not by a file, for it may hold a password

Tell = Callable[[str], None]


def work(study: "Study", terms: Terms, folder: Path, tell: Tell) -> None:
    """Run trials until the budget or the search is at its end."""
    while True:
        with ExitStack() as stack:
            with _turn(folder):
                trial = _next(study, terms, folder, stack)
            if trial is None:
                return
            tell(_one(study, trial, terms, folder))
            write_rows(study, folder)


def _next(study: "Study", terms: Terms, folder: Path, stack: ExitStack) -> "Trial | None":
    """The next trial, with its folder locked on `stack`; None when there is nothing left to do."""
    from optuna.trial import TrialState

    reclaim(study, folder)
    known, lost = study.get_trials(deepcopy=False), set(study.user_attrs.get(LOST, []))
    waiting = [trial for trial in known if trial.state == TrialState.WAITING]
    if len(known) - len(waiting) - len(lost) >= terms.trials:
        return None
    plan = getattr(study.sampler, "next_point", None)
    if plan and not waiting and plan(study) is None:
        return None
    trial = study.ask(distributions(parse_space(terms.space)))
    home = folder / "trials" / hashlib.sha256(identity(trial.params).encode()).hexdigest()[:12]
    try:
        stack.enter_context(RunLock(home))
    except LockedError:  # the same point is being trained: this one gets a folder of its own
        home = home.with_name(f"{home.name}-{trial.number}")
        stack.enter_context(RunLock(home))
    trial.set_user_attr("folder", home.name)
    trial.set_user_attr("host", socket.gethostname())
    return trial


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One worker at a time chooses what to do next, so that no two choose the same."""
    with (folder / ".turn").open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _one(study: "Study", trial: "Trial", terms: Terms, folder: Path) -> str:
    """Train and validate one point and tell the study; returns a line for people."""
    from optuna.trial import TrialState

    began = time.monotonic()
    home = folder / "trials" / trial.user_attrs["folder"]
    twin = _twin(study, trial)
    try:
        if twin is not None:
            trial.set_user_attr("same_as", twin.number)
            row, state = dict(twin.user_attrs.get("row", {})), TrialState.COMPLETE
        else:
            row, pruned = _measure(at(Config.from_dict(terms.config), trial.params), home, terms, trial)
            state = TrialState.PRUNED if pruned else TrialState.COMPLETE
    except BaseException:  # an interrupt, a full disk, a wrong recipe: this trial's turn comes again
        with _turn(folder):
            put_back(study, trial.number, trial.params)
        raise
    trial.set_user_attr("row", {**row, "seconds": round(time.monotonic() - began, 2)})
    value = row["fpr95_id"] if state == TrialState.COMPLETE else None
    study.tell(trial, value, state=state, skip_if_finished=True)
    shutil.rmtree(home / "checkpoints", ignore_errors=True)  # of no more use
    return _line(trial.number, row, trial.params, state == TrialState.PRUNED)


def _measure(config: Config, home: Path, terms: Terms, trial: "Trial") -> tuple[Row, bool]:
    """Train and validate, asking the study's pruner on the way."""

    def prune(value: float, epochs: int) -> bool:
        trial.report(value, epochs)
        return trial.should_prune()

    looks = stops(config.train.epochs, ETA) if terms.pruner else []
    return measure(config, home, looks, prune)


def _twin(study: "Study", trial: "Trial") -> "FrozenTrial | None":
    """A finished trial of the same point: training is a function of the point, so it need not be done again."""
    from optuna.trial import TrialState

    done = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    return next((other for other in done if other.params == trial.params), None)


def _line(number: int, row: Row, point: Point, pruned: bool) -> str:
    end = f" (stopped after epoch {row['epochs']})" if pruned else " (diverged)" if "why" in row else ""
    return f"trial {number}: FPR95 {100 * row['fpr95_id']:.2f}{end} {' '.join(as_overrides(point))}"


def in_processes(study: "Study", terms: Terms, folder: Path, address: str, jobs: int, tell: Tell) -> None:
    """`jobs` workers on this machine, each with its share of the cores; Ctrl-C is passed on once."""
    workers = {number: _start(folder, address, number, jobs) for number in range(jobs)}
    told = {trial.number for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()}
    with Interrupts() as interrupts:
        stopping = False
        while any(process.poll() is None for process in workers.values()):
            if interrupts.requested and not stopping:
                stopping = True
                for process in workers.values():
                    process.send_signal(signal.SIGINT)
            _tell_new(study, told, tell)
            time.sleep(POLL)
    _tell_new(study, told, tell)
    if interrupts.requested:
        raise Interrupted("interrupted; what was under way is saved")
    failed = [number for number, process in workers.items() if process.returncode]
    if failed:
        output = folder / f"worker-{failed[0]}.txt"
        last = (output.read_text(errors="replace").strip().splitlines() or ["it left no message"])[-1]
        raise TrainingError(
            f"worker {failed[0]} of the study failed: {last} (all of it: {output}); the same call goes on"
        )


def _start(folder: Path, address: str, number: int, jobs: int) -> "subprocess.Popen[bytes]":
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    home = str(Path(farout.__file__).parents[1])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": paths, STORAGE: address}
    command = [sys.executable, "-c", f"from farout.tuning.work import worker; worker({str(folder)!r}, {number})"]
    with (folder / f"worker-{number}.txt").open("wb") as output:
        # A session of its own: Ctrl-C reaches it once, through us; twice would stop it without saving.
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)


def worker(folder: str, number: int) -> None:
    """What each of several processes runs: trials of the study in `folder`, on the GPU that is its turn."""
    import torch

    load_plugins()
    terms = Terms(**json.loads((Path(folder) / "study.json").read_bytes()))
    if terms.config["train"]["device"] == "auto" and torch.cuda.device_count() > 1:
        terms.config["train"]["device"] = f"cuda:{number % torch.cuda.device_count()}"
    work(open_study(terms, os.environ[STORAGE]), terms, Path(folder), lambda line: print(line, flush=True))


def _tell_new(study: "Study", told: set[int], tell: Tell) -> None:
    for trial in study.get_trials(deepcopy=False):
        if trial.state.is_finished() and trial.number not in told and "row" in trial.user_attrs:
            told.add(trial.number)
            tell(_line(trial.number, trial.user_attrs["row"], trial.params, trial.state.name == "PRUNED"))
