"""Runs to look at: `write_report` makes one HTML file, `write_figures` the same figures for a paper.

Most of a report is read from what the runs wrote. The embedding, the certificate, the distances and the mistakes are
asked of the network here, on a draw of the data; what cannot be had is left out with its reason.
"""

import math
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor

from farout import __version__, build, seeds
from farout.certify import certify
from farout.config import Config
from farout.data.arrays import Subset
from farout.data.source import ImageSet
from farout.detector import Detector
from farout.errors import CheckpointError, ConfigError, FaroutError
from farout.methods import DAL
from farout.metrics import fpr_at_tpr, threshold_at_tpr
from farout.nets.net import Net
from farout.report.curves import training
from farout.report.embedding import Cloud, embedding_map
from farout.report.gather import Group, RunFiles, find_runs, find_trials, group_runs, read_run
from farout.report.glance import metric_tables, verdict
from farout.report.html import Report, page
from farout.report.mistakes import Gallery, Mistake, class_means, highest, nearest_class, png
from farout.report.radius import against_rho, from_groups, from_trials, heat_maps
from farout.report.risk import distances, risk
from farout.report.separation import dots, histograms, roc
from farout.scores.base import Embedded
from farout.scores.embed import device_of, embed, score_embedded
from farout.training.checkpoint import write_atomically
from farout.types import Row
from farout.worst_case.discrepancy import Estimate, estimate

DRAW_STREAM, SEARCH_STREAM = 21, 22
SAMPLES = 400
"""How many samples of each set the network is shown for a report."""
MAP_POINTS = 120
SHOWN = 8
RADII = np.geomspace(0.01, 100, 17).tolist()
LEFT_OUT = "left out on request (samples=0)"

_T = TypeVar("_T")
_EXPECTED = (FaroutError, OSError, ValueError, RuntimeError, TypeError)
"""What data that moved away, another version's files or an unusual network raise; the part then says so."""


def write_report(runs: Iterable[str | Path], path: str | Path, samples: int = SAMPLES) -> Path:
    """One HTML file about runs: folders of runs, of several seeds, or of a study; `samples=0` asks no network.

    >>> write_report(["runs/demo"], "runs/demo/report.html")                # doctest: +SKIP
    """
    text, path = page(make_report(list(runs), samples)), Path(path)
    write_atomically(path, lambda file: _put(file, text))
    return path


def _put(file: BinaryIO, text: str) -> None:
    file.write(text.encode())


def write_figures(
    runs: Iterable[str | Path], folder: str | Path, to: str = "pdf", samples: int = SAMPLES
) -> list[Path]:
    """The report's figures as files of a paper: pdf, svg or png."""
    from farout.report.figures import save_figures

    return save_figures(make_report(list(runs), samples), Path(folder), to)


def make_report(paths: Sequence[str | Path], samples: int = SAMPLES) -> Report:
    """Read, ask and put together."""
    found, trials = find_runs(paths), find_trials(paths)
    if not found:
        where = ", ".join(map(str, paths)) or "nothing"
        raise CheckpointError(f"no runs in {where}: a run's folder holds a config.yaml, see `farout train`")
    groups = group_runs([read_run(folder) for folder in found])
    asked = [_Asked.of(group, samples) for group in groups]
    auxiliary = {one.group.label: one.auxiliary for one in asked if one.auxiliary is not None}
    sweep = from_trials(trials) or from_groups(groups, auxiliary)
    clouds, why_no_map = _clouds(asked)
    return Report(
        groups=groups,
        verdict=verdict(groups),
        tables=metric_tables(groups),
        scores=[dots(groups), histograms(groups), roc(groups)],
        embedding=[embedding_map(clouds, why_no_map)],
        training=[training(groups)],
        radius=[against_rho(sweep), heat_maps(sweep)],
        worst_case=[
            risk(groups, {one.group.label: one.risk for one in asked}, _reasons(asked, "risk")),
            distances(groups, {one.group.label: one.distances for one in asked}, _reasons(asked, "distances")),
        ],
        galleries=[gallery for one in asked for gallery in one.galleries],
        versions=_versions(groups),
    )


def _versions(groups: Sequence[Group]) -> dict[str, str]:
    """What trained the runs, where they say it, and what made the report."""
    trained = dict.fromkeys(_about(run) for group in groups for run in group.runs if run.about)
    here = f"farout {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return {**({"Trained with": "; ".join(trained)} if trained else {}), "Report made with": here}


def _about(run: RunFiles) -> str:
    return ", ".join(f"{name} {run.about[name]}" for name in ("farout", "torch") if name in run.about)


@dataclass(frozen=True)
class _Look:
    """A draw of a run's data through its network."""

    detector: Detector
    train: Embedded
    id_test: Embedded
    tests: dict[str, Embedded]
    outliers: Embedded | None


