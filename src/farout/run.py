"""The main jobs, each over a run folder: train a recipe, evaluate what came out.

runs/NAME/   run.json  config.yaml  log.jsonl  checkpoints/  detector/  results.jsonl  scores.npz  table.md

With several processes rank 0 alone writes. `run.json` says which version of farout the folder belongs to.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from farout import __version__, build, distributed, seeds
from farout.config import Config
from farout.data.source import ImageSet
from farout.detector import Detector, record_metrics
from farout.errors import CheckpointError, ConfigError
from farout.evaluation import evaluate_net
from farout.report.table import long_table, markdown
from farout.training import Checkpoints, Descent, RunLog, epochs, load_state
from farout.training.checkpoint import write_atomically
from farout.training.lock import RunLock
from farout.training.walk import STEP_STREAM
from farout.types import Batch, Row
from farout.validation import Best

FORMAT = 1


@dataclass(frozen=True)
class Run:
    """A run folder and the detector that came out of it."""

    folder: Path
    config: Config
    detector: Detector


def default_folder(config: Config) -> Path:
    """runs/RECIPE/sSEED, as people lay out seeds."""
    return Path("runs") / config.name / f"s{config.train.seed}"


def train(
    recipe: str | Path | Config | nn.Module,
    overrides: Sequence[str] = (),
    *,
    run: str | Path | None = None,
    resume: bool = False,
    **own: Any,
) -> Any:
    """Train a recipe into a run folder and save the calibrated detector there; the result is a `Run`.

    A model in place of a recipe is fine-tuned as it is: `train(my_model, id_data=..., outliers=..., method="dal")`,
    see `farout.own_model.train_model`, whose arguments `own` are.

    A folder that already holds a run is refused unless `resume`; resuming continues exactly, a finished run is
    returned as it is.

    >>> farout.train("demo/dal", ["train.seed=1"]).detector(images)        # doctest: +SKIP
    """
    if isinstance(recipe, nn.Module):
        from farout.own_model import train_model

        return train_model(recipe, run=run, **own)
    if own:
        raise TypeError(f"a recipe takes no {', '.join(own)}; write changes as overrides, e.g. ['method.rho=5']")
    config = recipe if isinstance(recipe, Config) else Config.load(recipe, overrides)
    folder = Path(run) if run is not None else default_folder(config)
    with distributed.group(cuda=build.on_cuda(config)), build.deterministic(config.train.deterministic):
        resume = resume or distributed.restarts() > 0  # torchrun --max-restarts gives the same command again
        if resume and _finished(folder):
            _check(folder, config, resume)
            return Run(folder, config, Detector.load(folder / "detector"))
        with _claimed(folder):
            return _train(config, folder, resume)


def _claimed(folder: Path) -> AbstractContextManager[object]:
    """The folder's lock, which rank 0 holds for all."""
    lock = RunLock(folder) if distributed.rank() == 0 else nullcontext()
    stack = ExitStack()
    distributed.on_first(lambda: stack.enter_context(lock))
    return stack


def _train(config: Config, folder: Path, resume: bool) -> Run:
    distributed.on_first(lambda: _check(folder, config, resume))
    work = build.job(config)
    best = Best(config, folder) if config.train.validate_every else None  # before the folder says that it is a run
    distributed.on_first(lambda: _label(folder, config))
    checkpoints, log = Checkpoints(folder / "checkpoints"), RunLog(folder / "log.jsonl")
    with closing(epochs(work.descent, work.pairs, work.schedule, work.plan, checkpoints, log)) as pauses:
        for epoch in pauses:
            if best is not None:
                _look(best, work, epoch)
    made: list[Detector] = []
    distributed.on_first(lambda: made.append(_save_detector(config, work, folder / "detector")))
    return Run(folder, config, made[0] if made else Detector.load(folder / "detector"))


def _look(best: Best, work: build.Job, epoch: int) -> None:
    """Rank 0 validates for all; the random numbers of a step depend on its place alone, so training goes on as ever."""
    distributed.on_first(lambda: best.look(work.net, work.descent.objective, epoch, epoch * work.pairs.steps))


def _save_detector(config: Config, work: build.Job, folder: Path) -> Detector:
    detector = _detector(config, work)
    detector.save(folder)
    return detector


def _finished(folder: Path) -> bool:
    return (folder / "detector" / "detector.json").is_file()


def _label(folder: Path, config: Config) -> None:
    """What is needed to know the run again: the version that wrote it, then the recipe."""
    about = {"format": FORMAT, "farout": __version__, "torch": torch.__version__}
    write_atomically(folder / "run.json", lambda file: _put(file, json.dumps(about) + "\n"))
    write_atomically(folder / "config.yaml", lambda file: _put(file, config.to_yaml()))


def _check(folder: Path, config: Config, resume: bool) -> None:
    """A folder is free, or holds a run of this very recipe and format that is to be resumed."""
    path = folder / "config.yaml"
    _check_format(folder)
    if not path.exists():
        return
    if not resume:
        raise ConfigError(f"{folder} already holds a run; continue it with --resume or choose another --run folder")
    if Config.load(path) != config:
        raise ConfigError(
            f"{folder} was started from a different recipe (see {path}); resume with the same recipe and overrides, "
            "or choose another --run folder"
        )


def _check_format(folder: Path) -> None:
    """Refuse a run of another format; a folder without run.json is as old as format 1, and is one."""
    path = folder / "run.json"
    if not path.exists():
        return
    try:
        about = json.loads(path.read_bytes())
        found, version = about["format"], about["farout"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path} is damaged ({type(error).__name__}: {error}); choose another --run folder"
        ) from None
    if found != FORMAT:
        raise CheckpointError(
            f"{folder} is a run of farout {version} (format {found!r}), and this is farout {__version__} (format "
            f"{FORMAT}); use that version, or choose another --run folder"
        )


