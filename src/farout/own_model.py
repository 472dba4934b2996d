"""Fine-tune a model that is already there, on data that is already there: `farout.train(my_model, ...)`."""

import copy
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from farout import seeds
from farout.components import choose, make
from farout.data.arrays import Subset, checked, labels_at
from farout.data.augment import AUGMENTS, Augment, NoAugment
from farout.data.image_files import Size
from farout.data.loaders import Streamed
from farout.data.pairs import Pairs
from farout.data.source import ImageSet
from farout.detector import Detector
from farout.errors import ConfigError, DataError
from farout.methods import METHODS, Method
from farout.nets.net import Net, Normalise
from farout.nets.split import split
from farout.scores import SCORES
from farout.training import OPTIMIZERS, Checkpoints, Descent, Objective, Plan, RunLog, fit, read_rows
from farout.training.optim import cosine
from farout.types import Row

SPLIT_STREAM = 7
Spec = str | Mapping[str, Any]
Model = TypeVar("Model", bound=nn.Module)


class Trained(NamedTuple, Generic[Model]):
    """The model, the very object that was given and now trained; a detector that shares its weights; the log's rows."""

    model: Model
    detector: Detector
    log: list[Row]


def train_model(
    model: Model,
    id_data: Any,
    outliers: Any = None,
    *,
    method: Spec = "dal",
    epochs: int = 10,
    held_out: Any = 0.1,
    batch_size: int = 128,
    outlier_batch_size: int = 256,
    optim: Spec = "sgd",
    lr: float = 1e-3,
    score: Spec | None = None,
    classes: Sequence[str] = (),
    head: str | None = None,
    normalise: nn.Module | tuple[Sequence[float], Sequence[float]] | None = None,
    size: Size | None = None,
    tpr: float = 0.95,
    seed: int = 0,
    device: str = "auto",
    workers: int = 0,
    run: str | Path | None = None,
    outlier_augment: Spec | None = None,
) -> Trained[Model]:
    """Train any classifier that ends in a linear layer, and calibrate a detector on held-out ID data.

    `id_data` and `outliers` are each a torch Dataset or DataLoader of (image, label) (outliers may be bare images),
    a tensor, or a pair (images, labels). Images go to the model as they come: float tensors from a transform stay
    as they are; uint8 and PIL images need `normalise`, a module or (mean, std), which becomes part of the detector.
    A Dataset is read anew each epoch, so that its own augmentation works; give `held_out` as a dataset without
    augmentation, or as the share of `id_data` to keep aside.

    `run` keeps log and checkpoints in a folder, and the same call there continues. `head` names the final linear
    layer where it cannot be told. `outlier_augment="wide"` draws the outliers' colours and sharpness at random: on raw
    pixels, uint8 or in [0, 1], so `normalise` must be given.

    >>> trained = farout.train(my_model, id_data=photos, outliers=textures, method="dal")     # doctest: +SKIP
    >>> trained.detector(images).is_ood                                                       # doctest: +SKIP
    """
    spec = {"name": method} if isinstance(method, str) else dict(method)
    way = make("method", METHODS, spec)
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    inliers, pool = as_samples(id_data, "ID data"), None if outliers is None else as_samples(outliers, "outliers")
    if way.needs_outliers and pool is None:
        raise ConfigError(f"method {spec['name']!r} trains with auxiliary outliers; pass outliers=")
    changes = _changes(outlier_augment, normalise is not None)
    train, kept = _cut(inliers, held_out)
    net = _opened(model.to(where), train, head, normalise)
    _limit_labels(way, net, train, str(spec["name"]))
    way.prepare(net)
    objective = Objective(net, way).to(where)
    settings = {"name": optim} if isinstance(optim, str) else dict(optim)
    optimizer = make("optimizer", OPTIMIZERS, {"lr": lr, **settings}, parameters=objective.parameters())
    pairs = Pairs(
        Streamed(train, where, workers),
        Streamed(pool, where, workers) if pool is not None and way.needs_outliers else None,
        NoAugment(),
        batch_size=batch_size,
        outlier_batch_size=outlier_batch_size,
        seed=seed,
        outlier_augment=changes,
    )
    schedule = cosine(optimizer.param_groups[0]["lr"], pairs.steps, epochs)
    plan = Plan(epochs=epochs, seed=seed, title=str(spec["name"]), log_every=max(1, min(50, pairs.steps)))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if run is None else run)
        log = RunLog(folder / "log.jsonl")
        fit(Descent(objective, optimizer), pairs, schedule, plan, Checkpoints(folder / "checkpoints"), log)
        rows = read_rows(folder / "log.jsonl")
    chosen = score if score is not None else choose("method", METHODS, str(spec["name"])).score
    judged = make("score", SCORES, {"name": chosen} if isinstance(chosen, str) else chosen)
    detector = Detector(net, judged, classes=classes, size=size).remember(train)
    detector.fit(train if judged.needs_fit else None, kept, tpr=tpr)
    detector.about.update(method=spec["name"], seed=seed)
    return Trained(model, detector, rows)


def _changes(spec: Spec | None, raw: bool) -> Augment | None:
    """What is done to outliers before the network sees them."""
    if spec is None:
        return None
    if not raw:
        raise ConfigError(
            "outlier_augment changes raw pixels; pass normalise=(mean, std), not a transform that does it"
        )
    return make("outlier_augment", AUGMENTS, {"name": spec} if isinstance(spec, str) else dict(spec))


