"""Scores that must see the input: ODIN nudges it, CSI's rotations turn it."""

from collections.abc import Callable

import torch
from torch import Tensor

from farout.errors import ConfigError, DataError
from farout.nets.net import Net
from farout.scores.logits import MSP
from farout.types import Outputs


class ODIN(MSP):
    """s = log max_k softmax_k(f(x')/T) at the nudged input x' = x + ε·sign(∇_x log max_k softmax_k(f(x)/T)).

    Higher = more in-distribution; (B, C, H, W) -> (B,), in float64: at T = 1000 all softmaxes are nearly 1/K, and
    float32 would tie them.

    ε is in pixels of [0, 1], and nothing is clipped back into that range. The released code nudges the normalised
    image by ε/std, which is the same step; its sign(0) is +1, here 0. T = 1000 and ε = 0.0014 are released for
    CIFAR-10; the paper chooses ε on a validation set (0.002 for CIFAR-100). Two forward passes and a backward pass.
    """

    uses_input = True
    why_not_exported = "it nudges the input along a gradient, and an exported graph has no backward pass"
    paper = "Liang et al., Enhancing The Reliability of Out-of-distribution Image Detection, ICLR 2018"

    def __init__(self, temperature: float = 1000.0, epsilon: float = 0.0014) -> None:
        super().__init__()
        if temperature <= 0 or epsilon < 0:
            raise ConfigError(f"ODIN takes temperature > 0 and epsilon >= 0, got {temperature} and {epsilon}")
        self.temperature, self.epsilon = temperature, epsilon
        if epsilon == 0:
            self.why_not_exported = ""

    def outputs(self, net: Net, x: Tensor) -> Outputs:
        moved = nudge(net, x, self.epsilon, self) if self.epsilon else x
        with torch.no_grad():
            return self.adjust(net, net(moved))

    def forward(self, out: Outputs) -> Tensor:
        return super().forward(out._replace(logits=out.logits.double() / self.temperature))


class Rotations(MSP):
    """s = log max_k softmax_k of l(x) = ¼ Σ_r f_r(rot_r x), f_r the C logits that a 4C-way head has for r·90°.

    Higher = more in-distribution; square images (B, 3, S, S) -> (B,). This is CSI's score for labelled ID data. The
    head's classes are y + C·r, rotations as `torch.rot90(x, r, (2, 3))`; the averaged logits (B, C) also classify.
    The paper takes the probability; its logarithm ranks alike and does not saturate.
    """

    uses_input = True
    paper = "Tack et al., CSI: Novelty Detection via Contrastive Learning on Distributionally Shifted Instances, 2020"

    @torch.no_grad()
    def outputs(self, net: Net, x: Tensor) -> Outputs:
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            raise DataError(f"Rotations turns square images (B, C, S, S), got {tuple(x.shape)}; resize or crop them")
        if net.num_outputs % 4:
            raise ConfigError(
                f"Rotations needs a head with 4 logits a class, one for each rotation; this one has {net.num_outputs}"
            )
        turned: list[Outputs] = [net(torch.rot90(x, r, (2, 3))) for r in range(4)]
        own = [out.logits.chunk(4, dim=1)[r] for r, out in enumerate(turned)]
        return self.adjust(net, Outputs(turned[0].features, torch.stack(own).mean(dim=0)))


def nudge(net: Net, x: Tensor, epsilon: float, raised: Callable[[Outputs], Tensor]) -> Tensor:
    """x + ε·sign(∇_x raised(net(x))), the step within ε a pixel that raises a per-sample quantity most, to first order.

    x is uint8 or float in [0, 1]; the result is float, of the same shape. Works whatever the caller's grad mode is,
    and leaves no gradient on the network.
    """
    with torch.inference_mode(False), torch.enable_grad():
        pixels = (x / 255 if x.dtype == torch.uint8 else x).detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(raised(net(pixels)).sum(), pixels)
    return pixels.detach() + epsilon * gradient.sign()
