"""Wide residual networks with pre-activation blocks, the paper's CIFAR backbone (WRN-40-2, D = 128).

The parameter names are those of the widely shared CIFAR checkpoints, so that such files load as they are.
"""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from farout.errors import ConfigError


class PreActBlock(nn.Module):
    """s + conv2(dropout(ReLU(bn2(conv1(a))))) with a = ReLU(bn1(x)), s = convShortcut(a) or x."""

    def __init__(self, c_in: int, c_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.convShortcut = nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False) if c_in != c_out else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x), inplace=True)
        # Only a block that changes width has a convShortcut, and it starts from the activated input.
        shortcut = x if self.convShortcut is None else self.convShortcut(active)
        inner = F.relu(self.bn2(self.conv1(active)), inplace=True)
        out: Tensor = shortcut + self.conv2(self.dropout(inner))
        return out


class Stage(nn.Module):
    """`blocks` blocks of one width; the first changes width and resolution."""

    def __init__(self, blocks: int, c_in: int, c_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        first = PreActBlock(c_in, c_out, stride, dropout)
        self.layer = nn.Sequential(first, *(PreActBlock(c_out, c_out, 1, dropout) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class WideResNet(nn.Module):
    """WRN-depth-width: images (B, C, H, W) -> logits (B, K); features (B, 64·width) are >= 0.

    depth = 6n + 4 for n blocks in each of three stages of widths 16w, 32w, 64w.
    """

    def __init__(
        self,
        depth: int = 40,
        width: int = 2,
        num_classes: int = 10,
        dropout: float = 0.3,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ConfigError(f"WideResNet depth {depth} is not 6n + 4 with n >= 1: take 10, 16, 22, 28, 34, 40, ...")
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.block1 = Stage(blocks, 16, 16 * width, 1, dropout)
        self.block2 = Stage(blocks, 16 * width, 32 * width, 2, dropout)
        self.block3 = Stage(blocks, 32 * width, 64 * width, 2, dropout)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, num_classes)
        self.apply(_init)

    def forward(self, x: Tensor) -> Tensor:
        out = self.block3(self.block2(self.block1(self.conv1(x))))
        features = F.relu(self.bn1(out), inplace=True).mean(dim=(2, 3))
        logits: Tensor = self.fc(features)
        return logits


def _init(module: nn.Module) -> None:
    """conv ~ N(0, 2 / (k² c_out)), linear bias 0; BN (1, 0) and the linear weight keep torch's defaults."""
    if isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
        nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_out))
    elif isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
