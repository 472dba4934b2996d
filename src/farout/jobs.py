"""Many trainings, none of them twice: a run's folder is named by the hash of what decides its outcome.

That is the recipe, the data (a fingerprint of the images, not their path), the code, and the run it starts from.
Whatever stops the work, the same call goes on where it stopped.
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
from farout.config import Config, DataConfig
from farout.data.named import open_named
from farout.errors import TrainingError
from farout.run import train
from farout.training import Interrupted
from farout.training.checkpoint import write_atomically
from farout.training.interrupt import Interrupts

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
        return digest(tree, training_data(self.config.data), code(TRAINING_CODE))

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


def train_all(trainings: Iterable[Training], root: Path, jobs: int = 1, tell: Tell = lambda line: None) -> None:
    """Have every training done, what is started from first; `jobs` > 1 runs that many processes at a time."""
    todo = [one for one in _in_order(trainings, root) if not one.finished(root)]
    if jobs > 1 and len(todo) > 1:
        _in_processes(todo, root, jobs, tell)
        return
    for number, one in enumerate(todo, 1):
        tell(f"{number}/{len(todo)} {_title(one)}")
        config = _prepare(one, root)
        train(config, run=one.folder(root), resume=True)


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
    config = one.to_run(root)
    write_atomically(one.folder(root) / "config.yaml", lambda file: _put(file, config.to_yaml()))
    return config


def _put(file: Any, text: str) -> None:
    file.write(text.encode())


def _in_processes(todo: Sequence[Training], root: Path, jobs: int, tell: Tell) -> None:
    """A process for each training, `jobs` at a time; one that fails lets those under way finish, then it is told."""
    waiting, running, failed = list(todo), dict[Path, subprocess.Popen[bytes]](), list[Path]()
    with Interrupts() as interrupts:
        while running or (waiting and not failed and not interrupts.requested):
            if interrupts.requested:
                _stop(running)
            for folder in [folder for folder, process in running.items() if process.poll() is not None]:
                if running.pop(folder).returncode:
                    failed.append(folder)
            free = 0 if failed or interrupts.requested else jobs - len(running)
            for one in [one for one in waiting if one.start is None or one.start.finished(root)][:free]:
                tell(f"{len(todo) - len(waiting) + 1}/{len(todo)} {_title(one)}")
                waiting.remove(one)
                running[one.folder(root)] = _begin(one, root, jobs)
            time.sleep(POLL)
    if interrupts.requested:
        raise Interrupted("interrupted; what was under way is saved")
    if failed:
        raise TrainingError(f"training failed in {failed[0]}: {_last_line(failed[0] / 'output.txt')}")


def _begin(one: Training, root: Path, jobs: int) -> "subprocess.Popen[bytes]":
    _prepare(one, root)
    folder = one.folder(root)
    command = [sys.executable, "-m", "farout", "train", str(folder / "config.yaml"), "--run", str(folder), "--resume"]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    home = str(Path(farout.__file__).parents[1])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": paths}
    with (folder / "output.txt").open("ab") as output:
        # A session of its own: Ctrl-C reaches it once, through us; twice would stop it without saving.
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)


def _stop(running: dict[Path, "subprocess.Popen[bytes]"]) -> None:
    """Ask every process once to save and end, and wait until it has."""
    for process in running.values():
        process.send_signal(signal.SIGINT)
    for process in running.values():
        process.wait()
    running.clear()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
    return f"{lines[-1]} (all of it: {path})" if lines else f"it left no message in {path}"