@dataclass(frozen=True)
class _Asked:
    """What a group's first finished run answers; `why` says, by part, why it does not."""

    group: Group
    look: _Look | None
    risk: list[Row]
    distances: dict[str, Estimate]
    auxiliary: float | None
    galleries: list[Gallery]
    why: dict[str, str]

    @classmethod
    def of(cls, group: Group, samples: int) -> "_Asked":
        why: dict[str, str] = {}
        try_ = _Attempts(group.label, why)
        look = try_("look", lambda: _look(group, samples))
        if look is None:
            reason = why["look"]
            return cls(group, None, [], {}, None, [Gallery(f"{group.label}: mistakes", (), reason)], why)
        shown = try_("galleries", lambda: _galleries(group, look)) or [
            Gallery(f"{group.label}: mistakes", (), why["galleries"])
        ]
        return cls(
            group,
            look,
            try_("risk", lambda: _risk(look)) or [],
            try_("distances", lambda: _distances(look)) or {},
            try_("auxiliary", lambda: _auxiliary(look)),
            shown,
            why,
        )


class _Attempts:
    """Runs a part; if it fails in a way that is to be expected, notes why and gives None."""

    def __init__(self, label: str, why: dict[str, str]) -> None:
        self.label, self.why = label, why

    def __call__(self, part: str, make: Callable[[], _T]) -> _T | None:
        try:
            return make()
        except _EXPECTED as error:
            self.why[part] = f"{self.label}: {error}"
            return None


def _reasons(asked: Sequence[_Asked], part: str) -> list[str]:
    return [one.why.get("look") or one.why[part] for one in asked if "look" in one.why or part in one.why]


def _look(group: Group, samples: int) -> _Look:
    if samples < 1:
        raise ConfigError(LEFT_OUT)
    run = next((run for run in group.runs if run.card), group.first)
    data = run.config.data
    detector = Detector.load(run.folder / "detector")
    detector.to(build.device("auto"))
    splits = build.id_splits(data)
    id_test, tests = build.test_sets(data)
    pool = build.outlier_set(data, splits.train.classes) if data.outliers else None
    net = detector.net
    return _Look(
        detector,
        embed(net, _draw(splits.train, samples)),
        embed(net, _draw(id_test, samples)),
        {name: embed(net, _draw(each, samples)) for sets in tests.values() for name, each in sets.items()},
        None if pool is None else embed(net, _draw(pool, samples)),
    )


def _draw(samples: ImageSet, count: int) -> Subset:
    """The same draw for every run, so that methods are compared on the same images."""
    return Subset(samples, torch.randperm(len(samples), generator=seeds.generator(DRAW_STREAM))[:count])


def _outliers(look: _Look) -> Embedded:
    if look.outliers is None:
        raise ConfigError("its recipe names no auxiliary outliers (data.outliers)")
    return look.outliers


def _risk(look: _Look) -> list[Row]:
    rows = certify(look.detector, _outliers(look).samples, RADII)
    return [{**row, "uniform": math.log(look.detector.net.num_outputs)} for row in rows]


