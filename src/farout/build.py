"""From a config to objects. Names are known to the tables and here; below nobody sees a config."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farout import seeds
from farout.components import choose, make
from farout.config import Config, DataConfig
from farout.data.arrays import ArraySet, Subset
from farout.data.augment import AUGMENTS
from farout.data.loaders import LOADERS
from farout.data.named import open_named
from farout.data.outliers import auxiliary
from farout.data.pairs import Pairs
from farout.data.source import ImageSet, Source
from farout.detector import read_tensors
from farout.errors import ConfigError, DataError
from farout.methods import METHODS, Method
from farout.nets import load_weights
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.scores import SCORES, Score
from farout.scores.embed import embed
from farout.training import ENGINES, OPTIMIZERS, SCHEDULES, Descent, Objective, Plan, load_state
from farout.training.checkpoint import Checkpoints
from farout.training.optim import Schedule

SPLIT_STREAM, NET_STREAM, COUNT_STREAM = 7, 8, 9


@dataclass(frozen=True)
class Splits:
    """The ID data of a run: what is trained on, and what is held out for threshold and validation."""

    train: ImageSet
    held_out: ImageSet


@dataclass(frozen=True)
class Job:
    """Everything that a training run needs. `net` is the whole network, also where only its head trains."""

    net: Net
    descent: Descent
    pairs: Pairs
    schedule: Schedule
    plan: Plan


def device(name: str) -> torch.device:
    """ "auto" is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device {name!r}; use auto, cpu or cuda") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device=cuda, but torch sees no CUDA device; use train.device=cpu")
    return chosen


def id_splits(data: DataConfig) -> Splits:
    """The ID training data, cut once and for all: the cut depends on the data alone, never on the run's seed."""
    if not data.id:
        raise ConfigError("the recipe names no ID set; set data.id")
    if not 0 < data.held_out < 1:
        raise ConfigError(f"data.held_out must lie between 0 and 1, got {data.held_out}")
    whole = _open(data, data.id, "train")
    if whole.labels is None:
        raise DataError(f"the ID set {data.id!r} has no labels, and a classifier needs them")
    order = torch.randperm(len(whole), generator=seeds.generator(SPLIT_STREAM))
    cut = max(1, round(data.held_out * len(whole)))
    return Splits(train=Subset(whole, order[cut:]), held_out=Subset(whole, order[:cut]))


def outlier_set(data: DataConfig, id_classes: tuple[str, ...]) -> ImageSet:
    """The auxiliary outliers, less the classes that are also ID."""
    if data.outliers is None:
        raise ConfigError("this method trains with auxiliary outliers; set data.outliers")
    pool = auxiliary(_open(data, data.outliers, "train"), id_classes, data.drop)
    if data.outlier_count is not None and data.outlier_count < len(pool):
        chosen = torch.randperm(len(pool), generator=seeds.generator(COUNT_STREAM))[: data.outlier_count]
        pool = Subset(pool, chosen)
    return pool


def test_sets(data: DataConfig) -> tuple[ImageSet, dict[str, dict[str, ImageSet]]]:
    """The ID test set, and the OOD test sets by group."""
    groups = {group: {name: _open(data, name, "test") for name in names} for group, names in data.test.items()}
    return _open(data, data.id, "test"), groups


def _open(data: DataConfig, name: str, split: str) -> ImageSet:
    return open_named(name, root=data.root, split=split, size=data.size, corrupt=data.corrupt)


def net(config: Config, classes: int) -> Net:
    """The network of the recipe with `classes` ID classes, initialised from the run's seed or from `train.init`."""
    way = choose("method", METHODS, config.method.get("name", ""))
    outputs = classes * way.outputs_per_class + way.outlier_class
    torch.manual_seed(seeds.mix(config.train.seed, NET_STREAM))
    made = make_net({**config.net, "num_classes": outputs, "mean": config.data.mean, "std": config.data.std})
    if config.train.precision not in ("float32", "bf16"):
        raise ConfigError(f"train.precision must be float32 or bf16, got {config.train.precision!r}")
    made.precision = config.train.precision
    if config.train.init is not None:
        load_init(made, Path(config.train.init))
    return made


