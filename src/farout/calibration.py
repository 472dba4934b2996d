"""Thresholds that keep a promise: conformal p-values, a budget of false alarms, a temperature, and who saw what.

With calibration scores c_1 .. c_n of ID data that nobody trained on, and s the score of a new ID sample, exchangeable
with them:  p(s) = (1 + #{c_i <= s}) / (n + 1)  and  P(p(s) <= α) <= α for every n and every α, whatever the network.
The guarantee is on average over calibration sets, and only for inputs from where the calibration set came.
"""

import hashlib
import math
from fractions import Fraction

import torch
from torch import Tensor

from farout.errors import DataError

KEPT = 100_000
"""Calibration scores that a detector carries, at most (800 kB); a longer list is thinned at random, and stays valid."""
REMEMBERED = 2048
"""Training samples whose fingerprints a detector carries (16 kB)."""


def p_values(calibration: Tensor, scores: Tensor) -> Tensor:
    """p(s) = (1 + #{c_i <= s}) / (n + 1): sorted (n,), any shape -> that shape in float64; small = not ID.

    >>> p_values(torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.tensor([0.0, 2.5, 9.0]))
    tensor([0.2000, 0.6000, 1.0000], dtype=torch.float64)
    """
    scores = scores.to(calibration.dtype).contiguous()
    if torch.compiler.is_compiling():  # ONNX has no searchsorted
        below = (calibration <= scores.unsqueeze(-1)).sum(dim=-1)
    else:
        below = torch.searchsorted(calibration, scores, right=True)
    return (below + 1).to(calibration.dtype) / (len(calibration) + 1)


def conformal_threshold(calibration: Tensor, alpha: float) -> float:
    """λ with s < λ exactly where p(s) <= α: the ⌊α(n + 1)⌋-th smallest calibration score.

    Refuses an α below 1/(n + 1), which no p-value can reach: it says how many samples would do.

    >>> conformal_threshold(torch.arange(1.0, 100.0), 0.05)
    5.0
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha, the share of ID data that may be flagged, must lie between 0 and 1, got {alpha}")
    exact = Fraction(repr(float(alpha)))  # 0.05 is 1/20, not the nearest double
    rank, count = math.floor(exact * (len(calibration) + 1)), len(calibration)
    if rank < 1:
        raise DataError(
            f"a false-alarm rate of {alpha:g} needs at least {math.ceil(1 / exact) - 1:,} calibration samples that "
            f"were not trained on, got {count:,}; bring more, or allow at least {1 / (count + 1):.3g}"
        )
    return float(calibration[rank - 1])


def false_alarm_rate(alarms_per_day: float, images_per_day: float) -> float:
    """α = alarms / images: what a budget of false alarms a day leaves for each ID image.

    >>> false_alarm_rate(10, 1e6)
    1e-05
    """
    if not (alarms_per_day > 0 and images_per_day > 0):
        raise ValueError(
            f"a budget takes positive rates, got {alarms_per_day} alarms and {images_per_day} images a day"
        )
    if alarms_per_day >= images_per_day:
        raise ValueError(
            f"a budget of {alarms_per_day:g} alarms on {images_per_day:g} images a day flags nothing or everything"
        )
    return alarms_per_day / images_per_day


def thinned(scores: Tensor, keep: int = KEPT) -> Tensor:
    """Calibration scores as they are kept: float64, sorted, at most `keep`, drawn by a fixed seed."""
    scores = scores.detach().cpu().double()
    if bool(scores.isnan().any()):
        raise DataError(f"{int(scores.isnan().sum())} of {len(scores)} calibration scores are NaN; find their cause")
    if len(scores) > keep:
        scores = scores[torch.randperm(len(scores), generator=torch.Generator().manual_seed(0))[:keep]]
    return scores.sort().values


def fit_temperature(logits: Tensor, labels: Tensor, low: float = 0.05, high: float = 20.0) -> float:
    """T that minimises the mean of −log softmax_y(f(x)/T) on held-out labelled data: (N, K), (N,) -> T in [low, high].

    The loss is convex in 1/T, hence has one valley in log T, which golden sections find. Class probabilities become
    calibrated; labels and scores do not change. Where every sample is right, T runs to `low`.
    """
    logits, labels = logits.detach().cpu().double(), labels.detach().cpu()

    def nll(log_t: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits / math.exp(log_t), labels))

    ratio = (math.sqrt(5) - 1) / 2
    left, right = math.log(low), math.log(high)
    a, b = right - ratio * (right - left), left + ratio * (right - left)
    at_a, at_b = nll(a), nll(b)
    while right - left > 1e-6:
        if at_a <= at_b:
            right, b, at_b = b, a, at_a
            a = right - ratio * (right - left)
            at_a = nll(a)
        else:
            left, a, at_a = a, b, at_b
            b = left + ratio * (right - left)
            at_b = nll(b)
    return math.exp((left + right) / 2)


def fingerprints(samples: Tensor) -> Tensor:
    """A 64-bit hash of each sample's bytes: (B, ...) -> int64 (B,)."""
    rows = samples.detach().cpu().contiguous().flatten(1).numpy()
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows]
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests], dtype=torch.int64)


def set_fingerprint(prints: Tensor) -> str:
    """One hash of a whole set, from the fingerprints of its samples in their order."""
    return hashlib.blake2b(prints.numpy().tobytes(), digest_size=16).hexdigest()


def refuse_trained_on(prints: Tensor, remembered: Tensor, trained_on: int, name: str) -> None:
    """A DataError if more than about one in twenty of the samples `prints` was trained on.

    A detector remembers `remembered` out of `trained_on` training samples; if all n samples were among them, about
    n · remembered / trained_on would be recognised. A twentieth of that is let pass: public sets hold duplicates.
    """
    if not len(remembered):
        return
    hits = int(torch.isin(prints, remembered).sum())
    if hits > 0.05 * len(prints) * len(remembered) / max(trained_on, 1):
        raise DataError(
            f"the detector was trained on {name}: {hits} of its {len(prints)} samples are among the {len(remembered)} "
            f"of {trained_on} training samples that it remembers. Scores of training data are too high for a "
            "threshold; calibrate on ID data that was held out"
        )
