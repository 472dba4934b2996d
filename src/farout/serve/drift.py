"""Whether what comes in still looks like what the detector was calibrated on."""

from collections import deque
from typing import NamedTuple

from scipy.stats import ks_2samp
from torch import Tensor

FEWEST = 20


class DriftReport(NamedTuple):
    """The recent scores beside the calibration scores; None where there is nothing to compare."""

    seen: int
    ood_share: float | None
    expected_ood_share: float | None
    ks_statistic: float | None
    p_value: float | None


class Drift:
    """Two-sample Kolmogorov-Smirnov test of the last `window` scores against the calibration scores.

    D = sup_s |F_recent(s) - F_calibration(s)|, 0 = the same, 1 = apart; p under the hypothesis that both are draws
    from one distribution. Every look is a test of its own: alarm on a small p (1e-3 or less) that stays.
    """

    def __init__(self, calibration: Tensor, threshold: float, window: int = 1000) -> None:
        if window < FEWEST:
            raise ValueError(f"a drift window needs at least {FEWEST} scores, got {window}")
        self.calibration = calibration.detach().cpu().double().numpy()
        self.expected = float((self.calibration < threshold).mean()) if len(self.calibration) else None
        self.recent: deque[tuple[float, bool]] = deque(maxlen=window)

    def add(self, score: float, is_ood: bool) -> None:
        self.recent.append((score, is_ood))

    def report(self) -> DriftReport:
        count = len(self.recent)
        share = sum(is_ood for _, is_ood in self.recent) / count if count else None
        if count < FEWEST or not len(self.calibration):
            return DriftReport(count, share, self.expected, None, None)
        # The exact p-value takes seconds for large calibration sets; the asymptotic one is close from 20 scores on.
        test = ks_2samp([score for score, _ in self.recent], self.calibration, method="asymp")
        return DriftReport(count, share, self.expected, float(test.statistic), float(test.pvalue))
