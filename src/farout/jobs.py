"""Many trainings, none of them twice: a run's folder is named by the hash of what decides its outcome.

That is the recipe, the data (a fingerprint of the images, not their path), the code (of the plugins that it uses, too),
and the run it starts from.
Whatever stops the work, the same call goes on where it stopped, and several calls may share one folder of runs.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import farout
from farout.build import init_file
from farout.config import Config, DataConfig
from farout.data.named import open_named
from farout.errors import FaroutError
from farout.plugins import expectation, sources
from farout.run import train
from farout.training import Interrupted
from farout.training.checkpoint import write_atomically
from farout.training.interrupt import Interrupts
from farout.training.lock import LockedError, RunLock, in_use

SAMPLED = 512  # images that a set's fingerprint reads
POLL = 0.05  # seconds between looks at the running jobs
TRAINING_CODE = (
    "build components config contrastive data detector distributed losses methods nets scores seeds training types "
    "worst_case"
)
TESTING_CODE = f"{TRAINING_CODE} evaluation metrics statistics run"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Training:
    """One run to be had: its config, and the run that it fine-tunes."""

    config: Config
    start: "Training | None" = None

    @cached_property
    def key(self) -> str:
        """The hash of all that decides the outcome."""
        tree = self.config.to_dict()
        del tree["name"], tree["data"]["root"]
        if self.start is not None:
            tree["train"]["init"] = self.start.key
        elif self.config.train.init is not None:
            tree["train"]["init"] = contents(init_file(Path(self.config.train.init)))
        return digest(tree, training_data(self.config.data), code(TRAINING_CODE), *sources(tree))

    def folder(self, root: Path) -> Path:
        name = self.config.name.replace("/", "-")
        return root / f"{name}-s{self.config.train.seed}-{self.key[:12]}"

    def finished(self, root: Path) -> bool:
        return (self.folder(root) / "detector" / "detector.json").is_file()

    def to_run(self, root: Path) -> Config:
        """The config with the path of the run that it starts from."""
        if self.start is None:
            return self.config
        return replace(self.config, train=replace(self.config.train, init=str(self.start.folder(root))))


def digest(*things: Any) -> str:
    """One hash of plain things."""
    return hashlib.sha256(json.dumps(things, sort_keys=True).encode()).hexdigest()


def contents(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def code(names: str) -> str:
    """The hash of the named modules' source: what was trained by other code is trained again."""
    home, found = Path(farout.__file__).parent, hashlib.sha256()
    for name in names.split():
        for path in sorted([*home.glob(f"{name}.py"), *home.glob(f"{name}/**/*.py")]):
            found.update(str(path.relative_to(home)).encode() + path.read_bytes())
    return found.hexdigest()


def training_data(data: DataConfig) -> list[str]:
    """Fingerprints of what is trained on."""
    names = [data.id, *([data.outliers] if data.outliers else [])]
    return [fingerprint(name, data.root, "train", data.size) for name in names]


@cache
def fingerprint(name: str, root: str | None, split: str, size: int) -> str:
    """The hash of a set: count, classes, every label, and up to 512 images evenly spread over it."""
    samples, found = open_named(name, root=root, split=split, size=size, corrupt="skip"), hashlib.sha256()
    chosen = torch.linspace(0, len(samples) - 1, min(SAMPLED, len(samples))).round().long()
    images, _ = samples.read(chosen)
    labels = samples.labels if samples.labels is not None else torch.empty(0)
    found.update(json.dumps([len(samples), list(samples.classes), list(images.shape)]).encode())
    for array in (labels, images):
        found.update(np.ascontiguousarray(array.numpy()).tobytes())
    return found.hexdigest()


def train_all(trainings: Iterable[Training], root: Path, jobs: int = 1, tell: Tell = lambda line: None) -> list[str]:
    """Have every training done, what is started from first; returns a line for each that could not be.

    `jobs` > 1 runs that many processes at a time. What another process trains in `root` is left to it and waited for.
    """
    queue = _Queue(trainings, root, tell)
    if jobs > 1 and queue.total > 1:
        _in_processes(queue, jobs)
    else:
        _here(queue)
    return queue.problems


