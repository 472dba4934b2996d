"""ResNet-18 and ResNet-50 under torchvision's parameter names, so that its weight files load as they are."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from farout.errors import ConfigError

Stem = Literal["imagenet", "cifar"]


def _shortcut(c_in: int, c_out: int, stride: int) -> nn.Sequential | None:
    """A 1x1 projection where the block changes shape, else None for the identity."""
    if stride == 1 and c_in == c_out:
        return None
    return nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False), nn.BatchNorm2d(c_out))


class BasicBlock(nn.Module):
    """ReLU(x + bn2(conv2(ReLU(bn1(conv1(x)))))), two 3x3 convolutions."""

    expansion = 1

    def __init__(self, c_in: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(c_in, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(out)) + shortcut, inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a fourfold last width; the stride sits in the 3x3 (torchvision's "v1.5")."""

    expansion = 4

    def __init__(self, c_in: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.downsample = _shortcut(c_in, 4 * planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        return F.relu(self.bn3(self.conv3(out)) + shortcut, inplace=True)


class ResNet(nn.Module):
    """Images (B, C, H, W) -> logits (B, K); features (B, 512·expansion) are mean(ReLU(·)), hence >= 0."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, int, int, int],
        num_classes: int,
        stem: Stem = "imagenet",
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        if stem not in ("imagenet", "cifar"):
            raise ConfigError(f"ResNet has no stem {stem!r}: take 'imagenet' (7x7, stride 4 in all) or 'cifar' (3x3)")
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(
            in_channels,
            64,
            7 if large else 3,
            stride=2 if large else 1,
            padding=3 if large else 1,
            bias=False,
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        top = block.expansion
        self.layer1 = stage(block, blocks[0], 64, 64, 1)
        self.layer2 = stage(block, blocks[1], 64 * top, 128, 2)
        self.layer3 = stage(block, blocks[2], 128 * top, 256, 2)
        self.layer4 = stage(block, blocks[3], 256 * top, 512, 2)
        self.fc = nn.Linear(512 * top, num_classes)
        self.apply(init)

    def forward(self, x: Tensor) -> Tensor:
        out = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        logits: Tensor = self.fc(out.mean(dim=(2, 3)))
        return logits


def stage(
    block: type[BasicBlock] | type[Bottleneck], blocks: int, c_in: int, planes: int, stride: int
) -> nn.Sequential:
    """`blocks` blocks of one width; the first takes the stride and the change of width."""
    rest = (block(planes * block.expansion, planes) for _ in range(blocks - 1))
    return nn.Sequential(block(c_in, planes, stride), *rest)


def init(module: nn.Module) -> None:
    """conv ~ N(0, 2 / (k² c_out)), Kaiming's fan-out rule; the rest keeps torch's defaults (BN 1 and 0)."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet18(num_classes: int, stem: Stem = "imagenet", in_channels: int = 3) -> ResNet:
    """ResNet-18, D = 512; stem "cifar" keeps 32x32 images at full resolution (OpenOOD's ResNet18_32x32)."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, stem, in_channels)


def resnet50(num_classes: int, stem: Stem = "imagenet", in_channels: int = 3) -> ResNet:
    """ResNet-50, D = 2048, the paper's ImageNet backbone."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, stem, in_channels)
