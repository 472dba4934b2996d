"""Reads weight files into a model, or into a split one, and never runs code from them."""

import re
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from farout.errors import CheckpointError, ConfigError
from farout.nets.net import Net
from farout.nets.split import find_head, joint_name

State = Mapping[str, Tensor]

_NESTS = ("state_dict", "model_state_dict", "model")  # where training scripts put the state dict
_PREFIXES = ("module.", "_orig_mod.", "model.")  # DistributedDataParallel, torch.compile, Lightning


def load_weights(model: nn.Module, path: str | PathLike[str], *, head: bool = True) -> None:
    """Loads a .safetensors or torch file into `model`, a plain classifier or a `Net`; all of it or nothing.

    A file under the plain model's names also fits its `Net`, whose normaliser then stays as it is. With
    head=False the model keeps its own head, for fine-tuning to other classes.
    """
    path = Path(path)
    own = model.state_dict()
    found = _rename(_state(_read(path), path), model, own)
    prefix = _head_prefix(model, needed=not head)
    if not head and prefix is not None:
        found = {name: value for name, value in found.items() if not name.startswith(prefix)}
        found |= {name: value for name, value in own.items() if name.startswith(prefix)}
    # Files from before torch 0.4.1 do not count batches; the count matters only to BatchNorm(momentum=None).
    found |= {k: v for k, v in own.items() if k.endswith("num_batches_tracked") and k not in found}
    if problems := _problems(own, found, prefix):
        raise CheckpointError(f"{path} does not fit this {type(model).__name__}: {'; '.join(problems)}")
    model.load_state_dict(found)


def _read(path: Path) -> object:
    """Whatever plain data the file holds; code in a pickle is refused unrun."""
    if not path.is_file():
        raise CheckpointError(f"no weights: {path} is not a file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damage shows as a dozen types, from EOFError to RuntimeError
        raise CheckpointError(f"{path} cannot be read as weights: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why a file was refused; not in torch's words, which advise to load it unsafely."""
    if blocked := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it holds {blocked[1]}, and nothing but tensors is ever loaded; save model.state_dict() alone"
    if isinstance(error, UnpicklingError):
        return "it is damaged or no weight file"
    return f"it is damaged or no weight file ({type(error).__name__}: {str(error).partition(chr(10))[0]})"


def _state(content: object, path: Path) -> State:
    """The state dict in a file's content, out of the nesting of common training scripts."""
    while isinstance(content, Mapping):
        nested = next((content[key] for key in _NESTS if isinstance(content.get(key), Mapping)), None)
        if nested is None:
            break
        content = nested
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path} holds no state dict but {_describe(content)}; save model.state_dict()")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"{path} holds no state dict: its entry {name!r} is {_describe(value)}, not a tensor")
    return content


def _describe(value: object) -> str:
    return f"{'an empty' if isinstance(value, Mapping) and not value else 'a'} {type(value).__name__}"


def _unwrapped(found: State) -> Iterator[State]:
    """The file's names as they are, then without each prefix that a wrapper put before all of them."""
    yield found
    while prefix := next((p for p in _PREFIXES if all(name.startswith(p) for name in found)), None):
        found = {name.removeprefix(prefix): value for name, value in found.items()}
        yield found


def _rename(found: State, model: nn.Module, own: State) -> dict[str, Tensor]:
    """The file's names as the model's: of all ways to read them, the one that fits best."""
    readings = [dict(reading) for reading in _unwrapped(found)]
    if isinstance(model, Net):
        readings += [_onto_net(reading, model, own) for reading in readings]
    return min(readings, key=lambda reading: len(reading.keys() ^ own.keys()))


def _onto_net(found: State, net: Net, own: State) -> dict[str, Tensor]:
    """A plain model's names as those of its split form: fc.* -> head.*, the rest -> body.*."""
    joint = joint_name(net.body)
    prefix = "fc." if joint is None else f"{joint}." if joint else ""
    named = {
        f"head.{name.removeprefix(prefix)}" if name.startswith(prefix) else f"body.{name}": value
        for name, value in found.items()
    }
    return named | {name: value for name, value in own.items() if name.startswith("normalise.")}


def _head_prefix(model: nn.Module, needed: bool) -> str | None:
    """What the names of the head's parameters begin with; None where nobody can tell and nobody must."""
    if isinstance(model, Net):
        return "head."
    try:
        name = find_head(model)
    except ConfigError:
        if needed:
            raise
        return None
    return f"{name}." if name else ""


def _problems(own: State, found: State, prefix: str | None) -> list[str]:
    """What keeps `found` from fitting, ready to print; empty if it fits."""
    missing = [name for name in own if name not in found]
    unexpected = [name for name in found if name not in own]
    shapes = {
        name: f"{name} {tuple(found[name].shape)} in the file, {tuple(own[name].shape)} in the model"
        for name in own
        if name in found and found[name].shape != own[name].shape
    }
    problems = [
        *_first_five("missing", missing),
        *_first_five("unexpected", unexpected),
        *_first_five("of another shape", list(shapes.values())),
    ]
    return problems + _head_advice(own, found, prefix, {*missing, *shapes})


def _first_five(what: str, items: list[str]) -> list[str]:
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return [f"{len(items)} {what}: {', '.join(items[:5])}{more}"] if items else []


def _head_advice(own: State, found: State, prefix: str | None, misfits: set[str]) -> list[str]:
    """What to do about a head of other classes, or none."""
    weight = f"{prefix}weight"
    if prefix is None or weight not in misfits:
        return []
    if weight not in found:
        return ["the file has no such head; head=False loads the body and keeps the model's own head"]
    theirs, ours = found[weight].shape[:1].numel(), own[weight].shape[:1].numel()
    if theirs == ours:
        return []
    return [
        f"its head tells {theirs} classes apart, the model's {ours}: build it with num_classes={theirs}, or"
        " pass head=False to load the body and keep the model's own head"
    ]
