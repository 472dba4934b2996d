"""The kernels of a training pass, compiled all together before the first: one by one they would take half a minute."""

import torch
from torch import Tensor, nn

from farout.nets.kernels import KERNELS
from farout.nets.launches import can_compile_together, compiled_together, interpreted, runs_on


def compile_kernels(net: nn.Module, x: Tensor) -> None:
    """Compile what forward and backward over x will launch; the network and torch's generators stay as they are.

    Nothing happens where no kernel of ours would run, or where triton cannot compile side by side.
    """
    ours = any(getattr(module, "kernels", None) is KERNELS["triton"] for module in net.modules())
    if not ours or x.ndim != 4 or not runs_on(x) or interpreted() or not can_compile_together():
        return
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        _rehearse(net, x)
    net.load_state_dict(kept)  # a norm that is torch's own has met numbers that mean nothing


def _rehearse(net: nn.Module, x: Tensor) -> None:
    """One pass whose kernels are only asked for: memory they would write is as it was."""
    with compiled_together():
        net(x).logits.sum().backward()
    net.zero_grad(set_to_none=True)