class _Queue:
    """What is left to train."""

    def __init__(self, trainings: Iterable[Training], root: Path, tell: Tell) -> None:
        self.root, self.tell = root, tell
        self.waiting = [one for one in _in_order(trainings, root) if not one.finished(root)]
        self.total, self.begun = len(self.waiting), set[Path]()
        self.failed, self.problems = set[Path](), list[str]()

    def take(self) -> Training | None:
        """The next that can begin: what it starts from is there, and nobody else trains it."""
        for one in list(self.waiting):
            folder = one.folder(self.root)
            if one.finished(self.root):  # another process was at it
                self.waiting.remove(one)
            elif one.start is not None and one.start.folder(self.root) in self.failed:
                self.waiting.remove(one)
                self.fail(one, f"{_title(one)} was not begun: what it starts from failed")
            elif (one.start is None or one.start.finished(self.root)) and not in_use(folder):
                self.waiting.remove(one)
                self.begun.add(folder)
                self.tell(f"{len(self.begun)}/{self.total} {_title(one)}")
                return one
        return None

    def put_back(self, one: Training) -> None:
        """Another process was quicker: wait for it."""
        self.tell(f"{_title(one)} is being trained by another process; its result will be used")
        self.waiting.append(one)

    def fail(self, one: Training, problem: str) -> None:
        self.failed.add(one.folder(self.root))
        self.problems.append(problem)
        self.tell(problem)


def _here(queue: _Queue) -> None:
    """One after the other in this process; one that fails is told of, and the others go on."""
    while queue.waiting:
        one = queue.take()
        if one is None:
            time.sleep(POLL)
            continue
        folder = one.folder(queue.root)
        try:
            train(_prepare(one, queue.root), run=folder, resume=True)
        except LockedError:
            queue.put_back(one)
        except Interrupted:
            raise
        except (FaroutError, RuntimeError, OSError) as error:  # RuntimeError: what torch raises, out of memory too
            queue.fail(one, f"training failed in {folder}: {error}")


def _in_order(trainings: Iterable[Training], root: Path) -> list[Training]:
    """Each once, after what it starts from."""
    found: dict[Path, Training] = {}
    for one in trainings:
        line = [one]
        while line[-1].start is not None:
            line.append(line[-1].start)
        for part in reversed(line):
            found.setdefault(part.folder(root), part)
    return sorted(found.values(), key=_depth)


def _depth(one: Training) -> int:
    return 0 if one.start is None else 1 + _depth(one.start)


def _title(one: Training) -> str:
    return f"{one.config.name}, seed {one.config.train.seed}"


def _prepare(one: Training, root: Path) -> Config:
    """Write the config where the run will find it; the data may have moved since the run was begun."""
    config, folder = one.to_run(root), one.folder(root)
    with RunLock(folder):
        write_atomically(folder / "config.yaml", lambda file: _put(file, config.to_yaml()))
    return config


def _put(file: Any, text: str) -> None:
    file.write(text.encode())


def _in_processes(queue: _Queue, jobs: int) -> None:
    """A process for each training, `jobs` at a time; one that fails is told of, and the others go on."""
    running: dict[Path, tuple[Training, subprocess.Popen[bytes]]] = {}
    with Interrupts() as interrupts:
        while (queue.waiting or running) and not interrupts.requested:
            for folder in [folder for folder, (_, process) in running.items() if process.poll() is not None]:
                _end(queue, *running.pop(folder))
            while len(running) < jobs and (one := queue.take()) is not None:
                try:
                    running[one.folder(queue.root)] = one, _begin(one, queue.root, jobs)
                except LockedError:
                    queue.put_back(one)
            time.sleep(POLL)
        _stop([process for _, process in running.values()])
    if interrupts.requested:
        raise Interrupted("interrupted; what was under way is saved")


def _end(queue: _Queue, one: Training, process: "subprocess.Popen[bytes]") -> None:
    """Look at what a process left."""
    folder = one.folder(queue.root)
    if process.returncode == 0 or one.finished(queue.root):
        return
    if in_use(folder):  # it met the lock of another
        queue.put_back(one)
    else:
        queue.fail(one, f"training failed in {folder}: {_last_line(folder / 'output.txt')}")


def _begin(one: Training, root: Path, jobs: int) -> "subprocess.Popen[bytes]":
    _prepare(one, root)
    folder = one.folder(root)
    command = [sys.executable, "-m", "farout", "train", str(folder / "config.yaml"), "--run", str(folder), "--resume"]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    home = str(Path(farout.__file__).parents[1])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": paths}
    environment |= expectation(one.config.to_dict())
    with (folder / "output.txt").open("ab") as output:
        # A session of its own: Ctrl-C reaches it once, through us; twice would stop it without saving.
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask every process once to save and end, and wait until it has."""
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
    return f"{lines[-1]} (all of it: {path})" if lines else f"it left no message in {path}"
