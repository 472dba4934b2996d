"""POEM: outliers near a boundary that is itself sampled, by Bayesian linear regression on the features."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from farout import distributed
from farout.data.source import Source
from farout.errors import ConfigError
from farout.losses import energy_above, energy_below
from farout.methods.base import Method, forward_pair
from farout.methods.mining import draw_pool, score_pool, take_ranks
from farout.nets.net import Net
from farout.types import Batch, Outputs, Terms

ID_TARGET, OUTLIER_TARGET = -3.0, 3.0


class POEM(Method):
    """Energy-OE on the `keep` outliers x of a random pool with the smallest |wᵀφ(x)|, w drawn from its posterior.

    φ is the penultimate feature. A linear regression of −3 (ID) and +3 (outliers) on φ has the posterior
    N(μ, A⁻¹),  A = ΦᵀΦ/noise + I/sigma,  μ = A⁻¹ Φᵀy/noise;  each epoch draws w ~ N(μ, cov_scale · A⁻¹).

    pool, keep     outliers looked at, and kept, each epoch; of a set smaller than `pool` the same share is kept
    mine           False is POEM without sampling: Energy-OE on all outliers
    weight, m_in, m_out   of the energy hinges, as in Energy-OE
    sigma, noise   prior and noise of the regression: variances, whatever their letters say
    cov_scale      1, the default, is the posterior itself, which Thompson sampling asks for. The released code
                   multiplies A⁻¹ by sigma (cov_scale = 20), perhaps because n is large and the draw else nearly μ

    Departures from the released code. Φ is every training feature of the last epoch, as it passed through the
    network in train mode and on all ranks; there it is a buffer, of which the ID half dates from the first epoch and
    only the other half is renewed. No noise is added to the targets (there one scalar, the same for both sides).
    w is drawn with a Cholesky factor in float64 instead of an inverse. Before the first epoch there is no data, and
    w comes from the prior.
    """

    score = "energy"
    paper = "Ming, Fan and Li, POEM: Out-of-Distribution Detection with Posterior Sampling, ICML 2022"
    gram: Tensor
    moment: Tensor

    def __init__(
        self,
        pool: int = 400_000,
        keep: int = 50_000,
        weight: float = 0.1,
        m_in: float = -25.0,
        m_out: float = -7.0,
        sigma: float = 20.0,
        noise: float = 0.5,
        cov_scale: float = 1.0,
        mine: bool = True,
    ) -> None:
        super().__init__()
        self.pool, self.keep, self.mine = pool, keep, mine
        self.weight, self.m_in, self.m_out = weight, m_in, m_out
        self.sigma, self.noise, self.cov_scale = sigma, noise, cov_scale

    def prepare(self, net: Net) -> None:
        if not 0 < self.keep <= self.pool:
            raise ConfigError(f"POEM: cannot keep {self.keep} of a pool of {self.pool}; take 0 < keep <= pool")
        if min(self.sigma, self.noise) <= 0:
            raise ConfigError(f"POEM: sigma={self.sigma} and noise={self.noise} are variances; take both above 0")
        if self.cov_scale < 0:
            raise ConfigError(f"POEM: cov_scale={self.cov_scale} is negative; take 1 (the posterior) or 0 (its mean)")
        if self.m_in > self.m_out:
            raise ConfigError(f"POEM: m_in={self.m_in} is above m_out={self.m_out}; ID data have the lower energy")
        width = net.num_features
        self.register_buffer("gram", torch.zeros(width, width, dtype=torch.float64))
        self.register_buffer("moment", torch.zeros(width, dtype=torch.float64))

    def begin_epoch(self, net: Net, outliers: Source | None, epoch: int) -> Tensor | None:
        if not self.mine or outliers is None:
            return None
        w = distributed.same(thompson(*self.posterior(), self.cov_scale))
        self.gram.zero_()
        self.moment.zero_()
        return self.nearest(net, outliers, w)

    def loss(self, net: Net, batch: Batch) -> Terms:
        inlier, outlier = forward_pair(net, batch)
        if self.mine:
            self.observe(inlier.features, ID_TARGET)
            self.observe(outlier.features, OUTLIER_TARGET)
        hinges = energy_above(inlier.logits, self.m_in).mean() + energy_below(outlier.logits, self.m_out).mean()
        return {"ce": F.cross_entropy(inlier.logits, batch.y), "energy": self.weight * hinges}

    @torch.no_grad()
    def observe(self, features: Tensor, target: float) -> None:
        """Add features (B, D) of one side, from all ranks, to ΦᵀΦ and Φᵀy."""
        phi = distributed.gather(features.detach()).double()
        self.gram += phi.T @ phi
        self.moment += target * phi.sum(dim=0)

    def posterior(self) -> tuple[Tensor, Tensor]:
        """μ (D,) and the lower L (D, D) with L Lᵀ = A, float64."""
        precision = self.gram / self.noise + torch.eye(len(self.gram)).to(self.gram) / self.sigma
        lower = torch.linalg.cholesky(precision)
        return torch.cholesky_solve(self.moment[:, None] / self.noise, lower)[:, 0], lower

    def nearest(self, net: Net, outliers: Source, w: Tensor) -> Tensor:
        """The members of a random pool with the smallest |wᵀφ|, nearest first."""

        def distance(out: Outputs) -> Tensor:
            return out.features.double().mv(w).abs()

        indices = draw_pool(outliers, self.pool)
        keep = max(1, round(self.keep * len(indices) / self.pool))
        return take_ranks(indices, score_pool(net, outliers, indices, distance), 0, keep)


def thompson(mean: Tensor, lower: Tensor, scale: float = 1.0) -> Tensor:
    """One draw (D,) from N(mean, scale · A⁻¹), A = lower · lowerᵀ: mean + √scale · lower⁻ᵀ ξ, ξ ~ N(0, I)."""
    ahead: Tensor = torch.linalg.solve_triangular(lower.T, torch.randn_like(mean)[:, None], upper=True)
    return mean + math.sqrt(scale) * ahead[:, 0]
