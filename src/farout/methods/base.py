"""What a training method is: a loss over one batch, and whatever state it must keep."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from farout.data.source import Source
from farout.nets.net import Net
from farout.types import Batch, Outputs, Terms

Loss = Callable[[Net, Batch], Terms]
Descend = Callable[[Loss], Terms]


class Method(nn.Module):
    """A way to train. Subclasses give `loss`; tensors that a restart must remember are buffers or parameters."""

    needs_outliers: ClassVar[bool] = True
    """Whether batches carry auxiliary outliers."""
    outlier_class: ClassVar[bool] = False
    """Whether the head has one output more, for outliers."""
    outputs_per_class: ClassVar[int] = 1
    """How many logits the head has for each ID class."""
    recordable: ClassVar[bool] = True
    """Whether a step asks the host for nothing and draws on the device, so that a CUDA graph can repeat it."""
    clip: float | None = None
    """The largest norm a step's gradient may have; None does not clip."""
    score: ClassVar[str] = "msp"
    """The score it is evaluated with by default."""
    paper: ClassVar[str] = ""
    """Authors, title, venue, year."""

    def __init__(self) -> None:  # its own, so that a recipe's arguments are checked against it
        super().__init__()

    def prepare(self, net: Net) -> None:
        """Size the method's own tensors to the network; called once, before training."""

    def begin_epoch(self, net: Net, outliers: Source | None, epoch: int) -> Tensor | None:
        """Choose this epoch's outliers: their indices (n,), or None for all of them."""

    def loss(self, net: Net, batch: Batch) -> Terms:
        """The loss terms of one batch; the training loss is their sum."""
        raise TypeError(f"{type(self).__name__} does not define loss")

    def update(self, net: Net, batch: Batch, descend: Descend) -> Terms:
        """One update of the network: one descent of `loss`, unless the method takes several."""
        return descend(self.loss)

    def stats(self) -> dict[str, Tensor]:
        """What else to log beside the loss terms, as 0-d tensors."""
        return {}


def forward_pair(net: Net, batch: Batch) -> tuple[Outputs, Outputs]:
    """One forward of [x; x_out], split again: ID and outliers share the batch statistics."""
    assert batch.x_out is not None, "this method trains with auxiliary outliers and the batch has none"
    count = batch.x.shape[0]
    out = net(torch.cat([batch.x, batch.x_out]))
    return Outputs(out.features[:count], out.logits[:count]), Outputs(out.features[count:], out.logits[count:])
