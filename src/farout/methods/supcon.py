"""SupCon: features that gather by class, for nearest neighbours to judge (KNN+)."""

import torch
import torch.nn.functional as F
from torch import nn

from farout.contrastive import contrastive
from farout.data.views import Views
from farout.methods.base import Method
from farout.nets.net import Net
from farout.types import Batch, Terms


class SupCon(Method):
    """weight · mean ℓ_SupCon(g(e(v)), y) over two random views v of each image, and a linear probe beside it.

    g is a projection (D -> D -> `projection`) that only training sees; KNN reads the penultimate features e(x).
    The head learns by cross-entropy on e(v) cut off from the gradient (term "probe"): it supplies the accuracy
    without touching the features. SupContrast probes after training instead.

    weight      SupContrast multiplies its loss by τ/0.07: that is weight = 1.43 at τ = 0.1
    crop, flip  smallest share of the area in a view, probability of a flip; colours as in `Views`

    The views are made here, of raw images, so the recipe's own augmentation is `none`. On several ranks each
    contrasts the views of its own images.
    """

    needs_outliers = False
    recordable = False  # `Views` draws the order of its colour changes on the host
    score = "knn"
    paper = (
        "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020; "
        "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022"
    )
    project: nn.Module

    def __init__(
        self,
        temperature: float = 0.1,
        projection: int = 128,
        weight: float = 1.0,
        crop: float = 0.2,
        flip: float = 0.5,
    ) -> None:
        super().__init__()
        self.temperature, self.projection, self.weight = temperature, projection, weight
        self.views = Views(crop=crop, flip=flip)

    def prepare(self, net: Net) -> None:
        self.project = projector(net.num_features, self.projection)

    def loss(self, net: Net, batch: Batch) -> Terms:
        z = net.embed(torch.cat([self.views(batch.x), self.views(batch.x)]))
        y = batch.y.repeat(2)
        apart = contrastive(self.project(z), y, self.temperature).mean()
        return {"supcon": self.weight * apart, "probe": F.cross_entropy(net.head(z.detach()), y)}


def projector(width: int, out: int) -> nn.Sequential:
    """The projection g of contrastive methods: D -> D, ReLU, D -> out."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))
