"""Wide residual networks with pre-activation blocks, the paper's CIFAR backbone (WRN-40-2, D = 128).

The parameter names are those of the widely shared CIFAR checkpoints, so that such files load as they are.
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from farout.components import choose
from farout.errors import ConfigError
from farout.nets.fused_norm import no_seeds
from farout.nets.kernels import KERNELS, Kernels
from farout.nets.norm_conv import Summands


class PreActBlock(nn.Module):
    """s + conv2(dropout(ReLU(bn2(conv1(a))))) with a = ReLU(bn1(x)), s = convShortcut(a) or x."""

    def __init__(self, c_in: int, c_out: int, stride: int, dropout: float, kernels: Kernels = KERNELS["plain"]) -> None:
        super().__init__()
        self.kernels, conv = kernels, kernels.conv
        self.bn1 = nn.BatchNorm2d(c_in)
        self.conv1 = conv(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.conv2 = conv(c_out, c_out, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.convShortcut = conv(c_in, c_out, 1, stride=stride, bias=False) if c_in != c_out else None

    def forward(self, x: Tensor) -> Tensor:
        return self.summands(Summands(x)).total()

    def summands(self, x: Summands, seed: Tensor | None = None, whole: bool = True) -> Summands:
        """The shortcut and the branch, added only where the kernels do that on the way, and never if not `whole`."""
        norm, norm_conv = self.kernels.norm, self.kernels.norm_conv
        if self.convShortcut is None:
            shortcut, inner = norm_conv(self.bn1, self.conv1, x, origin=self.bn2.running_mean)
        else:  # only a block that changes width has a convShortcut, and it starts from the activated input
            _, active = norm(self.bn1, x.x, x.residual, moments=x.moments)
            shortcut, inner = self.convShortcut(active), Summands(self.conv1(active))
        options = {"dropout": self.dropout, "seed": seed}
        if whole:
            return norm_conv(self.bn2, self.conv2, inner, add=shortcut, **options)[1]
        _, branch = norm_conv(self.bn2, self.conv2, inner, origin=shortcut, **options)
        return Summands(branch.x, shortcut)


class Stage(nn.Module):
    """`blocks` blocks of one width; the first changes width and resolution. Summands in, summands out."""

    def __init__(
        self, blocks: int, c_in: int, c_out: int, stride: int, dropout: float, kernels: Kernels = KERNELS["plain"]
    ) -> None:
        super().__init__()
        first = PreActBlock(c_in, c_out, stride, dropout, kernels)
        rest = (PreActBlock(c_out, c_out, 1, dropout, kernels) for _ in range(blocks - 1))
        self.layer = nn.Sequential(first, *rest)

    def forward(self, x: Tensor, residual: Tensor | None, seeds: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        # Two summands come out whatever the kernels: a hook on a stage (dal-deep's) adds them up.
        out, last = Summands(x, residual), len(self.layer) - 1
        for n, (block, seed) in enumerate(zip(self.layer, seeds, strict=True)):
            out = block.summands(out, seed, whole=n != last)  # type: ignore[operator]
        assert out.residual is not None
        return out.x, out.residual


class WideResNet(nn.Module):
    """WRN-depth-width: images (B, C, H, W) -> logits (B, K); features (B, 64·width) are >= 0.

    depth = 6n + 4 for n blocks in each of three stages of widths 16w, 32w, 64w.
    kernels "triton" trains faster on a GPU, in the channels-last layout; everywhere else it is "plain", so that what
    was trained with it loads and serves anywhere.
    """

    def __init__(
        self,
        depth: int = 40,
        width: int = 2,
        num_classes: int = 10,
        dropout: float = 0.3,
        in_channels: int = 3,
        kernels: str = "plain",
    ) -> None:
        super().__init__()
        self.kernels = choose("kernels", KERNELS, kernels)
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ConfigError(f"WideResNet depth {depth} is not 6n + 4 with n >= 1: take 10, 16, 22, 28, 34, 40, ...")
        self.conv1 = self.kernels.conv(in_channels, 16, 3, padding=1, bias=False)
        self.blocks = blocks
        self.block1 = Stage(blocks, 16, 16 * width, 1, dropout, self.kernels)
        self.block2 = Stage(blocks, 16 * width, 32 * width, 2, dropout, self.kernels)
        self.block3 = Stage(blocks, 32 * width, 64 * width, 2, dropout, self.kernels)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, num_classes)
        self.apply(_init)

    def forward(self, x: Tensor) -> Tensor:
        with self.kernels.weights(self, x):
            features = self._features(x)
        logits: Tensor = self.fc(features)
        return logits

    def _features(self, x: Tensor) -> Tensor:
        out, shortcut = self.conv1(x), None
        seeds = self.kernels.seeds(x, 3 * self.blocks) if self.training else no_seeds(x, 3 * self.blocks)
        for n, stage in enumerate((self.block1, self.block2, self.block3)):
            out, shortcut = stage(out, shortcut, seeds[n * self.blocks : (n + 1) * self.blocks])
        _, active = self.kernels.norm(self.bn1, out, shortcut)
        return active.mean(dim=(2, 3))


def _init(module: nn.Module) -> None:
    """conv ~ N(0, 2 / (k² c_out)), linear bias 0; BN (1, 0) and the linear weight keep torch's defaults."""
    if isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
        nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_out))
    elif isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
