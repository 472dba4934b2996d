"""Linear classifiers that know their outliers, as scikit-learn estimators: outlier exposure and DAL on embeddings."""

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from farout.estimators.outlier_aware import OutlierAwareClassifier
from farout.estimators.probe import Adam, OutlierRisk, PlainRisk, Probe, WorstRisk
from farout.worst_case import RULES, DualVariable


class OEClassifier(OutlierAwareClassifier):
    """Multinomial logistic regression that is made uniform on auxiliary outliers.

        min_W mean CE(x, y) + α mean ℓ_OE(x_out) + (l2/2)‖W‖²

    Without outliers it is plain multinomial logistic regression. Trained by Adam in float32 on mini-batches.

    alpha           weight of the outliers
    ood_score       what `score_samples` gives: "msp", "max-logit", "energy", "gen"
    tpr             share of ID rows that `is_outlier` keeps in
    held_out        share of the ID rows kept from training to place the threshold; 0 places it on training rows,
                    too high: then call `calibrate`
    epochs          passes over X
    batch_size      ID rows in a step; "auto" is a thirtieth of them, but 16 to 1024
    batch_size_out  outliers in a step; None for one pass over X_out an epoch, at most batch_size
    learning_rate   Adam's; falls to 0 as a cosine in `fit`, constant in `partial_fit`
    l2              penalty on the weights of scaled features
    standardise     dense: mean 0, variance 1 for each feature; sparse: one scale for all
    random_state    makes the result reproducible

    Learnt: classes_, coef_ (K, D), intercept_ (K,), threshold_, n_iter_, n_features_in_.
    """

    def _risk(self) -> OutlierRisk:
        return PlainRisk(self.alpha)


class DALClassifier(OutlierAwareClassifier):
    """Logistic regression made uniform on the worst case inside a Wasserstein ball around the auxiliary outliers.

        min_W mean CE(x, y) + α sup { E ℓ_OE : W_c(D', outliers) ≤ ρ } + (l2/2)‖W‖²        (farout.methods.dal)

    num_search  steps of the search
    ps          their length, in scaled features: dense rows are about √D long, and the released 1.0 costs ID accuracy
    rho         radius of the ball, in the units of the rule's cost
    beta        step of the dual variable γ;  gamma0, gamma_max: its start and cap
    rule        "reference" (the released code), "paper" (Algorithm 1), "proximal"; all start from p = 0 here

    The others are OEClassifier's. With the defaults γ falls to 0 at once and stays there, as in the released code, and
    the search is cheap; while γ > 0 it costs several times more and takes sparse batches as dense ones.

    Learnt: as OEClassifier, and gamma_.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **OutlierAwareClassifier._parameter_constraints,
        "num_search": [Interval(Integral, 0, None, closed="left")],
        "ps": [Interval(Real, 0, None, closed="left")],
        "rho": [Interval(Real, 0, None, closed="left")],
        "beta": [Interval(Real, 0, None, closed="left")],
        "gamma0": [Interval(Real, 0, None, closed="left")],
        "gamma_max": [Interval(Real, 0, None, closed="left")],
        "rule": [StrOptions(set(RULES))],
    }
    _gamma: float | None = None

    def __init__(
        self,
        *,
        alpha: float = 0.5,
        num_search: int = 10,
        ps: float = 0.1,
        rho: float = 10.0,
        beta: float = 0.01,
        gamma0: float = 0.01,
        gamma_max: float = 10.0,
        rule: str = "reference",
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
        super().__init__(
            alpha=alpha,
            ood_score=ood_score,
            tpr=tpr,
            held_out=held_out,
            epochs=epochs,
            batch_size=batch_size,
            batch_size_out=batch_size_out,
            learning_rate=learning_rate,
            l2=l2,
            standardise=standardise,
            random_state=random_state,
        )
        self.num_search = num_search
        self.ps = ps
        self.rho = rho
        self.beta = beta
        self.gamma0 = gamma0
        self.gamma_max = gamma_max
        self.rule = rule

    @property
    def gamma_(self) -> float:
        """The dual variable after training."""
        check_is_fitted(self)
        return self._price()

    def _price(self) -> float:
        return self.gamma0 if self._gamma is None else self._gamma

    def _begin(self, X: Any) -> None:
        super()._begin(X)
        self._gamma = None

    def _risk(self) -> WorstRisk:
        rule = replace(RULES[self.rule], start="zero", start_scale=0.0)
        dual = DualVariable(self.rho, self.beta, self._price(), self.gamma_max)
        return WorstRisk(self.alpha, rule, self.num_search, self.ps, dual)

    def _keep(self, probe: Probe, adam: Adam, risk: OutlierRisk) -> None:
        super()._keep(probe, adam, risk)
        assert isinstance(risk, WorstRisk)
        self._gamma = float(risk.dual.gamma)