def load_init(made: Net, path: Path) -> None:
    """Start from a run folder, a checkpoint, a detector folder or a weights file."""
    if not path.is_dir():
        load_weights(made, path)
        return
    files = Checkpoints(path / "checkpoints").files()
    if files:
        state, path = load_state(files[-1])["objective"], files[-1]
    elif (path / "model.safetensors").is_file():
        state, path = read_tensors(path / "model.safetensors"), path / "model.safetensors"
    else:
        raise ConfigError(f"train.init={path}: the folder holds neither checkpoints nor a model.safetensors")
    weights = {name.removeprefix("net."): t for name, t in state.items() if name.startswith("net.")}
    _grow_head(weights, made)
    try:
        made.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(f"train.init: {path} does not fit the recipe's network: {error}") from None


def _grow_head(weights: dict[str, Tensor], made: Net) -> None:
    """Where the network has one output more than the file, an outlier class, that one keeps its fresh start."""
    for name, own in made.head.named_parameters(prefix="head"):
        if name in weights and weights[name].shape[0] == own.shape[0] - 1:
            weights[name] = torch.cat([weights[name], own.detach()[-1:]])


def method(config: Config) -> Method:
    return make("method", METHODS, config.method)


def scores(config: Config, extra: list[Any] | None = None) -> dict[str, Score]:
    """The scores to report, by name; the method's own if the recipe names none."""
    wanted = extra or config.eval.scores or [METHODS[config.method["name"]].score]
    specs = [{"name": spec} if isinstance(spec, str) else dict(spec) for spec in wanted]
    return {_label(spec): make("score", SCORES, spec) for spec in specs}


def _label(spec: dict[str, Any]) -> str:
    """`knn` or `knn(k=200)`: two entries of one score are two columns."""
    changes = ", ".join(f"{key}={value}" for key, value in spec.items() if key != "name")
    return f"{spec['name']}({changes})" if changes else str(spec["name"])


def job(config: Config) -> Job:
    """All objects of a training run, on its device."""
    where = device(config.train.device)
    splits = id_splits(config.data)
    way = method(config)
    whole = net(config, len(class_names(splits.train)))
    # Convolutions are faster channels-last, on CPUs too.
    whole = whole.to(where).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pool = outlier_set(config.data, splits.train.classes) if way.needs_outliers else None
    trained, train_set, augment = whole, splits.train, config.data.augment
    if config.train.only_head:
        trained = Net(torch.nn.Identity(), whole.head)
        train_set = _features(whole, splits.train)
        pool = _features(whole, pool) if pool is not None else None
        augment = {"name": "none"}
    way.prepare(trained)
    objective = Objective(trained, way).to(where)
    optimizer = make("optimizer", OPTIMIZERS, config.optim, parameters=objective.parameters())
    pairs = Pairs(
        _source(config, train_set, where),
        _source(config, pool, where) if pool is not None else None,
        make("augment", AUGMENTS, augment),
        batch_size=config.data.batch_size,
        outlier_batch_size=config.data.outlier_batch_size,
        seed=config.train.seed,
    )
    schedule = make(
        "schedule",
        SCHEDULES,
        config.schedule,
        lr=optimizer.param_groups[0]["lr"],
        steps_per_epoch=pairs.steps,
        epochs=config.train.epochs,
    )
    plan = Plan(
        epochs=config.train.epochs,
        seed=config.train.seed,
        checkpoint_every=config.train.checkpoint_every,
        log_every=config.train.log_every,
        title=config.name,
    )
    return Job(whole, choose("engine", ENGINES, config.train.engine)(objective, optimizer), pairs, schedule, plan)


def _source(config: Config, samples: ImageSet, where: torch.device) -> Source:
    return make("loader", LOADERS, config.data.loader, samples=samples, device=where)


def class_names(samples: ImageSet) -> tuple[str, ...]:
    """The ID classes; numbers where the set does not name them."""
    if samples.classes or samples.labels is None:
        return samples.classes
    return tuple(map(str, range(int(samples.labels.max()) + 1)))


def _features(whole: Net, samples: ImageSet) -> ArraySet:
    """A set of embeddings: what a linear probe trains on."""
    embedded = embed(whole, samples)
    return ArraySet(f"{samples.name} features", embedded.outputs.features.cpu(), samples.labels, samples.classes)