def _opened(model: nn.Module, train: ImageSet, head: str | None, normalise: nn.Module | tuple[Any, Any] | None) -> Net:
    """A `Net` over a twin of `model` that shares every parameter and buffer: the model itself stays whole."""
    tensors: Iterable[Tensor] = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    before = Normalise(*normalise) if isinstance(normalise, tuple) else normalise
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    before = None if before is None else before.to(device)
    x, _ = train.read(torch.arange(min(2, len(train))))
    if before is None and x.dtype == torch.uint8:
        raise DataError(
            f"{train.name} gives uint8 images and the model takes floats; pass normalise=(mean, std), or a transform"
        )
    return split(twin, head=head, normalise=before, example=x.to(device))


def _limit_labels(way: Method, net: Net, train: ImageSet, name: str) -> None:
    """Teach the ID set how many classes the head has; refuse a head that the method cannot use."""
    classes, rest = divmod(net.num_outputs - way.outlier_class, way.outputs_per_class)
    if rest or classes < 1:
        raise ConfigError(
            f"method {name!r} needs a head with {way.outputs_per_class} outputs a class and {int(way.outlier_class)} "
            f"more; this one has {net.num_outputs}"
        )
    base = train.base if isinstance(train, Subset) else train
    if isinstance(base, (Items, Tensors)):
        base.limit = classes


def _cut(samples: ImageSet, held_out: Any) -> tuple[ImageSet, ImageSet]:
    if not isinstance(held_out, float):
        return samples, as_samples(held_out, "held-out data")
    if not 0 < held_out < 1:
        raise ConfigError(f"held_out must be a set, or a share between 0 and 1; got {held_out}")
    order = torch.randperm(len(samples), generator=seeds.generator(SPLIT_STREAM))
    cut = max(1, round(held_out * len(samples)))
    return Subset(samples, order[cut:]), Subset(samples, order[:cut])


class Items:
    """A map-style Dataset of (image, label), read item by item; PIL images become uint8 (C, H, W)."""

    def __init__(self, dataset: "Dataset[Any]", name: str) -> None:
        self.dataset, self.name = dataset, name
        self.classes = tuple(map(str, getattr(dataset, "classes", ())))
        self.limit: int | None = None

    @property
    def labels(self) -> Tensor | None:
        return None  # unknown until they are read

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        items = [self.dataset[row] for row in checked(indices, len(self), self.name).tolist()]
        pairs = [item if isinstance(item, (tuple, list)) else (item, -1) for item in items]
        x = torch.stack([_tensor(pair[0], self.name) for pair in pairs])
        y = torch.tensor([int(pair[1]) if len(pair) > 1 else -1 for pair in pairs])
        return x, _within(y, self.limit, self.name)


class Tensors:
    """Images (N, ...) of any type in memory, with labels (N,) or none."""

    def __init__(self, name: str, images: Tensor, labels: Tensor | None) -> None:
        if labels is not None and labels.shape != images.shape[:1]:
            raise DataError(f"{name}: {len(images)} images have labels of shape {tuple(labels.shape)}")
        self.name, self.images, self._labels = name, images, labels
        self.classes: tuple[str, ...] = ()
        self.limit: int | None = None

    @property
    def labels(self) -> Tensor | None:
        return self._labels

    def __len__(self) -> int:
        return len(self.images)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        rows = checked(indices, len(self), self.name)
        return self.images[rows], _within(labels_at(self._labels, rows), self.limit, self.name)


def as_samples(data: Any, name: str) -> ImageSet:
    """What a user has, as a set: a Dataset, a DataLoader, a tensor, a pair (images, labels), or a set already."""
    if hasattr(data, "read") and hasattr(data, "classes"):
        known: ImageSet = data
        return known
    if isinstance(data, DataLoader):
        plain = hasattr(data.dataset, "__len__") and data.collate_fn is torch.utils.data.default_collate
        return as_samples(data.dataset, name) if plain else _read_whole(data, name)
    if isinstance(data, (Tensor, np.ndarray)):
        return Tensors(name, torch.as_tensor(data), None)
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], (Tensor, np.ndarray)):
        return Tensors(name, torch.as_tensor(data[0]), torch.as_tensor(data[1]).long())
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return Items(data, name)
    raise DataError(
        f"{name}: cannot read samples from a {type(data).__name__}; give a torch Dataset or DataLoader of "
        "(image, label), a tensor, or a pair (images, labels)"
    )


def _read_whole(loader: "DataLoader[Any]", name: str) -> Tensors:
    """All that a loader with its own collation or an iterable data set gives, once, into memory."""
    batches = [batch if isinstance(batch, (tuple, list)) else (batch, None) for batch in loader]
    if not batches:
        raise DataError(f"{name}: the DataLoader gives no batches")
    known = all(len(batch) > 1 and batch[1] is not None for batch in batches)
    labels = torch.cat([torch.as_tensor(batch[1]) for batch in batches]).long() if known else None
    return Tensors(name, torch.cat([batch[0] for batch in batches]), labels)


def _tensor(image: Any, name: str) -> Tensor:
    if isinstance(image, Tensor):
        return image
    array = np.array(image)
    if array.dtype == np.uint8 and array.ndim in (2, 3):  # a PIL image, or its pixels
        array = array[..., None] if array.ndim == 2 else array
        return torch.from_numpy(array).permute(2, 0, 1)
    if array.dtype.kind == "f":
        return torch.from_numpy(array).float()
    raise DataError(f"{name}: an item is a {type(image).__name__}; give tensors, arrays or PIL images")


def _within(labels: Tensor, limit: int | None, name: str) -> Tensor:
    if limit is not None and len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < limit):
        wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise DataError(f"{name} has the label {wrong}, and the model tells {limit} classes apart: 0 .. {limit - 1}")
    return labels
