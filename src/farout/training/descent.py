"""One update of the network: a forward of the method's loss, a backward, a step of the optimiser."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from farout import distributed
from farout.methods.base import Loss, Method
from farout.nets.compile_ahead import compile_kernels
from farout.nets.net import Net
from farout.types import Batch, Terms

# torch renamed the option in 2.13 and warns of the old name.
_NEW, _OLD = "forward_sync_buffers", "broadcast_buffers"
SYNC_BUFFERS = _NEW if _NEW in inspect.signature(DistributedDataParallel).parameters else _OLD


class Objective(nn.Module):
    """Network and method together: what is saved, what DDP wraps, what is compiled."""

    def __init__(self, net: Net, method: Method) -> None:
        super().__init__()
        self.net, self.method = net, method

    def forward(self, loss: Loss, batch: Batch) -> Terms:
        return loss(self.net, batch)


class Descent:
    """Runs a method's update for a batch; `descend(loss)` is what the method is handed for each optimiser step."""

    def __init__(self, objective: Objective, optimizer: torch.optim.Optimizer) -> None:
        self.objective, self.optimizer = objective, optimizer
        self.model: nn.Module = objective
        self.ready = False
        if distributed.active():
            # Buffers are averaged after the step instead: DDP's broadcast would leave the last update unshared.
            options: dict[str, Any] = {"find_unused_parameters": True, SYNC_BUFFERS: False}
            self.model = DistributedDataParallel(objective, **options)

    def get_ready(self, batch: Batch) -> None:
        """Before the first step: the network's own kernels are compiled for batches of this size. Then nothing more."""
        if not self.ready:
            images = [x for x in (batch.x, batch.x_out) if x is not None]
            compile_kernels(self.objective.net, torch.cat(images) if len(images) > 1 else batch.x)
            self.ready = True

    def __call__(self, batch: Batch, lr: float) -> Terms:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

        def descend(loss: Loss) -> Terms:
            terms: Terms = self.model(loss, batch)
            self.optimizer.zero_grad(set_to_none=True)
            total(terms).backward()
            if self.objective.method.clip is not None:
                nn.utils.clip_grad_norm_(self.objective.parameters(), self.objective.method.clip)
            self.optimizer.step()
            distributed.average_(b for b in self.objective.net.buffers() if b.is_floating_point())
            return {name: term.detach() for name, term in terms.items()}

        return self.objective.method.update(self.objective.net, batch, descend)


def total(terms: Terms) -> Tensor:
    """The training loss: the sum of its terms."""
    return torch.stack(list(terms.values())).sum()
