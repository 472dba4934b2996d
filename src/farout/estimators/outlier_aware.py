"""What linear classifiers that know their outliers share: scikit-learn's contract around the training of a probe."""

from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from farout.estimators.probe import Adam, Moments, OutlierRisk, Probe, one_epoch, shuffled
from farout.estimators.rows import Rows
from farout.estimators.scaling import Scaling
from farout.metrics import threshold_at_tpr
from farout.scores import SCORES
from farout.seeds import generator
from farout.training.optim import constant, cosine
from farout.types import Outputs

Array = npt.NDArray[Any]

LOGIT_SCORES = ("msp", "max-logit", "energy", "gen")
"""The scores of farout.scores that need nothing but logits."""


class OutlierAwareClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Multinomial logistic regression with a risk on auxiliary outliers, which subclasses give by `_risk`."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "alpha": [Interval(Real, 0, None, closed="left")],
        "ood_score": [StrOptions(set(LOGIT_SCORES))],
        "tpr": [Interval(Real, 0, 1, closed="right")],
        "held_out": [Interval(Real, 0, 1, closed="left")],
        "epochs": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "batch_size_out": [None, Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "l2": [Interval(Real, 0, None, closed="left")],
        "standardise": ["boolean"],
        "random_state": ["random_state"],
    }
    _moments: Moments | None = None

    def __init__(
        self,
        *,
        alpha: float = 0.5,
        ood_score: str = "msp",
        tpr: float = 0.95,
        held_out: float = 0.1,
        epochs: int = 30,
        batch_size: int | str = "auto",
        batch_size_out: int | None = None,
        learning_rate: float = 0.01,
        l2: float = 1e-3,
        standardise: bool = True,
        random_state: Any = None,
    ) -> None:
        self.alpha = alpha
        self.ood_score = ood_score
        self.tpr = tpr
        self.held_out = held_out
        self.epochs = epochs
        self.batch_size = batch_size
        self.batch_size_out = batch_size_out
        self.learning_rate = learning_rate
        self.l2 = l2
        self.standardise = standardise
        self.random_state = random_state

    def fit(self, X: Any, y: Any, X_out: Any = None) -> Self:
        """Train on ID rows `X` (N, D) with labels `y` (N,), and on auxiliary outliers `X_out` (M, D) if there are any.

        A share `held_out` of the ID rows is kept from training, and the threshold of `is_outlier` is placed on it.
        """
        X, y = self._checked(X, y, reset=True)
        X_out = self._outliers(X_out)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs at least two classes; y has only one class, {y[0]!r}")
        self._draw_seed()
        train, held = self._split(X.shape[0])
        kept, labels = (X[train], labels[train]) if len(held) else (X, labels)
        self._begin(kept)
        self._descend(self._scaling.apply(kept), labels, X_out, self.epochs, cosine)
        self._moments = None  # only partial_fit goes on from them
        return self._place_threshold(self._linear(X[held] if len(held) else kept), self.tpr)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, X_out: Any = None) -> Self:
        """One pass over these rows, at a constant learning rate; `classes` lists all labels at the first call.

        The first call also fixes the scaling. No threshold is placed: call `calibrate` with held-out ID rows.
        """
        first = not hasattr(self, "classes_")
        X, y = self._checked(X, y, reset=first)
        X_out = self._outliers(X_out)
        self._set_classes(classes, first)
        if first:
            self._draw_seed()
            self._begin(X)
        self._descend(self._scaling.apply(X), self._encoded(y), X_out, 1, constant)
        self.__dict__.pop("threshold_", None)  # it was another classifier's
        return self

    def calibrate(self, X: Any, tpr: float | None = None) -> Self:
        """Place the threshold so that a share `tpr` of the ID rows `X` stays in; rows that were not trained on."""
        return self._place_threshold(self._logits(X), self.tpr if tpr is None else tpr)

    def decision_function(self, X: Any) -> Array:
        """Logits (N, K); with two classes (N,), the second's less the first's."""
        logits = self._logits(X)
        return np.asarray(logits[:, 1] - logits[:, 0]) if len(self.classes_) == 2 else logits

    def predict(self, X: Any) -> Array:
        """The most likely ID class of each row (N,), outlier or not."""
        best = self._logits(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """Softmax probabilities (N, K), in the order of `classes_`."""
        return np.asarray(softmax(self._logits(X), axis=1))

    def score_samples(self, X: Any) -> Array:
        """The score of each row (N,): higher = more in-distribution."""
        return self._scores(self._logits(X))

    def is_outlier(self, X: Any) -> npt.NDArray[np.bool_]:
        """Whether each row scores below the threshold (N,)."""
        check_is_fitted(self)
        if not hasattr(self, "threshold_"):
            raise ValueError(f"this {type(self).__name__} has no threshold yet; call calibrate with held-out ID rows")
        if self.ood_score != self._threshold_of:
            raise ValueError(
                f"the threshold is one of {self._threshold_of!r}, but ood_score is now {self.ood_score!r}; "
                "call calibrate with held-out ID rows"
            )
        return np.asarray(self.score_samples(X) < self.threshold_)

    def _place_threshold(self, logits: Array, tpr: float) -> Self:
        self.threshold_ = threshold_at_tpr(id_scores=self._scores(logits), tpr=tpr)
        self._threshold_of = self.ood_score
        return self

    def _risk(self) -> OutlierRisk:
        raise TypeError(f"{type(self).__name__} does not define _risk")

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Any, Array]:
        self._validate_params()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32), reset=reset)
        check_classification_targets(y)
        return X, y

    def _rows(self, X: Any) -> Any:
        return validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)

    def _outliers(self, X_out: Any) -> Any:
        """The auxiliary outliers, checked against the features of X; None where there are none."""
        if X_out is None:
            return None
        try:
            return self._rows(X_out)
        except ValueError as error:
            raise ValueError(f"X_out: {error}") from error

    def _draw_seed(self) -> None:
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))

    def _begin(self, X: Any) -> None:
        """Everything that training starts from."""
        self._scaling = Scaling.of(X, self.standardise)
        self._weights = tuple(part.numpy() for part in Probe.zeros(X.shape[1], len(self.classes_)))
        self._moments = None
        self.n_iter_ = 0

    def _split(self, rows: int) -> tuple[Array, Array]:
        """Rows to train on and rows held out, each in ascending order."""
        order = torch.randperm(rows, generator=generator(self._seed)).numpy()
        cut = int(self.held_out * rows)
        return np.sort(order[cut:]), np.sort(order[:cut])

    def _descend(self, x: Rows, labels: Array, X_out: Any, epochs: int, schedule: Any) -> None:
        """Train for some epochs from where the weights are, and keep what comes out as plain arrays."""
        z = None if X_out is None or not X_out.shape[0] else self._scaling.apply(X_out)
        y = torch.from_numpy(labels.astype(np.int64))
        probe, adam, risk = self._resumed()
        size = min(1024, max(16, len(x) // 30)) if self.batch_size == "auto" else int(self.batch_size)
        lr = schedule(self.learning_rate, -(-len(x) // size), epochs)
        for epoch in range(self.n_iter_, self.n_iter_ + epochs):
            order = generator(self._seed, epoch)
            batches = shuffled(x, y, z, size, self.batch_size_out, order)
            one_epoch(probe, adam, batches, risk, self.l2, lr)
        self._keep(probe, adam, risk)
        self.n_iter_ += epochs

    def _resumed(self) -> tuple[Probe, Adam, OutlierRisk]:
        probe = Probe(*(torch.from_numpy(part.copy()) for part in self._weights))
        return probe, Adam.resumed(self._moments) if self._moments else Adam.at_rest(probe), self._risk()

    def _keep(self, probe: Probe, adam: Adam, risk: OutlierRisk) -> None:
        self._weights = tuple(part.numpy() for part in probe)
        self._moments = adam.arrays()
        self.coef_, self.intercept_ = self._scaling.unscaled(probe)

    def _set_classes(self, classes: Any, first: bool) -> None:
        if first and classes is None:
            raise ValueError("classes must list every label at the first call of partial_fit")
        if first:
            self.classes_ = np.unique(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes are {np.unique(classes)!r}, but the first call said {self.classes_!r}")
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs at least two classes, got one class: {self.classes_!r}")

    def _encoded(self, y: Array) -> Array:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y holds {unknown[:5]!r}, which classes at the first call did not list")
        return np.searchsorted(self.classes_, y)

    def _logits(self, X: Any) -> Array:
        check_is_fitted(self)
        return self._linear(self._rows(X))

    def _linear(self, X: Any) -> Array:
        weight, bias = (part.astype(X.dtype, copy=False) for part in (self.coef_.T, self.intercept_))
        return np.asarray(X @ weight + bias)

    def _scores(self, logits: Array) -> Array:
        out = torch.from_numpy(logits)
        with torch.no_grad():
            return np.asarray(SCORES[self.ood_score]()(Outputs(out, out)).numpy())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
