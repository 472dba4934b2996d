"""VOS: outliers that nobody collected, drawn from the thin edge of each class in feature space."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Chi2

from farout import distributed
from farout.data.source import Source
from farout.errors import ConfigError
from farout.methods.base import Method
from farout.nets.net import Net
from farout.types import Batch, Terms


class VOS(Method):
    """mean CE(ID) + weight · CE₂(φ(F), 1 on ID, 0 on virtual outliers), F(x) = log Σ_k relu(w_k) e^{f_k(x)}.

    The features of class c are taken as N(μ_c, Σ); its virtual outlier is the least likely of `samples` draws from
    it, and its logits are those of the head. w (K,) and φ = Linear(1, 2) are learned with the network, unused after.

    start_epoch  the first epoch with virtual outliers; they also wait until every class's queue is full
    queue        how many of each class's latest features (train mode, detached) give μ_c and Σ
    samples      draws of which the least likely is kept
    weight       of the regulariser;  ridge: added to the diagonal of Σ

    Σ is the pooled within-class covariance (biased, 1/n) in float64, kept as running sums of what enters and leaves
    the queues: a step costs B·D² instead of K·queue·D². Departures: relu(w_k) is at least 1e-30, so that F stays
    finite when every w_k is negative; the released code draws all of the samples (see `longest`). Its regulariser is
    the one here, whose gradient reaches the network; OpenOOD's copy loses that gradient on the way.

    On several ranks the queues take the features of all ranks, so that they stay equal. Each rank draws its own
    virtual outliers, and each of these counts 1/ranks: the loss keeps its balance whatever the number of ranks.
    """

    needs_outliers = False
    recordable = False  # asks whether the queues are full: until then w and φ must not decay either
    score = "energy"
    paper = "Du et al., VOS: Learning What You Don't Know by Virtual Outlier Synthesis, ICLR 2022"
    w: nn.Parameter
    phi: nn.Linear
    features: Tensor
    pushed: Tensor
    total: Tensor
    second: Tensor
    epoch: Tensor

    def __init__(
        self,
        start_epoch: int = 40,
        queue: int = 1000,
        samples: int = 10_000,
        weight: float = 0.1,
        ridge: float = 1e-4,
    ) -> None:
        super().__init__()
        self.start_epoch, self.queue, self.samples = start_epoch, queue, samples
        self.weight, self.ridge = weight, ridge
        self.register_buffer("epoch", torch.tensor(0))

    def prepare(self, net: Net) -> None:
        if min(self.queue, self.samples) < 1:
            raise ConfigError(f"VOS: queue={self.queue} and samples={self.samples} are counts; take both at least 1")
        classes, width = net.num_outputs, net.num_features
        self.w = nn.Parameter(torch.rand(classes))
        self.phi = nn.Linear(1, 2)
        self.register_buffer("features", torch.zeros(classes, self.queue, width))
        self.register_buffer("pushed", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("total", torch.zeros(classes, width, dtype=torch.float64))
        self.register_buffer("second", torch.zeros(width, width, dtype=torch.float64))

    def begin_epoch(self, net: Net, outliers: Source | None, epoch: int) -> None:
        self.epoch.fill_(epoch)

    def loss(self, net: Net, batch: Batch) -> Terms:
        out = net(batch.x)
        self.push(distributed.gather(out.features.detach()), distributed.gather(batch.y))
        ready = (self.epoch >= self.start_epoch) & (self.pushed >= self.queue).all()
        regulariser = out.logits.new_zeros(())
        if ready:  # a branch, though it waits for the host: until then w and φ must not decay either
            virtual = net.head(self.virtual_outliers().to(out.features.dtype))
            regulariser = self.weight * self.uncertainty(out.logits, virtual)
        return {"ce": F.cross_entropy(out.logits, batch.y), "vos": regulariser}

    def uncertainty(self, logits: Tensor, virtual: Tensor) -> Tensor:
        """CE₂ over the ID logits (B, K) and the virtual outliers' (K, K): low when φ(F) tells them apart."""
        energy = weighted_energy(torch.cat([logits, virtual]), self.w)
        is_id = (torch.arange(len(energy), device=energy.device) < len(logits)).long()
        counts = energy.new_tensor([1 / distributed.world_size(), 1.0])
        return F.cross_entropy(self.phi(energy[:, None]), is_id, weight=counts)

    @torch.no_grad()
    def push(self, z: Tensor, y: Tensor) -> None:
        """Put features z (N, D) of labels y (N,) into their classes' queues, over the oldest ones."""
        member = F.one_hot(y, len(self.pushed))
        count = member.sum(dim=0)
        place = member.cumsum(dim=0).gather(1, y[:, None])[:, 0] - 1  # the n-th of its class in this batch
        slot = (self.pushed[y] + place) % self.queue
        if len(y) > self.queue:  # a class may go round its queue: only its last samples stay, one to a slot
            last = place >= count[y] - self.queue
            z, y, slot, member = z[last], y[last], slot[last], member[last]
        z = z.to(self.features.dtype)  # first, so that exactly what enters the sums leaves them again
        old, new = self.features[y, slot].double(), z.double()  # an empty slot holds zeros
        self.features[y, slot] = z
        self.pushed += count
        self.total += member.double().T @ (new - old)
        self.second += new.T @ new - old.T @ old

    def gaussians(self) -> tuple[Tensor, Tensor]:
        """Class means μ (K, D) and a lower L (D, D) with L Lᵀ = Σ + ridge · I, in float64, from full queues.

        Σ = (Σ_i z_i z_iᵀ − queue · Σ_c μ_c μ_cᵀ) / (K · queue).
        """
        mean = self.total / self.queue
        within = (self.second - self.queue * mean.T @ mean) / (len(mean) * self.queue)
        # cholesky_ex passes NaN features on to the loss, where training stops with a message that names the term
        return mean, torch.linalg.cholesky_ex(within + self.ridge * torch.eye(len(within)).to(within)).L

    @torch.no_grad()
    def virtual_outliers(self) -> Tensor:
        """v_c = μ_c + L ε_c, (K, D), with ε_c the longest of `samples` normal draws, hence v_c the least likely."""
        mean, scale = self.gaussians()
        draws = longest(len(mean), self.samples, mean.shape[1], mean)
        return mean + draws @ scale.T


def weighted_energy(logits: Tensor, w: Tensor) -> Tensor:
    """F = log Σ_k relu(w_k) e^{x_k}: (B, K), (K,) -> (B,); higher on more in-distribution inputs."""
    return torch.logsumexp(logits + w.clamp_min(1e-30).log(), dim=1)


def longest(count: int, samples: int, width: int, like: Tensor) -> Tensor:
    """`count` times the longest of `samples` draws from N(0, I): (count, width), of `like`'s device and type.

    log N(μ + Lε; μ, LLᵀ) = const − ½‖ε‖², so the least likely draw is the longest. ‖ε‖² is χ² with `width` degrees
    of freedom and independent of the direction: the largest of `samples` χ² numbers along one random direction has
    the same law as the longest of `samples` vectors, for a `width`-th of the random numbers.
    """
    chi2 = Chi2(torch.tensor(float(width), device=like.device), validate_args=False)  # checking waits for the host
    length = chi2.sample(torch.Size([count, samples])).amax(dim=1, keepdim=True).sqrt()
    direction = F.normalize(torch.randn(count, width, device=like.device), dim=1)
    return (length * direction).to(like.dtype)
