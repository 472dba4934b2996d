"""Mining an auxiliary pool: draw candidates, score them with the network as it is, keep some by rank.

What is returned is the same on every rank, since all of them must train on the same selection.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from farout import distributed
from farout.data.pairs import epoch_order
from farout.data.source import Source
from farout.nets.net import Net
from farout.scores.embed import evaluating
from farout.types import Outputs


def draw_pool(outliers: Source, size: int) -> Tensor:
    """`size` distinct indices into the auxiliary set in random order, all of them if it has fewer: (n,).

    Drawn from the global generator, which is seeded alike on every rank at the start of an epoch.
    """
    count = len(outliers.set)
    return epoch_order(count, min(size, count), torch.default_generator)


@torch.no_grad()
def score_pool(
    net: Net, outliers: Source, indices: Tensor, score: Callable[[Outputs], Tensor], batch_size: int = 400
) -> Tensor:
    """score(net(x)) of the auxiliary images at `indices`, in evaluation mode: (n,) -> (n,), on the net's device.

    Each rank scores its own stretch of the indices, then all gather all.
    """
    count, ranks = len(indices), distributed.world_size()
    stretch = -(-count // ranks)
    # The last stretch is filled up with the last index, since a gather wants equal shapes.
    own = (torch.arange(stretch) + stretch * distributed.rank()).clamp(max=count - 1)
    with evaluating(net):
        parts = [score(net(x)) for x, _ in outliers.batches(indices[own].split(batch_size))]
    return distributed.gather(torch.cat(parts))[:count]


def take_ranks(indices: Tensor, scores: Tensor, start: int, count: int) -> Tensor:
    """The indices whose scores have ranks [start, start + count) in ascending order: (n,), (n,) -> at most (count,)."""
    order = scores.argsort(stable=True)[start : start + count]
    return distributed.same(indices.to(order.device)[order]).cpu()
