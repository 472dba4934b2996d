"""The few collective operations that methods need; on one process each is the identity."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def active() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """This process's number, 0 on one process."""
    return dist.get_rank() if active() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if active() else 1


def mean(value: Tensor) -> Tensor:
    """The mean of `value` over all ranks, the same on each."""
    if not active():
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / world_size()


def average_(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over all ranks, in one exchange."""
    kept = list(tensors)
    if not active() or not kept:
        return
    shared = mean(torch.cat([tensor.flatten() for tensor in kept]))
    for tensor, part in zip(kept, shared.split([tensor.numel() for tensor in kept]), strict=True):
        tensor.copy_(part.view_as(tensor))


def gather(value: Tensor) -> Tensor:
    """The rows of every rank's `value` in rank order; all ranks must bring the same shape."""
    if not active():
        return value
    parts = [torch.empty_like(value) for _ in range(world_size())]
    dist.all_gather(parts, value.contiguous())
    return torch.cat(parts)


def same(value: Tensor) -> Tensor:
    """Rank 0's `value` on every rank."""
    if not active():
        return value
    shared = value.detach().clone()
    dist.broadcast(shared, src=0)
    return shared
