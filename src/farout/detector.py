"""The thing to ship: preprocessing, a network, a score and a threshold that turn raw images into verdicts."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from farout.calibration import (
    REMEMBERED,
    conformal_threshold,
    fingerprints,
    fit_temperature,
    p_values,
    refuse_trained_on,
    set_fingerprint,
    thinned,
)
from farout.card import model_card
from farout.components import make
from farout.data.as_set import as_set
from farout.data.image_files import Size
from farout.data.source import ImageSet
from farout.errors import CheckpointError, FaroutError, NotFittedError
from farout.metrics import threshold_at_tpr
from farout.nets.make import make_net
from farout.nets.net import Net, Normalise
from farout.preprocess import Preprocess
from farout.scores import SCORES, Score, spec_of
from farout.scores.embed import device_of, embed, evaluating, score_embedded
from farout.training.checkpoint import write_atomically
from farout.untrusted import check_net, check_types, check_words, try_score

T = TypeVar("T")

FORMAT = 2
READABLE = (1, 2)
"""Format 1 had neither calibration scores nor temperature nor fingerprints; such a detector has no p-values."""
OWN_KEYS = (
    *("format", "farout", "net", "score", "classes", "size", "threshold", "temperature", "higher_is"),
    *("normalisation", "resize", "calibrated_on"),
)


class Verdict(NamedTuple):
    """For each input: the most likely ID class, the score (higher = more in-distribution), and whether it is OOD."""

    label: Tensor
    score: Tensor
    is_ood: Tensor


class Judgement(NamedTuple):
    """A verdict with its p-value (B,), NaN without calibration scores, and class probabilities (B, K)."""

    label: Tensor
    score: Tensor
    is_ood: Tensor
    p_value: Tensor
    probabilities: Tensor


class Detector(nn.Module):
    """is_ood(x) = [s(x) < λ], with λ such that a share `tpr` of held-out ID data stays in.

    >>> detector = Detector(net, MSP()).fit(train, held_out, tpr=0.95)      # doctest: +SKIP
    >>> detector(images).is_ood                                             # doctest: +SKIP

    `size` is the side of the images, or (resize, crop); raw images of any size are then brought to it inside. None
    passes the input on as it comes (embeddings, tensors that were prepared elsewhere).
    """

    threshold: Tensor  # () λ
    temperature: Tensor  # () T of the class probabilities
    calibration: Tensor  # (n,) sorted scores of the calibration set; empty before it
    remembered: Tensor  # fingerprints of training samples

    def __init__(self, net: Net, score: Score, *, classes: Sequence[str] = (), size: Size | None = None) -> None:
        super().__init__()
        self.net, self.score = net, score
        self.classes = tuple(classes)
        self.size = size
        self.prepare = nn.Identity() if size is None else Preprocess(*_sides(size), channels=channels_of(net))
        self.about: dict[str, Any] = {}
        self.calibrated_on: dict[str, Any] = {}
        home = device_of(net)
        self.register_buffer("threshold", torch.tensor(math.nan, dtype=torch.float64, device=home))
        self.register_buffer("temperature", torch.tensor(1.0, dtype=torch.float64, device=home))
        self.register_buffer("calibration", torch.empty(0, dtype=torch.float64, device=home))
        self.register_buffer("remembered", torch.empty(0, dtype=torch.int64, device=home))

    def fit(self, train: Any, held_out: Any, tpr: float = 0.95) -> Self:
        """Fit the score on ID training data and the threshold on held-out ID data.

        Each may be a set, a tensor of samples, or a pair (samples, labels); `train` may be None if the score
        needs no fit. Held-out data must not have been trained on, or the threshold is too high.
        """
        if not 0 < tpr <= 1:
            raise ValueError(f"tpr must lie in (0, 1], got {tpr}")
        if train is not None:
            self.remember(train)
        if self.score.needs_fit:
            if train is None:
                raise ValueError(f"{type(self.score).__name__} is fitted on ID training data; train is None")
            self.score.fit(self.net, embed(self.net, _Prepared(as_set(train), self.prepare)))
        return self.calibrate(held_out, tpr=tpr)

    def remember(self, train: Any) -> Self:
        """Keep the fingerprints of up to 2048 training samples, evenly spaced, to know them again in `calibrate`."""
        samples = as_set(train)
        rows = torch.linspace(0, len(samples) - 1, min(len(samples), REMEMBERED), dtype=torch.float64).round().long()
        parts = [fingerprints(self.prepare(samples.read(chunk)[0])) for chunk in rows.split(256)]
        self.remembered = torch.cat(parts).to(self.threshold.device)
        self.about["trained_on"] = {"set": samples.name, "count": len(samples)}
        return self

    @torch.no_grad()
    def calibrate(self, held_out: Any, *, tpr: float | None = None, alpha: float | None = None) -> Self:
        """Set threshold, calibration scores and temperature from ID data that nobody trained on.

        `tpr`    the largest threshold that keeps this share of the held-out data in (0.95 if neither is given)
        `alpha`  conformal: an ID input is flagged with probability at most alpha; see `farout.calibration`

        The temperature is fitted where every sample has a label. Data that was trained on is refused.
        """
        if tpr is not None and alpha is not None:
            raise ValueError(f"give tpr or alpha, not both; got tpr={tpr} and alpha={alpha}")
        samples = _Prepared(as_set(held_out), self.prepare)
        embedded = embed(self.net, samples)
        trained_on = self.about.get("trained_on", {}).get("count", 0)
        refuse_trained_on(samples.prints, self.remembered.cpu(), trained_on, samples.name)
        scores = score_embedded(self.net, self.score, embedded)
        kept = thinned(scores)
        if alpha is None:
            tpr = 0.95 if tpr is None else tpr
            self.threshold.fill_(threshold_at_tpr(id_scores=scores, tpr=tpr))
        else:
            self.threshold.fill_(conformal_threshold(scores.double().sort().values, alpha))
        self.calibration = kept.to(self.threshold.device)
        self._fit_temperature(embedded.outputs.logits, embedded.labels, samples)
        self.calibrated_on = {
            "set": samples.name,
            "count": len(scores),
            "fingerprint": set_fingerprint(samples.prints),
            **({"tpr": tpr} if alpha is None else {"alpha": alpha}),
        }
        return self.eval()

    def _fit_temperature(self, logits: Tensor, labels: Tensor, samples: "_Prepared") -> None:
        if self.score.uses_input:  # its logits may be its own: CSI's are a mean over rotations
            device = device_of(self.net)
            with evaluating(self.net):
                parts = (samples.read(rows)[0].to(device) for rows in torch.arange(len(labels)).split(500))
                logits = torch.cat([self.score.outputs(self.net, x).logits for x in parts])
        logits = logits[:, : len(self.classes) or None]
        if len(labels) and int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1] > 1:
            self.temperature.fill_(fit_temperature(logits, labels))

    def scores(self, samples: Any) -> Tensor:
        """The score of every sample of a set, a tensor or a pair: (N,), higher = more in-distribution."""
        return score_embedded(self.net, self.score, embed(self.net, _Prepared(as_set(samples), self.prepare)))

    def forward(self, x: Tensor) -> Verdict:
        """Raw images, uint8 or float in [0, 1], (B, C, H, W) -> a verdict for each."""
        self.require_fit()
        logits, score = self.logits_and_score(x)
        return Verdict(logits.argmax(dim=1), score, score < self.threshold)

    def judge(self, x: Tensor) -> Judgement:
        """Everything there is to say of raw images, from one forward pass."""
        self.require_fit()
        return self.judgement(*self.logits_and_score(x))

    def judgement(self, logits: Tensor, score: Tensor) -> Judgement:
        p_value = p_values(self.calibration, score) if len(self.calibration) else torch.full_like(score, math.nan)
        probabilities = torch.softmax(logits / self.temperature.to(logits.dtype), dim=1)
        return Judgement(logits.argmax(dim=1), score, score < self.threshold, p_value, probabilities)

    def p_value(self, score: Tensor) -> Tensor:
        """p(s) = (1 + #{calibration scores <= s}) / (n + 1) in float64: under ID data P(p <= α) <= α."""
        if not len(self.calibration):
            raise NotFittedError("the detector carries no calibration scores; run fit or calibrate first")
        return p_values(self.calibration, score.to(self.calibration.device))

    def probabilities(self, x: Tensor) -> Tensor:
        """softmax(f(x)/T) over the ID classes (B, K), T from `calibrate`; they say nothing of being OOD."""
        return self.judge(x).probabilities

    @torch.no_grad()
    def logits_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits (B, K) and score (B,), without a check that all was fitted: what exports trace."""
        x = self.prepare(x)
        plain = self.score.outputs(self.net, x) if self.score.uses_input else self.net(x)
        # The label is the network's own: a score that clips features for its own ends must not change it.
        score = self.score(plain if self.score.uses_input else self.score.adjust(self.net, plain)).detach()
        return self._logits(plain), score

    def _logits(self, plain: Any) -> Tensor:
        logits: Tensor = plain.logits[:, : len(self.classes)] if self.classes else plain.logits
        return logits

    def require_fit(self) -> None:
        """Raise unless score and threshold are there."""
        self.score.require_fit()
        if torch.isnan(self.threshold):
            raise NotFittedError("the detector has no threshold; call fit(train, held_out) first")

    def card(self) -> dict[str, Any]:
        """What `detector.json` says: all that is not a tensor."""
        from farout import __version__

        normalise = self.net.normalise
        plain = isinstance(normalise, Normalise)
        return {
            "format": FORMAT,
            "farout": __version__,
            "net": self.net.spec,
            "score": spec_of(self.score),
            "classes": list(self.classes),
            "size": list(self.size) if isinstance(self.size, (tuple, list)) else self.size,
            "resize": None if self.size is None else "shorter side, bilinear with antialiasing, then the centre",
            "normalisation": {k: getattr(normalise, k).flatten().tolist() for k in ("mean", "std")} if plain else None,
            "threshold": self.threshold.item(),
            "temperature": self.temperature.item(),
            "higher_is": "in-distribution",
            "licence": None,
            "calibrated_on": self.calibrated_on,
            **self.about,
        }

    def save(self, folder: str | Path) -> Path:
        """Write `model.safetensors`, `README.md` (the model card) and `detector.json`.

        The latter comes last, so that a folder which has it is whole.
        """
        folder, card = Path(folder), self.card()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        write_atomically(folder / "model.safetensors", lambda file: _write(file, save_tensors(tensors)))
        write_card(folder, card)
        return folder

    @classmethod
    def load(cls, folder: str | Path, net: Net | None = None) -> Self:
        """Read a saved detector; `net` gives the architecture where it was the user's own model."""
        folder = Path(folder)
        card = read_card(folder)
        tensors = read_tensors(folder / "model.safetensors")
        if net is None:
            if card["net"] is None:
                raise CheckpointError(
                    f"{folder} was saved from a network that is not in farout's tables; "
                    "pass it: Detector.load(folder, net=split(your_model))"
                )
            net = _rebuilt(lambda: make_net(check_net(card["net"], tensors, folder)), folder)
        check_words(card["classes"], card["size"], net, folder)
        size = tuple(card["size"]) if isinstance(card["size"], list) else card["size"]
        score = _rebuilt(lambda: make("score", SCORES, card["score"]), folder)
        detector = cls(net, score, classes=card["classes"], size=size)
        fitted = {name.removeprefix("score."): tensors.pop(name) for name in list(tensors) if name.startswith("score.")}
        detector.score.restore(fitted)
        try_score(net, detector.score, folder)
        _load_rest(detector, tensors, folder, card["format"])
        known = card.get("calibrated_on")
        detector.calibrated_on = dict(known) if isinstance(known, dict) else {}
        detector.about = {key: value for key, value in card.items() if key not in OWN_KEYS and value is not None}
        return detector.eval()


class _Prepared:
    """A set as the detector's network sees it; keeps the fingerprint of every sample that was read."""

    def __init__(self, samples: ImageSet, prepare: nn.Module) -> None:
        self.samples, self.prepare_batch = samples, prepare
        self.name, self.classes = samples.name, samples.classes
        self.prints = torch.zeros(len(samples), dtype=torch.int64)

    @property
    def labels(self) -> Tensor | None:
        return self.samples.labels

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.samples.read(indices)
        x = self.prepare_batch(x)
        self.prints[indices] = fingerprints(x)
        return x, y


def _rebuilt(build: Callable[[], T], folder: Path) -> T:
    """What an entry of detector.json describes, or an error that names the file."""
    try:
        return build()
    except FaroutError:
        raise
    except Exception as error:  # an entry that was written by hand, or forged, may lead anywhere
        raise CheckpointError(
            f"{folder / 'detector.json'} describes nothing that can be built ({type(error).__name__}: {error})"
        ) from None


def channels_of(net: Net) -> int | None:
    """How many channels the network takes, where its normaliser tells."""
    mean = getattr(net.normalise, "mean", None)
    return None if mean is None else len(mean)


def _sides(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """`README.md`, then `detector.json`."""
    write_atomically(folder / "README.md", lambda file: _write(file, model_card(card).encode()))
    text = json.dumps(card, indent=2) + "\n"
    write_atomically(folder / "detector.json", lambda file: _write(file, text.encode()))


def record_metrics(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put evaluation rows into the card of the detector in `folder` (or in its `detector/`), if there is one."""
    folder = folder / "detector" if (folder / "detector").is_dir() else folder
    if (folder / "detector.json").is_file():
        write_card(folder, {**read_card(folder), "metrics": [dict(row) for row in rows]})


def read_card(folder: Path) -> dict[str, Any]:
    """A detector's `detector.json`, checked."""
    path = folder / "detector.json"
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a detector: it has no detector.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(card, dict) or card.get("format") not in READABLE:
        found = card.get("format") if isinstance(card, dict) else type(card).__name__
        raise CheckpointError(
            f"{path} has format {found!r}; this version of farout reads formats {', '.join(map(str, READABLE))}"
        )
    missing = {"net", "score", "classes", "size"} - set(card)
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(sorted(missing))}")
    return card


def _write(file: Any, content: bytes) -> None:
    file.write(content)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, read whole."""
    try:
        return dict(load_tensors(path.read_bytes()))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; the detector was not saved whole") from None
    except Exception as error:  # safetensors raises its own type for damaged files
        raise CheckpointError(f"{path} is damaged ({error})") from None


def _load_rest(detector: Detector, tensors: dict[str, Tensor], folder: Path, format: int) -> None:
    """Everything but the score's own buffers; names and shapes must match the architecture."""
    grows = ("calibration", "remembered")  # their sizes come from the data
    new = ("temperature", *grows)
    own = {name for name in detector.state_dict() if not name.startswith("score.")}
    if format == 1:
        own -= set(new)
    if own != set(tensors):
        raise CheckpointError(
            f"{folder} does not fit its architecture: missing {sorted(own - set(tensors))[:5]}, "
            f"unexpected {sorted(set(tensors) - own)[:5]}"
        )
    check_types(detector.state_dict(), tensors, folder)
    for name in grows:
        if name in tensors:
            if tensors[name].ndim != 1:
                raise CheckpointError(f"{folder}: {name} has the shape {tuple(tensors[name].shape)}, expected (n,)")
            detector.register_buffer(name, tensors.pop(name).to(getattr(detector, name).dtype))
    try:
        detector.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise CheckpointError(f"{folder} does not fit its architecture: {error}") from None
