"""The thing to ship: a network, a score and a threshold that turn raw images into verdicts."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from farout.components import make
from farout.data.as_set import as_set
from farout.errors import CheckpointError, NotFittedError
from farout.metrics import threshold_at_tpr
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.scores import SCORES, Score, spec_of
from farout.scores.embed import embed, score_embedded
from farout.training.checkpoint import write_atomically

FORMAT = 1


class Verdict(NamedTuple):
    """For each input: the most likely ID class, the score (higher = more in-distribution), and whether it is OOD."""

    label: Tensor
    score: Tensor
    is_ood: Tensor


class Detector(nn.Module):
    """is_ood(x) = [s(x) < λ], with λ such that a share `tpr` of held-out ID data stays in.

    >>> detector = Detector(net, MSP()).fit(train, held_out, tpr=0.95)      # doctest: +SKIP
    >>> detector(images).is_ood                                             # doctest: +SKIP
    """

    threshold: Tensor

    def __init__(self, net: Net, score: Score, *, classes: Sequence[str] = (), size: int | None = None) -> None:
        super().__init__()
        self.net, self.score = net, score
        self.classes = tuple(classes)
        self.size = size
        self.about: dict[str, Any] = {}
        self.register_buffer("threshold", torch.tensor(math.nan, dtype=torch.float64))

    def fit(self, train: Any, held_out: Any, tpr: float = 0.95) -> Self:
        """Fit the score on ID training data and the threshold on held-out ID data.

        Each may be a set, a tensor of samples, or a pair (samples, labels); `train` may be None if the score
        needs no fit. Held-out data must not have been trained on, or the threshold is too high.
        """
        if not 0 < tpr <= 1:
            raise ValueError(f"tpr must lie in (0, 1], got {tpr}")
        if self.score.needs_fit:
            if train is None:
                raise ValueError(f"{type(self.score).__name__} is fitted on ID training data; train is None")
            self.score.fit(self.net, embed(self.net, as_set(train)))
        scores = self.scores(held_out)
        self.threshold.fill_(threshold_at_tpr(id_scores=scores, tpr=tpr))
        self.about.update(tpr=tpr, held_out=len(scores))
        return self.eval()

    def scores(self, samples: Any) -> Tensor:
        """The score of every sample of a set, a tensor or a pair: (N,), higher = more in-distribution."""
        return score_embedded(self.net, self.score, embed(self.net, as_set(samples)))

    def forward(self, x: Tensor) -> Verdict:
        """Raw images, uint8 or float in [0, 1], (B, C, H, W) -> a verdict for each."""
        self.score.require_fit()
        if torch.isnan(self.threshold):
            raise NotFittedError("the detector has no threshold; call fit(train, held_out) first")
        with torch.set_grad_enabled(self.score.uses_input):
            plain = self.score.outputs(self.net, x) if self.score.uses_input else self.net(x)
            # The label is the network's own: a score that clips features for its own ends must not change it.
            score = self.score(plain if self.score.uses_input else self.score.adjust(self.net, plain)).detach()
        logits = plain.logits[:, : len(self.classes)] if self.classes else plain.logits
        return Verdict(logits.argmax(dim=1), score, score < self.threshold)

    def save(self, folder: str | Path) -> Path:
        """Write `model.safetensors` and `detector.json`; the latter last, so a folder that has it is whole."""
        folder = Path(folder)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        card = {
            "format": FORMAT,
            "net": self.net.spec,
            "score": spec_of(self.score),
            "classes": list(self.classes),
            "size": self.size,
            "threshold": self.threshold.item(),
            "higher_is": "in-distribution",
            **self.about,
        }
        write_atomically(folder / "model.safetensors", lambda file: _write(file, save_tensors(tensors)))
        write_atomically(
            folder / "detector.json", lambda file: _write(file, (json.dumps(card, indent=2) + "\n").encode())
        )
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
            net = make_net(card["net"])
        detector = cls(net, make("score", SCORES, card["score"]), classes=card["classes"], size=card["size"])
        fitted = {name.removeprefix("score."): tensors.pop(name) for name in list(tensors) if name.startswith("score.")}
        detector.score.restore(fitted)
        _load_rest(detector, tensors, folder)
        known = ("format", "net", "score", "classes", "size", "threshold", "higher_is")
        detector.about = {key: value for key, value in card.items() if key not in known}
        return detector.eval()


def read_card(folder: Path) -> dict[str, Any]:
    """A detector's `detector.json`, checked."""
    path = folder / "detector.json"
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a detector: it has no detector.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        found = card.get("format") if isinstance(card, dict) else type(card).__name__
        raise CheckpointError(f"{path} has format {found!r}; this version of farout reads format {FORMAT}")
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


def _load_rest(detector: Detector, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Everything but the score's own buffers; names and shapes must match the architecture."""
    own = {name for name in detector.state_dict() if not name.startswith("score.")}
    if own != set(tensors):
        raise CheckpointError(
            f"{folder} does not fit its architecture: missing {sorted(own - set(tensors))[:5]}, "
            f"unexpected {sorted(set(tensors) - own)[:5]}"
        )
    try:
        detector.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:
        raise CheckpointError(f"{folder} does not fit its architecture: {error}") from None
