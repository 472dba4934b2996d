"""What a detector folder that came from somewhere may ask for: nothing that its own tensors do not bear out."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farout.errors import CheckpointError
from farout.nets.net import Net
from farout.scores import Score
from farout.types import Outputs

MAX_SIDE = 4096
LOADS_ELSEWHERE = ("pretrained", "weights", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")
"""Arguments by which torchvision and timm fetch or open other files; a detector brings its own weights."""


def check_net(spec: Any, tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Any]:
    """A network's entry, if it asks for no more layers, and none wider, than the tensors beside it show.

    Built from its entry, a network of a billion layers would be a billion layers before anyone compares.
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("num_classes"), int):
        raise CheckpointError(f"{folder}: its network must be an entry with a name and num_classes, got {_short(spec)}")
    largest = max([len(tensors), *(size for tensor in tensors.values() for size in tensor.shape)], default=0)
    for number in _integers(spec):
        if not -largest <= number <= largest:
            raise CheckpointError(
                f"{folder}: its network asks for {_short(number)}, but no tensor in model.safetensors has more than "
                f"{largest} rows, nor are there as many: the two files do not belong together"
            )
    asked = [key for key in LOADS_ELSEWHERE if spec.get(key)]
    if asked:
        raise CheckpointError(f"{folder}: its network asks for {', '.join(asked)}, which would load another file")
    return spec


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _integers(part)
    elif isinstance(value, int):
        yield value


def check_words(classes: Any, size: Any, net: Net, folder: Path) -> None:
    """Class names are words, no more of them than logits; the side of an image is a number that memory can bear."""
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise CheckpointError(f"{folder}: its classes must be a list of names, got {_short(classes)}")
    if len(classes) > net.num_outputs:
        raise CheckpointError(f"{folder} names {len(classes)} classes, and its network tells {net.num_outputs} apart")
    sides = size if isinstance(size, Sequence) else [size]
    whole = all(isinstance(side, int) and 0 < side <= MAX_SIDE for side in sides) and len(sides) in (1, 2)
    if size is not None and not whole:
        raise CheckpointError(f"{folder}: its images must have a side of 1 to {MAX_SIDE} pixels, got {_short(size)}")


def check_types(own: Mapping[str, Tensor], found: Mapping[str, Tensor], folder: Path) -> None:
    """Real numbers stay real numbers: integers or complex numbers in their place are a mistake, not a precision."""
    for name in own.keys() & found.keys():
        if own[name].is_floating_point() != found[name].is_floating_point():
            raise CheckpointError(
                f"{folder}: {name} is {found[name].dtype} in the file, it should be {own[name].dtype}"
            )


def try_score(net: Net, score: Score, folder: Path) -> None:
    """One made-up sample through a fitted score: what its tensors do not fit is known now, not at the first image."""
    if score.uses_input or (score.needs_fit and not score.fitted):
        return
    device = next((buffer.device for buffer in score.buffers()), torch.device("cpu"))
    sample = Outputs(torch.zeros(1, net.num_features, device=device), torch.zeros(1, net.num_outputs, device=device))
    try:
        with torch.no_grad():
            shape = tuple(score(score.adjust(net, sample)).shape)
    except Exception as error:  # whatever tensors of any shape and type lead torch to
        reason = f"{type(error).__name__}: {_short(error)}"
        raise CheckpointError(f"{folder}: {type(score).__name__} does not fit its own tensors ({reason})") from None
    if shape != (1,):
        raise CheckpointError(f"{folder}: {type(score).__name__} gives {shape} for one sample, expected (1,)")


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, Exception) else str(value).partition("\n")[0]
    return text if len(text) <= 120 else text[:117] + "..."
