"""A few ID examples beside a detector, so that people can see what it takes an image for: `examples.safetensors`.

Optional, apart from the detector's own three files, never uploaded by `farout.hub`: these are somebody's images.
"""

from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from farout.calibration import fingerprints
from farout.data.as_set import as_set
from farout.detector import Detector, read_tensors
from farout.errors import CheckpointError
from farout.scores.embed import device_of, evaluating
from farout.training.checkpoint import write_atomically

NAME = "examples.safetensors"
MOST = 1000
SIDE = 96
"""Larger images are kept as thumbnails of this size; the features are of the images themselves."""
LARGEST = 64 * 2**20


class Examples(NamedTuple):
    """Thumbnails uint8 (n, C, S, S), labels (n,) with -1 for none, and features (n, D) of unit length."""

    images: Tensor
    labels: Tensor
    features: Tensor

    def nearest(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Of features (B, D) the `count` nearest examples, nearest first: distances in [0, 2] and indices, (B, count).

        ‖z/‖z‖ − e‖₂, as the score knn measures.
        """
        exact = "donot_use_mm_for_euclid_dist"  # the quick way is off by 1e-3 where the distance is 0
        apart = torch.cdist(F.normalize(features.float().cpu(), dim=1), self.features, compute_mode=exact)
        near = apart.topk(min(count, len(self.labels)), dim=1, largest=False)
        return near.values, near.indices


@torch.no_grad()
def gather(detector: Detector, data: object, count: int) -> Examples:
    """Up to `count` evenly spaced samples of a set, as the detector sees them."""
    if not 0 < count <= MOST:
        raise ValueError(f"a detector carries 1 to {MOST} examples, got {count}")
    samples = as_set(data)
    rows = torch.linspace(0, len(samples) - 1, min(count, len(samples)), dtype=torch.float64).round().long()
    images, labels, features = [], [], []
    with evaluating(detector.net):
        for chunk in rows.split(100):
            x, y = samples.read(chunk)
            x = detector.prepare(x.to(device_of(detector.net)))
            if x.ndim != 4 or x.shape[1] not in (1, 3) or x.dtype != torch.uint8:
                raise ValueError(f"examples are uint8 images of 1 or 3 channels; {samples.name} gives {_kind(x)}")
            features.append(F.normalize(detector.net(x).features.float(), dim=1).cpu())
            images.append(_thumbnails(x).cpu())
            labels.append(y.cpu())
    return Examples(torch.cat(images), torch.cat(labels).long(), torch.cat(features))


def _kind(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"


def _thumbnails(x: Tensor) -> Tensor:
    if max(x.shape[-2:]) <= SIDE:
        return x
    small = F.interpolate(x.float(), size=(SIDE, SIDE), mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8)


def save(examples: Examples, detector: Detector, folder: str | Path) -> Path:
    """Write `examples.safetensors` into a detector's folder, marked with the network that they were seen through."""
    path = Path(folder) / NAME
    tensors = {**examples._asdict(), "network": mark(detector.net)}
    content = save_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})

    def put(file: BinaryIO) -> None:
        file.write(content)

    write_atomically(path, put)
    return path


def load(folder: str | Path, detector: Detector) -> Examples | None:
    """The examples in a detector's folder, checked; None if it has none. Nothing in the file is executed."""
    path = Path(folder) / NAME
    if not path.is_file():
        return None
    if path.stat().st_size > LARGEST:
        raise CheckpointError(f"{path} has {path.stat().st_size:,} bytes; at most {LARGEST:,} are read")
    tensors = read_tensors(path)
    if set(tensors) != {*Examples._fields, "network"}:
        raise CheckpointError(f"{path} holds {sorted(tensors)[:6]}, which are no examples")
    if not torch.equal(tensors.pop("network"), mark(detector.net)):
        raise CheckpointError(f"{path} was made with another network; delete it, or run `farout calibrate` again")
    examples = Examples(**tensors)
    _check(examples, detector, path)
    return examples


def _check(examples: Examples, detector: Detector, path: Path) -> None:
    images, labels, features = examples
    classes = len(detector.classes) or detector.net.num_outputs
    count = len(labels) if labels.ndim == 1 else 0
    wrong = {
        "images": images.dtype != torch.uint8
        or images.ndim != 4
        or len(images) != count
        or images.shape[1] not in (1, 3)
        or not 0 < max(images.shape[-2:]) <= SIDE,
        "labels": labels.dtype != torch.int64
        or not 0 < count <= MOST
        or int(labels.min()) < -1
        or int(labels.max()) >= classes,
        "features": features.dtype != torch.float32
        or features.shape != (count, detector.net.num_features)
        or not bool(features.isfinite().all()),
    }
    for name in ("labels", "images", "features"):  # the labels say how many there are
        if wrong[name]:
            raise CheckpointError(f"{path}: its {name} are {_kind(getattr(examples, name))}, which no example has")


def mark(net: nn.Module) -> Tensor:
    """A hash of a network's weights (1,), so that examples are not shown for another network."""
    parts = [fingerprints(parameter.detach().float().reshape(1, -1)) for parameter in net.parameters()]
    return fingerprints(torch.cat(parts)[None])
