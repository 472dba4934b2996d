"""A score over features as a scikit-learn outlier detector."""

from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import nn

from farout.components import make
from farout.data.arrays import ArraySet
from farout.errors import FaroutError
from farout.nets.net import Net
from farout.scores import SCORES, Embedded, Score
from farout.scores.embed import score_embedded
from farout.types import Outputs

Array = npt.NDArray[Any]

FEATURE_SCORES = ("knn", "mahalanobis")
"""The scores of farout.scores that need features and no logits."""


class FeatureDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Novelty detection by a feature score fitted on ID rows: +1 for in-distribution, −1 for outliers.

    ood_score      "knn" or "mahalanobis"
    options        the score's own arguments, e.g. {"k": 5}; by default k is 50, or fewer for fewer rows
    contamination  share of the training rows that comes out as outliers: it places offset_

    Labels given to `fit` are the classes of "mahalanobis"; without them all rows are one class. "knn" ignores them.
    decision_function(x) = score_samples(x) − offset_; higher = more in-distribution.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "ood_score": [StrOptions(set(FEATURE_SCORES))],
        "options": [None, Mapping],
        "contamination": [Interval(Real, 0, 0.5, closed="right")],
    }

    def __init__(
        self, ood_score: str = "knn", *, options: Mapping[str, Any] | None = None, contamination: float = 0.05
    ) -> None:
        self.ood_score = ood_score
        self.options = options
        self.contamination = contamination

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the score on ID rows `X` (N, D), and place the offset on their scores."""
        self._validate_params()
        X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        embedded = _embedded(X, None if y is None else _numbered(X, y))
        try:
            fitted = self._made(len(X)).fit(_no_net(), embedded)
        except FaroutError as error:
            raise ValueError(f"{type(self).__name__} with ood_score {self.ood_score!r}: {error}") from error
        self._buffers = {name: buffer.numpy() for name, buffer in fitted.named_buffers()}
        self._k = getattr(fitted, "k", None)
        self.offset_ = float(np.percentile(self._scores(X), 100 * self.contamination))
        return self

    def score_samples(self, X: Any) -> Array:
        """The score of each row (N,): higher = more in-distribution."""
        check_is_fitted(self)
        return self._scores(validate_data(self, X, dtype=(np.float64, np.float32), reset=False))

    def decision_function(self, X: Any) -> Array:
        """score_samples less offset_ (N,): negative for outliers."""
        return np.asarray(self.score_samples(X) - self.offset_)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """+1 for in-distribution, −1 for outliers (N,)."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def _made(self, rows: int) -> Score:
        options = dict(self.options or {})
        if self.ood_score == "knn":
            options.setdefault("k", min(50, rows))
        return make("score", SCORES, {"name": self.ood_score, **options})

    def _scores(self, X: Array) -> Array:
        # Kept as arrays and put into a score again here, so that the estimator's pickle holds no torch objects.
        score = self._made(self._k or len(X))
        score.restore({name: torch.from_numpy(array) for name, array in self._buffers.items()})
        return np.asarray(score_embedded(_no_net(), score, _embedded(X, None)).double().numpy())


def _numbered(X: Array, y: Any) -> Array:
    """Labels of any kind as 0 .. K − 1."""
    labels = column_or_1d(check_array(y, ensure_2d=False, dtype=None))
    check_consistent_length(X, labels)
    return np.unique(labels, return_inverse=True)[1]


def _no_net() -> Net:
    """The features are the input; no score here reads logits."""
    return Net(nn.Identity(), nn.Identity())


def _embedded(X: Array, labels: Array | None) -> Embedded:
    features = torch.from_numpy(np.ascontiguousarray(X))
    marks = torch.zeros(len(X), dtype=torch.int64) if labels is None else torch.from_numpy(labels.astype(np.int64))
    return Embedded(Outputs(features, features), marks, ArraySet("rows", features, marks))
