"""Cross-entropy: the plain classifier that every post-hoc score starts from (the paper's "ERM")."""

import torch.nn.functional as F

from farout.methods.base import Method
from farout.nets.net import Net
from farout.types import Batch, Terms


class CE(Method):
    """R_I = mean −log softmax_y(f(x)) over ID data only."""

    needs_outliers = False
    paper = "Hendrycks and Gimpel, A Baseline for Detecting Misclassified and OOD Examples, ICLR 2017"

    def loss(self, net: Net, batch: Batch) -> Terms:
        return {"ce": F.cross_entropy(net(batch.x).logits, batch.y)}
