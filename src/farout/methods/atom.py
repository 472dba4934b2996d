"""ATOM: an extra class for outliers, trained on those that are hard to tell from ID data, half of them attacked."""

import torch
import torch.nn.functional as F
from torch import Tensor

from farout.data.source import Source
from farout.errors import ConfigError
from farout.methods.base import Method, forward_pair
from farout.methods.mining import draw_pool, score_pool, take_ranks
from farout.nets.net import Net, pixels
from farout.scores.embed import evaluating
from farout.types import Batch, Outputs, Terms


def log_odds(logits: Tensor) -> Tensor:
    """log p_{K+1} / (1 − p_{K+1}) = f_{K+1} − LSE(f_1..f_K): logits (B, K + 1) -> (B,). Higher is more an outlier.

    It ranks as the probability does and does not saturate; −log p_{K+1} is its softplus(−·).
    """
    return logits[:, -1] - torch.logsumexp(logits[:, :-1], dim=-1)


def attack(net: Net, x: Tensor, epsilon: float, steps: int, step: float) -> Tensor:
    """The most ID-like point found in an ℓ∞ ball: pixels in [0, 1] (M, C, H, W) -> the same.

    Signed gradient steps from a start on the pixel grid, in evaluation mode; of x, the start and every step each
    sample keeps the one with the lowest log-odds. That is the highest cross-entropy to the outlier class, but its
    gradient does not underflow where the network is certain.
    """
    low, high = (x - epsilon).clamp(min=0), (x + epsilon).clamp(max=1)
    start = x + ((2 * torch.rand_like(x) - 1) * epsilon * 255).round() / 255
    point = start.clamp(low, high)
    with evaluating(net), torch.enable_grad():
        worst, least = x, log_odds(net(x).logits).detach()
        for left in range(steps, -1, -1):
            odds = log_odds(net(point.requires_grad_()).logits)
            found = odds.detach() < least
            worst = torch.where(found[:, None, None, None], point.detach(), worst)
            least = torch.where(found, odds.detach(), least)
            if left:
                (gradient,) = torch.autograd.grad(odds.sum(), point)
                point = (point.detach() - step * gradient.sign()).clamp(low, high)
    return worst


class ATOM(Method):
    """mean CE(ID) + β · mean −log p_{K+1}(x_out), over mined outliers, a share of them attacked.

    Each epoch, `pool` random auxiliary images are ranked by p_{K+1}, most ID-like first; ranks [qN, qN + keep) are
    trained on. From a set smaller than `pool`, the same share of it is kept.

    quantile      q: 0.125 for CIFAR-10; 0.5 is given for CIFAR-100
    attack_share  of each outlier batch; 0 is NTOM.  epsilon, attack_steps, attack_step: the ℓ∞ attack, pixels in [0, 1]
    beta          weight of the outlier term
    mine          False trains on all auxiliary data

    Departure: the released attack keeps, with each loss, the point one step after it; here each with its own.
    """

    outlier_class = True
    score = "outlier-class"
    paper = "Chen et al., ATOM: Robustifying Out-of-distribution Detection Using Outlier Mining, ECML PKDD 2021"

    def __init__(
        self,
        quantile: float = 0.125,
        pool: int = 400_000,
        keep: int = 100_000,
        attack_share: float = 0.5,
        epsilon: float = 8 / 255,
        attack_steps: int = 5,
        attack_step: float = 2 / 255,
        beta: float = 1.0,
        mine: bool = True,
    ) -> None:
        super().__init__()
        self.quantile, self.pool, self.keep, self.mine = quantile, pool, keep, mine
        self.attack_share, self.epsilon = attack_share, epsilon
        self.attack_steps, self.attack_step = attack_steps, attack_step
        self.beta = beta

    def prepare(self, net: Net) -> None:
        if not 0 <= self.quantile < 1:
            raise ConfigError(f"ATOM: quantile={self.quantile} leaves nothing to train on; take 0 <= quantile < 1")
        if not 0 < self.keep <= self.pool:
            raise ConfigError(f"ATOM: cannot keep {self.keep} of a pool of {self.pool}; take 0 < keep <= pool")
        if not 0 <= self.attack_share <= 1:
            raise ConfigError(f"ATOM: attack_share={self.attack_share} is not a share; take 0 (NTOM) to 1")

    def begin_epoch(self, net: Net, outliers: Source | None, epoch: int) -> Tensor | None:
        if not self.mine or outliers is None:
            return None
        indices = draw_pool(outliers, self.pool)
        scores = score_pool(net, outliers, indices, _outlier_log_odds)
        keep = max(1, round(self.keep * len(indices) / self.pool))
        return take_ranks(indices, scores, int(self.quantile * len(indices)), keep)

    def loss(self, net: Net, batch: Batch) -> Terms:
        inlier, outlier = forward_pair(net, self._attacked(net, batch))
        return {
            "ce": F.cross_entropy(inlier.logits, batch.y),
            "outlier": self.beta * F.softplus(-log_odds(outlier.logits)).mean(),
        }

    def _attacked(self, net: Net, batch: Batch) -> Batch:
        """The batch with its first outliers attacked: a random share, since batches are drawn in random order."""
        assert batch.x_out is not None, "ATOM trains with auxiliary outliers and the batch has none"
        count = round(self.attack_share * len(batch.x_out))
        if count == 0:
            return batch
        if batch.x_out.ndim != 4:
            raise ConfigError(
                f"ATOM attacks pixels (M, C, H, W), got outliers {tuple(batch.x_out.shape)}; set attack_share to 0"
            )
        x, x_out = pixels(batch.x), pixels(batch.x_out)
        attacked = attack(net, x_out[:count], self.epsilon, self.attack_steps, self.attack_step)
        return Batch(x, batch.y, torch.cat([attacked, x_out[count:]]))


def _outlier_log_odds(out: Outputs) -> Tensor:
    return log_odds(out.logits)
