"""Other ways to run the same descent: compiled, or recorded once as a CUDA graph and replayed.

They give the numbers of the eager `Descent` up to rounding; `train.engine` chooses one explicitly.
"""

from collections.abc import Callable, Mapping

import torch

from farout.errors import ConfigError, TrainingError
from farout.methods.base import Method
from farout.training.descent import Descent, Objective
from farout.types import Batch, Terms

WARM_UP = 3  # eager steps before recording: cuDNN chooses its kernels, buffers and gradients come into being


class Compiled(Descent):
    """The loss through torch.compile; worth its minute of compilation on a GPU, hardly ever on a CPU."""

    def __init__(self, objective: Objective, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(objective, optimizer)
        self.model = torch.compile(self.model)  # type: ignore[assignment]


class Graphed(Descent):
    """The whole step (forward, search, dual, backward, optimiser) as one CUDA graph: no launch gaps, no host in it.

    The first steps run eagerly and count; then one step is recorded and replayed on static inputs. The learning rate
    is a tensor on the device. Random numbers are those of the eager step: replay reads the generator's seed.
    """

    def __init__(self, objective: Objective, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(objective, optimizer)
        device = next(objective.parameters()).device
        name = type(objective.method).__name__
        if not objective.method.recordable:
            raise ConfigError(
                f"train.engine=graphed: {name} asks the host in every step, a recording cannot; use eager"
            )
        if device.type != "cuda":
            raise ConfigError(f"train.engine=graphed needs a CUDA device, this run is on {device.type}; use eager")
        if type(objective.method).update is not Method.update:
            raise ConfigError(f"train.engine=graphed: {name} takes several optimiser steps a batch; use eager")
        self.lr = torch.tensor(0.0, device=device)
        self.side = torch.cuda.Stream(device)
        self.done = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: Batch | None = None
        self.terms: Terms = {}

    def __call__(self, batch: Batch, lr: float) -> Terms:
        self.lr.fill_(lr)
        if self.done < WARM_UP:
            self.done += 1
            return self._aside(batch)
        if self.graph is None:
            self._record(batch)
        assert self.inputs is not None
        assert self.graph is not None
        for kept, new in zip(self.inputs, batch, strict=True):
            if kept is not None and new is not None:
                kept.copy_(new)
        self.graph.replay()
        return self.terms

    def _step(self, batch: Batch) -> Terms:
        return super().__call__(batch, self.lr)  # type: ignore[arg-type]  # a tensor serves as well

    def _aside(self, batch: Batch) -> Terms:
        """One eager step on a side stream, as recording asks for."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            terms = self._step(batch)
        torch.cuda.current_stream().wait_stream(self.side)
        return terms

    def _record(self, batch: Batch) -> None:
        x_out = None if batch.x_out is None else batch.x_out.clone()
        self.inputs = Batch(batch.x.clone(), batch.y.clone(), x_out)
        self.optimizer.zero_grad(set_to_none=True)  # the recorded backward makes its own gradients, in the graph's pool
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph):
                self.terms = self._step(self.inputs)
        except RuntimeError as error:
            name = type(self.objective.method).__name__
            raise TrainingError(
                f"train.engine=graphed cannot record {name} ({error}); use train.engine=eager"
            ) from None


class CompiledGraph(Graphed):
    """`Graphed` over the compiled loss: fewer kernels and no gaps between them."""

    def __init__(self, objective: Objective, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(objective, optimizer)
        self.model = torch.compile(self.model)  # type: ignore[assignment]


ENGINES: Mapping[str, Callable[[Objective, torch.optim.Optimizer], Descent]] = {
    "eager": Descent,
    "compiled": Compiled,
    "graphed": Graphed,
    "compiled-graph": CompiledGraph,
}
