"""CSI: an image turned by 90 degrees is another class; contrast them all, then read them with one joint head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from farout.contrastive import contrastive
from farout.data.views import Views, random_flip, rotations
from farout.errors import ConfigError
from farout.methods.base import Method
from farout.methods.supcon import projector
from farout.nets.net import Net
from farout.scores.embed import evaluating
from farout.types import Batch, Terms

TURNS = 4


class CSI(Method):
    """Labelled CSI in two stages, which are two runs: the second starts from the first (train.init).

    stage 1  the body alone: mean ℓ_SupCon(g(e(v))) over 2 views × 4 rotations of each image, with the label
             y + C·rotation; g is a projection (D -> D -> `projection`) that only training sees
    stage 2  the head alone, on the body frozen in evaluation mode: mean CE(h(e(v)), y + C·rotation), 4 rotations

    The head gives 4C logits, rotation-major: the first C are those at 0 degrees, from which accuracy is read.

    crop, flip  smallest share of the area in a view, probability of a flip; colours as in `Views`
    self_pair   count a view among its own positives, as the released code does; not the default, for it adds a
                constant and only dilutes the gradient (see `contrastive`)

    Departures: the released second stage also trains a C-way and a 4-way head, which the labelled score does not
    read. Flips come before the turns and crops after, as there: a mirrored quarter turn is a three-quarter turn.
    The views are made here, of raw square images, so the recipe's own augmentation is `none`. On several ranks each
    contrasts the views of its own images.
    """

    needs_outliers = False
    recordable = False  # as SupCon
    outputs_per_class = TURNS
    score = "csi"
    paper = (
        "Tack et al., CSI: Novelty Detection via Contrastive Learning on Distributionally Shifted Instances, "
        "NeurIPS 2020"
    )
    project: nn.Module

    def __init__(
        self,
        stage: int = 1,
        temperature: float = 0.07,
        projection: int = 128,
        self_pair: bool = False,
        crop: float = 0.08,
        flip: float = 0.5,
    ) -> None:
        super().__init__()
        if stage not in (1, 2):
            raise ConfigError(f"method 'csi' has the stages 1 (features) and 2 (joint head), got stage={stage}")
        self.stage, self.temperature, self.projection, self.self_pair = stage, temperature, projection, self_pair
        self.flip = flip
        self.views = Views(crop=crop, flip=0.0)

    def prepare(self, net: Net) -> None:
        if net.num_outputs % TURNS:
            raise ConfigError(
                f"method 'csi' needs a head of 4 logits a class, one for each rotation, got {net.num_outputs} logits"
            )
        if self.stage == 1:
            self.project = projector(net.num_features, self.projection)

    def loss(self, net: Net, batch: Batch) -> Terms:
        classes = net.num_outputs // TURNS
        return self.features_loss(net, batch, classes) if self.stage == 1 else self.head_loss(net, batch, classes)

    def features_loss(self, net: Net, batch: Batch, classes: int) -> Terms:
        """Stage 1: contrast 8B views."""
        views, labels = self.turned(torch.cat([batch.x, batch.x]), batch.y.repeat(2), classes)
        projections = self.project(net.embed(views))
        return {"csi": contrastive(projections, labels, self.temperature, self.self_pair).mean()}

    def head_loss(self, net: Net, batch: Batch, classes: int) -> Terms:
        """Stage 2: classify 4B views; without a gradient the optimiser leaves the body alone, decay included."""
        views, labels = self.turned(batch.x, batch.y, classes)
        with evaluating(net), torch.no_grad():
            z = net.embed(views)
        return {"joint": F.cross_entropy(net.head(z), labels)}

    def turned(self, x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """A view of each image in each rotation, (4N, C, H, W), and its label y + C·rotation (4N,)."""
        shifted = torch.cat([y + classes * turn for turn in range(TURNS)])
        return self.views(rotations(random_flip(x, self.flip))), shifted
