"""Networks by name, and the way from any classifier to features and a head."""

from collections.abc import Callable

from torch import nn

from farout.nets.external import external
from farout.nets.net import Net, Normalise
from farout.nets.resnet import resnet18, resnet50
from farout.nets.small import MLP, ResNet8, SmallConvNet
from farout.nets.split import join, split
from farout.nets.weights import load_weights
from farout.nets.wrn import WideResNet

NETS: dict[str, Callable[..., nn.Module]] = {
    "wrn": WideResNet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet8": ResNet8,
    "small-conv": SmallConvNet,
    "mlp": MLP,
}
"""Every builder takes num_classes= and returns a plain classifier that ends in `fc`; `split` opens it."""

__all__ = [
    "MLP",
    "NETS",
    "Net",
    "Normalise",
    "ResNet8",
    "SmallConvNet",
    "WideResNet",
    "external",
    "join",
    "load_weights",
    "resnet18",
    "resnet50",
    "split",
]
