"""The score of networks with an outlier class beside the K classes."""

import torch
from torch import Tensor

from farout.errors import ConfigError
from farout.scores.base import Score
from farout.types import Outputs


class OutlierClass(Score):
    """s = LSE_{k ≤ K} f_k(x) − f_{K+1}(x), the log-odds against the outlier class, which is the last of K + 1.

    Higher = more in-distribution; (B, K + 1) -> (B,). ATOM's released score is −p_{K+1}: s is its log-odds, ranks
    alike, and does not saturate at 0 and 1.
    """

    paper = "Chen et al., ATOM: Robustifying Out-of-Distribution Detection Using Outlier Mining, ECML PKDD 2021"

    def forward(self, out: Outputs) -> Tensor:
        if out.logits.shape[1] < 2:
            raise ConfigError(f"OutlierClass needs K + 1 logits, the last for outliers, got {out.logits.shape[1]}")
        return torch.logsumexp(out.logits[:, :-1], dim=1) - out.logits[:, -1]
