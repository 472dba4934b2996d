"""The few collective operations that training needs; on one process each is the identity.

`torchrun --nproc-per-node=2 -m farout train ...` starts the processes; `group` lets them find each other.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from farout.errors import TrainingError


def active() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """This process's number, 0 on one process."""
    return dist.get_rank() if active() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if active() else 1


def started_rank() -> int:
    """This process's number as torchrun gave it, also when the group is formed no more."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """This process's number on its machine, which is also the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def restarts() -> int:
    """How often `torchrun --max-restarts` has started these processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


# Groups are never freed: torch frees one with Python's lock held and waits for its threads, of which one may want that
# very lock to drop its last tensor. About one run in seven hung so, once stopped by a signal.
_groups: list[object] = []


@contextmanager
def group(cuda: bool) -> Iterator[None]:
    """Within this block the processes that torchrun started form one group; a program may also bring its own.

    Tensors on GPUs go through NCCL, others through gloo, so that what the hosts agree on does not wait for the GPUs.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield
        return
    store, number, count = next(rendezvous("env://"))
    # After a restart the store still holds the addresses of the dead: each attempt has its own corner of it.
    fresh = PrefixStore(f"farout/{restarts()}", store)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=fresh, rank=number, world_size=count)
    _groups.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def anywhere(flag: bool) -> bool:
    """Whether `flag` is set on any rank."""
    if not active():
        return flag
    shared = torch.tensor(int(flag), device=_host())
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return bool(shared)


def firsts(number: int) -> int:
    """Rank 0's `number`."""
    return int(same(torch.tensor(number, device=_host())))


def _host() -> str:
    """Where plain numbers travel: between the hosts, unless a program brought a group that knows GPUs alone."""
    return "cuda" if active() and dist.get_backend() == "nccl" else "cpu"


def on_first(act: Callable[[], object]) -> None:
    """Rank 0 acts and the others wait for it; where it fails, all fail."""
    problem: Exception | None = None
    if rank() == 0:
        try:
            act()
        except Exception as error:
            problem = error
    failed = anywhere(problem is not None)
    if problem is not None:
        raise problem
    if failed:
        raise TrainingError("rank 0 could not go on; see its message")


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