def _distances(look: _Look) -> dict[str, Estimate]:
    around = _outliers(look).outputs.features.cpu()
    sets = {f"{look.id_test.samples.name} (ID)": look.id_test, **look.tests}
    size = min(200, len(around) // 2)
    return {name: estimate(around, each.outputs.features.cpu(), size=size, draws=4) for name, each in sets.items()}


def _auxiliary(look: _Look) -> float:
    """FPR95 of the detector's score on the auxiliary outliers."""
    outliers = _outliers(look)
    inliers, others = (score_embedded(look.detector.net, look.detector.score, e) for e in (look.id_test, outliers))
    return fpr_at_tpr(id_scores=inliers, ood_scores=others)


def _clouds(asked: Sequence[_Asked]) -> tuple[list[Cloud], list[str]]:
    """Before and after, of the first method that searches a worst case, else of the first that can be opened."""
    able = [one for one in asked if one.look is not None and one.look.outliers is not None]
    if not able:
        return [], _reasons(asked, "risk")
    one = next((one for one in able if isinstance(_method(one.group), DAL)), able[0])
    why: dict[str, str] = {}
    try_ = _Attempts(one.group.label, why)
    clouds = [try_("before", lambda: _before(one)), try_("after", lambda: _after(one))]
    reasons = list(why.values())
    if not isinstance(_method(one.group), DAL):
        reasons.append(f"{one.group.label} searches no worst case in the embedding, so no arrows are drawn")
    return [cloud for cloud in clouds if cloud is not None], reasons


def _method(group: Group) -> Any:
    return build.method(group.first.config)


def _before(one: _Asked) -> Cloud:
    """The network that training started from: the one named by train.init, else fresh weights."""
    assert one.look is not None
    config = _light_start(one.group.first.config)
    with torch.random.fork_rng():
        net = build.net(config, len(one.look.detector.classes)).to(device_of(one.look.detector)).eval()
    start = "" if config.train.init else " (random weights)"
    return _cloud(f"{one.group.label}, before{start}", one, net, gamma=None)


def _light_start(config: Config) -> Config:
    """Start from the detector of the run that train.init names: the same weights, there even without checkpoints."""
    start = Path(config.train.init or "") / "detector"
    if config.train.init is None or not (start / "model.safetensors").is_file():
        return config
    return replace(config, train=replace(config.train, init=str(start)))


def _after(one: _Asked) -> Cloud:
    assert one.look is not None
    log = one.group.first.log
    gamma = next((row["gamma"] for row in reversed(log) if "gamma" in row), None)
    return _cloud(f"{one.group.label}, after", one, one.look.detector.net, gamma)


def _cloud(title: str, one: _Asked, net: Net, gamma: float | None) -> Cloud:
    assert one.look is not None
    few = [embed(net, _draw(e.samples, MAP_POINTS)) for e in (one.look.train, _outliers(one.look))]
    inliers, outliers = (e.outputs.features.cpu() for e in few)
    names = [_name(one.look.detector.classes, label) for label in few[0].labels.tolist()]
    worst = _worst(_method(one.group), net, few[1].outputs.features, gamma)
    return Cloud(title, inliers.numpy(), names, outliers.numpy(), None if worst is None else worst.cpu().numpy())


def _worst(method: Any, net: Net, z: Tensor, gamma: float | None) -> Tensor | None:
    """z + p by the run's own rule and price; None for a method that searches nothing here."""
    if not isinstance(method, DAL):
        return None
    price = method.dual.gamma.to(z.device)
    if gamma is not None:
        price = torch.full_like(price, gamma)
    with torch.random.fork_rng():
        torch.manual_seed(seeds.mix(0, SEARCH_STREAM))
        start = method.rule.draw(z)
    found = method.search(net.head, z, start, price, steps=method.num_search, step_size=method.ps, rule=method.rule)
    return z + found.p


def _name(classes: Sequence[str], label: int) -> str:
    return classes[label] if 0 <= label < len(classes) else str(label) if label >= 0 else ""


def _galleries(group: Group, look: _Look) -> list[Gallery]:
    """The OOD images with the highest scores and the ID images with the lowest."""
    (inliers, own), *others = _scored(group, look)
    threshold = threshold_at_tpr(id_scores=inliers, tpr=0.95)
    count = len(look.detector.classes) or look.detector.net.num_outputs
    means = class_means(look.train.outputs.features.cpu(), look.train.labels, count)
    trusted = highest([scores for scores, _ in others], SHOWN)
    doubted = [place for _, place in highest([-inliers], SHOWN)]
    pick = _Pick(look.detector, means, threshold)
    return [
        Gallery(
            f"{group.label}: OOD images trusted most",
            [pick(others[which][1], place, float(others[which][0][place])) for which, place in trusted],
        ),
        Gallery(
            f"{group.label}: ID images doubted most", [pick(own, place, float(inliers[place])) for place in doubted]
        ),
    ]


def _scored(group: Group, look: _Look) -> list[tuple[Any, ImageSet]]:
    """Scores and samples of the ID test set, then of each OOD set: all that was evaluated, else the draw."""
    drawn = [look.id_test, *look.tests.values()]
    whole = [_base(e.samples) for e in drawn]
    names = [look.id_test.samples.name, *look.tests]
    run = next((run for run in group.runs if run.card), group.first)
    saved = run.scores.get(group.score, {})
    if all(name in saved and len(saved[name]) == len(each) for name, each in zip(names, whole, strict=True)):
        return [(saved[name], each) for name, each in zip(names, whole, strict=True)]
    return [(score_embedded(look.detector.net, look.detector.score, e).numpy(), e.samples) for e in drawn]


def _base(samples: ImageSet) -> ImageSet:
    """The set that a draw was made from."""
    assert isinstance(samples, Subset)
    return samples.base


class _Pick:
    """Turns a sample and its score into something to look at."""

    def __init__(self, detector: Detector, means: Tensor, threshold: float) -> None:
        self.detector, self.means, self.threshold = detector, means, threshold

    @torch.no_grad()
    def __call__(self, samples: ImageSet, place: int, score: float) -> Mistake:
        image, label = samples.read(torch.tensor([place]))
        classes = self.detector.classes
        out = self.detector.net(image.to(device_of(self.detector)))
        predicted = int(out.logits[0, : len(classes) or None].argmax())
        return Mistake(
            set=samples.name,
            number=int(samples.indices[place]) if isinstance(samples, Subset) else place,
            score=score,
            accepted=score >= self.threshold,
            label=_name(samples.classes, int(label)),
            predicted=_name(classes, predicted),
            nearest=_name(classes, int(nearest_class(out.features.cpu(), self.means)[0])),
            picture=png(image[0]),
        )