def _put(file: Any, text: str) -> None:
    file.write(text.encode())


def _detector(config: Config, work: build.Job) -> Detector:
    splits = build.id_splits(config.data)
    score = next(iter(build.scores(config).values()))
    detector = Detector(work.net, score, classes=build.class_names(splits.train), size=config.data.size)
    work.net.precision = "float32"  # what is saved runs in float32, so that is what is calibrated
    detector.remember(splits.train)
    detector.fit(splits.train if score.needs_fit else None, splits.held_out, tpr=config.eval.tpr)
    detector.about.update(method=config.method["name"], recipe=config.name, seed=config.train.seed)
    detector.about["recipe_hash"] = hashlib.sha256(config.to_yaml().encode()).hexdigest()[:16]
    return detector


def load_run(folder: str | Path) -> Run:
    """A finished run from its folder."""
    folder = Path(folder)
    path = folder / "config.yaml"
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a run: it has no config.yaml")
    _check_format(folder)
    if not _finished(folder):
        raise CheckpointError(f"the run in {folder} is not finished; finish it with `farout train ... --resume`")
    return Run(folder, Config.load(path), Detector.load(folder / "detector"))


@dataclass(frozen=True)
class Replay:
    """A step run again: its loss terms, and the parameters whose gradient is not finite."""

    terms: dict[str, float]
    bad_gradients: list[str]
    wrong: str


def replay(path: str | Path) -> Replay:
    """Run the step again that a `replay-...pt` file in a run folder holds, with that run's recipe; nothing is written.

    With several ranks it is the step of the rank that wrote the file, on its share of the batch alone.

    >>> farout.run.replay("runs/try/replay-00000008-rank0.pt").terms        # doctest: +SKIP
    """
    path = Path(path)
    state, config = load_state(path), Config.load(path.parent / "config.yaml")
    try:
        where = build.device(config.train.device)
        objective = build.bare_objective(config, state["objective"]).to(where).train()
        batch: dict[str, Any] = {key: v if v is None else v.to(where) for key, v in state["batch"].items()}
        place = state["place"]
        torch.manual_seed(seeds.mix(state["seed"], STEP_STREAM, place["epoch"], place["step"], state["rank"]))
        terms = Descent(objective, torch.optim.SGD(objective.parameters(), lr=0.0))(Batch(**batch), 0.0)
        wrong = str(state["wrong"])
    except (KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} does not replay a step ({type(error).__name__}: {error})") from None
    named = objective.named_parameters()
    bad = [name for name, p in named if p.grad is not None and not bool(p.grad.isfinite().all())]
    return Replay({name: term.item() for name, term in terms.items()}, bad, wrong)


def evaluate(
    run: str | Path | Run,
    overrides: Sequence[str] = (),
    *,
    scores: Sequence[Any] = (),
    recipe: str | Path | None = None,
) -> list[Row]:
    """Test a run on its recipe's ID and OOD test sets; the rows are also written to `results.jsonl` beside it.

    `run` may also be a detector folder; then `recipe` says what to test on.
    """
    loaded = run if isinstance(run, Run) else _load(Path(run), recipe)
    config = loaded.config
    if overrides:
        config = Config.from_dict(_overridden(config, overrides))
    id_test, ood_tests = build.test_sets(config.data)
    if not ood_tests:
        raise ConfigError("the recipe names no OOD test sets; set data.test, e.g. data.test=[textures]")
    _guard(config, id_test, ood_tests)
    net = loaded.detector.net.to(build.device(config.train.device))
    table = build.scores(config, list(scores))
    train_set = build.id_splits(config.data).train if any(s.needs_fit for s in table.values()) else None
    rows, kept = evaluate_net(
        net,
        table,
        id_test,
        ood_tests,
        train=train_set,
        num_classes=len(loaded.detector.classes) or None,
        ood_count=config.eval.ood_count,
        seed=config.train.seed,
    )
    about = {"recipe": config.name, "method": config.method["name"], "seed": config.train.seed}
    rows = [{**about, **row} for row in rows]
    _write_results(loaded.folder, rows, kept)
    record_metrics(loaded.folder, rows)
    return rows


def _guard(config: Config, id_test: ImageSet, ood_tests: dict[str, dict[str, ImageSet]]) -> None:
    """Look for images that training and test sets share; reads the training sets once."""
    if config.eval.leakage not in ("warn", "refuse", "none"):
        raise ConfigError(f"eval.leakage must be warn, refuse or none, got {config.eval.leakage!r}")
    if config.eval.leakage != "none":
        build.leaks(config.data, id_test, ood_tests, strict=config.eval.leakage == "refuse")


def _load(folder: Path, recipe: str | Path | None) -> Run:
    if (folder / "detector.json").is_file():
        if recipe is None:
            raise ConfigError(f"{folder} is a detector; say what to test it on with --recipe, e.g. --recipe demo/dal")
        return Run(folder, Config.load(recipe), Detector.load(folder))
    return load_run(folder)


def _overridden(config: Config, overrides: Sequence[str]) -> dict[str, Any]:
    from farout.config import merge, parse_override

    tree: dict[str, Any] = config.to_dict()
    for override in overrides:
        tree = merge(tree, parse_override(override))
    return tree


def _write_results(folder: Path, rows: list[Row], kept: dict[str, dict[str, torch.Tensor]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "results.jsonl", lambda file: _put(file, text))
    write_atomically(folder / "table.md", lambda file: _put(file, markdown(*long_table(rows))))
    arrays = {f"{score}|{name}": values.numpy() for score, sets in kept.items() for name, values in sets.items()}
    write_atomically(folder / "scores.npz", lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
