"""From a config to objects. Names are known to the tables and here; below nobody sees a config."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farout import distributed, seeds
from farout.components import choose, make
from farout.config import Config, DataConfig
from farout.data.arrays import ArraySet, Subset
from farout.data.augment import AUGMENTS, Augment
from farout.data.loaders import LOADERS
from farout.data.named import open_named
from farout.data.outliers import auxiliary, without_classes
from farout.data.overlap import Overlap, guard
from farout.data.pairs import Pairs
from farout.data.source import ImageSet, Source
from farout.detector import read_tensors
from farout.errors import CheckpointError, ConfigError, DataError
from farout.methods import METHODS, Method
from farout.nets import load_weights
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.scores import SCORES, Score
from farout.scores.embed import embed
from farout.training import ENGINES, OPTIMIZERS, SCHEDULES, Descent, Objective, Plan, load_state
from farout.training.checkpoint import Checkpoints, State, is_checkpoint
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
    """ "auto" is CUDA where there is one; with several ranks each has the GPU of its number on its machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device {name!r}; use auto, cpu or cuda") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device=cuda, but torch sees no CUDA device; use train.device=cpu")
    return _own_gpu() if chosen.type == "cuda" and distributed.active() else chosen


def _own_gpu() -> torch.device:
    number, count = distributed.local_rank(), torch.cuda.device_count()
    if number >= count:
        raise ConfigError(f"rank {number} of this machine has no GPU of its own: there are {count}; start fewer")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def on_cuda(config: Config) -> bool:
    """Whether a run trains on GPUs."""
    return device(config.train.device).type == "cuda"


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Within this block torch uses only algorithms that give the same bits each time, if `wanted`.

    If not, cuDNN tries its algorithms first and takes the fastest: a training step has the same shapes every time.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not wanted
    try:
        yield
    finally:
        if wanted:  # where nothing was set, nothing is set back: the call alone imports torch's compiler
            torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


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
    """The auxiliary outliers to train on, less the classes that are also ID and less what is held out."""
    pool = _outlier_cut(data, id_classes)[0]
    if data.outlier_count is not None and data.outlier_count < len(pool):
        chosen = torch.randperm(len(pool), generator=seeds.generator(COUNT_STREAM))[: data.outlier_count]
        pool = Subset(pool, chosen)
    return pool


def held_out_outliers(data: DataConfig, id_classes: tuple[str, ...]) -> ImageSet:
    """The auxiliary outliers that `outlier_set` leaves for validation."""
    held_out = _outlier_cut(data, id_classes)[1]
    if held_out is None:
        raise ConfigError("no auxiliary outliers are held out; set data.outlier_held_out, e.g. to 0.1")
    return held_out


def _outlier_cut(data: DataConfig, id_classes: tuple[str, ...]) -> tuple[ImageSet, ImageSet | None]:
    """The outliers to train on and those held out, cut once and for all as the ID data are."""
    if data.outliers is None:
        raise ConfigError("this method trains with auxiliary outliers; set data.outliers")
    if not 0 <= data.outlier_held_out < 1:
        raise ConfigError(f"data.outlier_held_out must lie in [0, 1), got {data.outlier_held_out}")
    pool = auxiliary(_open(data, data.outliers, "train"), id_classes, data.drop)
    if data.outlier_held_out == 0:
        return pool, None
    drawn = _by_class(pool, data) if data.outlier_held_out_by == "classes" else _by_image(pool, data)
    return Subset(pool, (~drawn).nonzero().flatten()), Subset(pool, drawn.nonzero().flatten())


def _by_image(pool: ImageSet, data: DataConfig) -> Tensor:
    """Which outliers (N,) are held out: a random share of them."""
    if data.outlier_held_out_by != "images":
        raise ConfigError(f"data.outlier_held_out_by must be images or classes, got {data.outlier_held_out_by!r}")
    order = torch.randperm(len(pool), generator=seeds.generator(SPLIT_STREAM, 1))
    drawn = torch.zeros(len(pool), dtype=torch.bool)
    drawn[order[: max(1, round(data.outlier_held_out * len(pool)))]] = True
    return drawn


def _by_class(pool: ImageSet, data: DataConfig) -> Tensor:
    """Which outliers (N,) are held out: all of a random share of the classes."""
    if pool.labels is None:
        raise ConfigError(
            f"{data.outliers!r} has no labels to hold out by classes; set data.outlier_held_out_by=images"
        )
    kinds = pool.labels.unique()
    order = torch.randperm(len(kinds), generator=seeds.generator(SPLIT_STREAM, 1))
    return torch.isin(pool.labels, kinds[order[: max(1, round(data.outlier_held_out * len(kinds)))]])


def test_sets(data: DataConfig) -> tuple[ImageSet, dict[str, dict[str, ImageSet]]]:
    """The ID test set, and the OOD test sets by group."""
    groups = {group: dict(_ood_set(data, entry) for entry in entries) for group, entries in data.test.items()}
    return _open(data, data.id, "test"), groups


def leaks(data: DataConfig, id_test: ImageSet, groups: dict[str, dict[str, ImageSet]], strict: bool) -> list[Overlap]:
    """What training and test sets share, pair by pair: a warning for each finding, an error if `strict`."""
    train = id_splits(data).train
    outliers = outlier_set(data, train.classes) if data.outliers else None
    tests = {name: samples for sets in groups.values() for name, samples in sets.items()}
    return guard(train, outliers, id_test, tests, strict=strict)


