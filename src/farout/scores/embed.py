"""A whole set through the network, once: every score reads the same outputs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from farout.data.source import ImageSet
from farout.errors import DataError
from farout.nets.net import Net
from farout.scores.base import Embedded, Score
from farout.types import Outputs

BATCH = 500


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards each part has the mode it had."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


def device_of(module: nn.Module) -> torch.device:
    """Where the module's parameters lie; the CPU if it has none."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))


@torch.no_grad()
def embed(net: Net, samples: ImageSet, batch_size: int = BATCH) -> Embedded:
    """Features (N, D) and logits (N, K) of every sample, in the set's order, in evaluation mode."""
    if len(samples) == 0:
        raise DataError(f"{samples.name} is empty; there is nothing to embed")
    device, outputs, labels = device_of(net), [], []
    with evaluating(net):
        for rows in torch.arange(len(samples)).split(batch_size):
            x, y = samples.read(rows)
            outputs.append(net(x.to(device)))
            labels.append(y)
    features, logits = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    return Embedded(Outputs(features, logits), torch.cat(labels), samples)


def score_embedded(net: Net, score: Score, embedded: Embedded, batch_size: int = BATCH) -> Tensor:
    """The score of every sample (N,), from the cached outputs unless the score must see the input itself."""
    score.require_fit()
    parts = []
    with evaluating(net), evaluating(score):
        for rows in torch.arange(len(embedded.labels)).split(batch_size):
            if score.uses_input:
                x, _ = embedded.samples.read(rows)
                out = score.outputs(net, x.to(device_of(net)))
            else:
                with torch.no_grad():
                    cut = slice(int(rows[0]), int(rows[-1]) + 1)
                    out = score.adjust(net, Outputs(*(tensor[cut] for tensor in embedded.outputs)))
            with torch.no_grad():
                parts.append(score(out).detach().cpu())
    return torch.cat(parts)
