"""A method and a score of your own, without a fork: this one file is a plugin.

    farout --plugin examples/own_method.py list methods
    farout --plugin examples/own_method.py train demo/oe method.name=margin method.weight=0.5
    farout --plugin examples/own_method.py compare oe,margin,margin:gap --protocol demo --seeds 5 --jobs 2
    farout --plugin examples/own_method.py tune demo/oe method.name=margin --space margin.yaml

`export FAROUT_PLUGINS=examples/own_method.py` saves the option; in Python it is `farout.load_plugin(...)`. The keys of
METHODS and SCORES are the names; constructor arguments with plain annotations are all the configuration there is.
"""

import torch.nn.functional as F
from torch import Tensor

from farout.methods import Method, forward_pair
from farout.nets import Net
from farout.scores import Score
from farout.types import Batch, Outputs, Terms


class Margin(Method):
    """mean CE(ID) + weight · mean relu(max_k f_k(x_out) − margin)."""

    paper = "You, Your Paper, 2027"
    score = "max-logit"

    def __init__(self, weight: float = 0.1, margin: float = 1.0) -> None:
        super().__init__()
        self.weight, self.margin = weight, margin

    def loss(self, net: Net, batch: Batch) -> Terms:
        inlier, outlier = forward_pair(net, batch)
        excess = (outlier.logits.amax(dim=1) - self.margin).clamp_min(0)
        return {"ce": F.cross_entropy(inlier.logits, batch.y), "margin": self.weight * excess.mean()}


class Gap(Score):
    """s = f_(1)(x) − f_(2)(x), how far the largest logit is ahead of the second; higher = more in-distribution."""

    def forward(self, out: Outputs) -> Tensor:
        first, second = out.logits.topk(2, dim=-1).values.unbind(dim=-1)
        return first - second


METHODS = {"margin": Margin}
SCORES = {"gap": Gap}