def _ood_set(data: DataConfig, entry: Any) -> tuple[str, ImageSet]:
    """An OOD test set by name, or {name, path, drop}: where it lies if not by its name, and classes to leave out."""
    if isinstance(entry, str):
        return entry, _open(data, entry, "test")
    if not isinstance(entry, dict) or "name" not in entry or set(entry) - {"name", "path", "drop"}:
        raise ConfigError(f"a test set is a name or a mapping {{name, path, drop}}, got {entry!r}")
    samples = _open(data, entry.get("path") or entry["name"], "test")
    return entry["name"], without_classes(samples, entry.get("drop") or [])


def _open(data: DataConfig, name: str, split: str) -> ImageSet:
    size = data.size if data.resize is None else (data.resize, data.size)
    return open_named(name, root=data.root, split=split, size=size, corrupt=data.corrupt)


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
    state = _own_state(path)
    if state is None:
        load_weights(made, path)
        return
    weights = {name.removeprefix("net."): t for name, t in state.items() if name.startswith("net.")}
    _grow_head(weights, made)
    try:
        made.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(f"train.init: {path} does not fit the recipe's network: {error}") from None


def _own_state(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a run, a checkpoint or a detector, under the names they have there; None for other weights."""
    if path.is_file() and is_checkpoint(path):
        saved: State | None = load_state(path)
    else:
        saved = Checkpoints(path / "checkpoints").latest() if path.is_dir() else None
    if saved is not None:
        return dict(saved["objective"])
    if not path.is_dir() and not (path.is_file() and path.suffix == ".safetensors"):
        return None
    state = read_tensors(init_file(path))
    return state if path.is_dir() or _has_our_names(state) else None


def _has_our_names(state: Iterable[str]) -> bool:
    """Whether these are a detector's tensors; a part `net` of a foreign model is not divided as ours is."""
    names = [name for name in state if name.startswith("net.")]
    return bool(names) and all(name.startswith(("net.normalise.", "net.body.", "net.head.")) for name in names)


def init_file(path: Path) -> Path:
    """The file that `train.init` means: itself, a run's newest checkpoint, or the weights of a detector or a run's."""
    if path.is_file():
        return path
    saved = Checkpoints(path / "checkpoints").files()
    places = [*saved[-1:], path / "model.safetensors", path / "detector" / "model.safetensors"]
    for file in places:
        if file.is_file():
            return file
    raise ConfigError(f"train.init={path}: there is no file, and no folder with checkpoints or a model.safetensors")


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
    _check_shares(config.data)
    every = (config.train.log_every, config.train.checkpoint_every, config.train.validate_every)
    if min(1 if steps is None else steps for steps in every) < 1 or config.train.epochs < 0:
        raise ConfigError("train.log_every, checkpoint_every and validate_every take 1 or more, train.epochs 0 or more")
    if config.train.epochs == 0 and config.train.init is None:
        raise ConfigError("train.epochs=0 and no train.init: the weights would be random; set train.init")
    outlier_augment = _outlier_augment(config)
    splits = id_splits(config.data)
    way = method(config)
    whole = net(config, len(class_names(splits.train)))
    # Convolutions are faster channels-last, on CPUs too.
    whole = whole.to(where).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if distributed.active() and where.type == "cuda":
        whole = torch.nn.SyncBatchNorm.convert_sync_batchnorm(whole)  # statistics of the global batch; CUDA only
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
        outlier_augment=outlier_augment,
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
        checkpoint_seconds=config.train.checkpoint_seconds,
        log_every=config.train.log_every,
        title=config.name,
    )
    return Job(whole, choose("engine", ENGINES, config.train.engine)(objective, optimizer), pairs, schedule, plan)


def _outlier_augment(config: Config) -> Augment | None:
    """What the recipe does to outliers alone; None for what it does to all."""
    spec = config.data.outlier_augment
    if spec == {"name": "same"}:
        return None
    if config.train.only_head:
        raise ConfigError("train.only_head trains on stored features; data.outlier_augment has no images to change")
    return make("outlier_augment", AUGMENTS, spec)


def bare_objective(config: Config, state: dict[str, Tensor]) -> Objective:
    """Network and method with a saved state, without data: the state's head says how many classes there are."""
    way = method(config)
    rows = len(state["net.head.weight"]) - way.outlier_class
    whole = net(replace(config, train=replace(config.train, init=None)), rows // way.outputs_per_class)
    trained = Net(torch.nn.Identity(), whole.head) if config.train.only_head else whole
    way.prepare(trained)
    objective = Objective(trained, way)
    try:
        objective.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"the state does not fit the recipe: {error}") from None
    return objective


def _check_shares(data: DataConfig) -> None:
    """Each rank takes the same share of a batch, else their mean would not be the batch's mean."""
    ranks = distributed.world_size()
    for key, size in (("batch_size", data.batch_size), ("outlier_batch_size", data.outlier_batch_size)):
        if size < 1:
            raise ConfigError(f"data.{key}={size}; take 1 or more")
        if size % ranks:
            raise ConfigError(f"data.{key}={size} cannot be shared by {ranks} ranks; take a multiple of {ranks}")


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
