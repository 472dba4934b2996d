"""Small networks that train in seconds on a laptop's processor: for demos, tests and embeddings."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from farout.components import choose
from farout.nets.gemm_conv import CONVOLUTIONS
from farout.nets.resnet import BasicBlock, init


class SmallConvNet(nn.Module):
    """Three 3x3 convolutions for images of 8x8 to 32x32: (B, C, H, W) -> logits (B, K).

    Features (B, 4·width) are mean(ReLU(·)), hence >= 0. kernels "gemm" trains faster on CPUs (gemm_conv.py); "plain" is
    the same function, and what "gemm" is in evaluation, in exports and on GPUs.
    """

    def __init__(self, num_classes: int, in_channels: int = 1, width: int = 16, kernels: str = "gemm") -> None:
        super().__init__()
        conv = choose("kernels", CONVOLUTIONS, kernels)
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = conv(2 * width, 4 * width, 3, stride=2, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.fc = nn.Linear(4 * width, num_classes)
        self.apply(init)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = F.relu(self.bn3(self.conv3(out)), inplace=True)
        logits: Tensor = self.fc(out.mean(dim=(2, 3)))
        return logits


class ResNet8(nn.Module):
    """Basic blocks of widths w, 2w, 4w: (B, C, H, W) -> logits (B, K); features (B, 4·width) are >= 0."""

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = BasicBlock(width, width)
        self.layer2 = BasicBlock(width, 2 * width, stride=2)
        self.layer3 = BasicBlock(2 * width, 4 * width, stride=2)
        self.fc = nn.Linear(4 * width, num_classes)
        self.apply(init)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.layer3(self.layer2(self.layer1(out)))
        logits: Tensor = self.fc(out.mean(dim=(2, 3)))
        return logits


class MLP(nn.Module):
    """Linear-ReLU layers on vectors: (B, in_features) -> logits (B, K); features (B, hidden[-1]) are >= 0.

    With hidden=() it is a linear classifier, whose features are its input.
    """

    def __init__(self, in_features: int, num_classes: int, hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        widths = [in_features, *hidden]
        pairs = pairwise(widths)
        self.layers = nn.Sequential(*(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())))
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layers(x.flatten(1)))
        return logits
