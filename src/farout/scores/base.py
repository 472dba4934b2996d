"""What a score is: a number for each sample, higher = more in-distribution."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self

from torch import Tensor, nn

from farout.data.source import ImageSet
from farout.errors import CheckpointError, NotFittedError
from farout.nets.net import Net
from farout.types import Outputs


class Embedded(NamedTuple):
    """A set seen through a network once: its outputs (N, D) and (N, K), labels (N,), and the samples themselves."""

    outputs: Outputs
    labels: Tensor
    samples: ImageSet


class Score(nn.Module):
    """A score over network outputs. What `fit` learns is in buffers, empty until then, saved with the detector.

    forward  the score of outputs, (B, D) and (B, K) -> (B,)
    adjust   changes the outputs first (ReAct clips the features); evaluation calls it on cached outputs
    outputs  for the few that must see the input itself (ODIN nudges it); these set `uses_input`
    """

    needs_fit: bool = False
    uses_input: bool = False
    why_not_exported: str = ""
    """Why an exported graph cannot hold it; empty where it can."""
    paper: ClassVar[str] = ""

    def __init__(self) -> None:  # its own, so that a recipe's arguments are checked against it
        super().__init__()

    def fit(self, net: Net, train: Embedded) -> Self:
        """Learn from ID training data; nothing by default."""
        return self

    def adjust(self, net: Net, out: Outputs) -> Outputs:
        return out

    def outputs(self, net: Net, x: Tensor) -> Outputs:
        out: Outputs = net(x)
        return self.adjust(net, out)

    def forward(self, out: Outputs) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")

    @property
    def fitted(self) -> bool:
        """Whether everything that `fit` learns is there."""
        return all(buffer.numel() > 0 for buffer in self.buffers())

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put saved buffers back; their sizes come from the file, since they depend on the data."""
        wanted = {name for name, _ in self.named_buffers()}
        if wanted != set(tensors):
            raise CheckpointError(
                f"{type(self).__name__} keeps {sorted(wanted) or 'nothing'}, "
                f"the file has {sorted(tensors) or 'nothing'}"
            )
        for name, tensor in tensors.items():
            owner, _, leaf = name.rpartition(".")
            self.get_submodule(owner).register_buffer(leaf, tensor)

    def require_fit(self) -> None:
        """Raise unless the score needs no fit or has been fitted."""
        if self.needs_fit and not self.fitted:
            name = type(self).__name__
            raise NotFittedError(f"{name} was not fitted; call Detector.fit or {name}.fit with ID training data first")
