"""The paper's ablations as a linear probe: heads trained by OE and DAL on the features of a network that is kept.

    python benchmarks/evidence_probe.py --quick                     random features, a few heads, soon done
    python benchmarks/evidence_probe.py --detectors DIR ... --cache probe.npz --out results/probe-cifar100
    python benchmarks/evidence_probe.py --out results/probe-cifar100 --figure docs/images/probe-radius.png

A detector folder holds a network trained by cross-entropy; each is one pair of all comparisons. Features are computed
once and kept in the cache, so a second run trains heads only; the last line draws from the rows that are there. The
ID rows to validate on are the share that no network trained on, the outliers to validate on are of classes that no head
trained on. FPR95 has ID as the positive side.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout that is not installed

from farout import build, seeds
from farout.config import Config
from farout.data.arrays import Subset
from farout.data.source import ImageSet
from farout.detector import Detector
from farout.estimators import DALClassifier, OEClassifier
from farout.metrics import auroc, fpr_at_tpr
from farout.protocols import Protocol, load_protocol
from farout.scores.embed import embed
from farout.worst_case import closed_form_search
from recording import Row, about

Sets = dict[str, np.ndarray]
COMMAND = "python benchmarks/evidence_probe.py --protocol {} --detectors DIR ... --cache FILE --out DIR"
COUNTS = {"id": 5000, "aux": 5000, "id-validation": 1000, "aux-validation": 1000, "id-test": 2000, "test": 1000}


def image_sets(protocol: Protocol, root: str | None, held_out: float = 0.1) -> dict[str, ImageSet]:
    """What a probe is trained, validated and tested on, by name; the OOD test sets are called test/NAME."""
    config = protocol.apply(Config.load(f"{protocol.recipes}/oe"))
    data = replace(config.data, root=root, outlier_held_out=held_out, outlier_held_out_by="classes")
    splits, (id_test, groups) = build.id_splits(data), build.test_sets(data)
    made: dict[str, ImageSet] = {"id": splits.train, "id-validation": splits.held_out}
    made["aux"] = build.outlier_set(data, splits.train.classes)
    if held_out:
        made["aux-validation"] = build.held_out_outliers(data, splits.train.classes)
    made["id-test"] = id_test
    return made | {f"test/{name}": samples for group in groups.values() for name, samples in group.items()}


def some(samples: ImageSet, count: int) -> ImageSet:
    """`count` samples at random, the same for every network; all where there are fewer."""
    order = torch.randperm(len(samples), generator=seeds.generator(len(samples)))
    return Subset(samples, order[:count])


def features(folder: Path, sets: Mapping[str, ImageSet], counts: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Features (N, D) of each set, and the labels of ID sets as NAME/labels."""
    net = Detector.load(folder).net.to(memory_format=torch.channels_last)  # a tenth faster on a CPU
    for name, samples in sets.items():
        count = counts.get(name.split("/")[0], 0)
        if not count:
            continue
        found = embed(net, some(samples, count), batch_size=250)
        yield name, found.outputs.features.numpy()
        if name.startswith("id"):
            yield f"{name}/labels", found.labels.numpy()
        print(f"{folder}: {name}, {len(found.labels)} rows", flush=True)


def cached(path: Path, folders: Iterable[Path], protocol: Protocol, root: str | None) -> dict[str, Sets]:
    """The features of each network, by its folder's name: from the cache where it has them, added to it if not."""
    known: Sets = dict(np.load(path)) if path.exists() else {}
    names = dict.fromkeys(key.split(":", 1)[0] for key in known)
    for folder in folders:
        if folder.name not in names:
            known |= {f"{folder.name}:{k}": v for k, v in features(folder, image_sets(protocol, root), COUNTS)}
            np.savez(path, **known)
            names[folder.name] = None
    return {name: {k.split(":", 1)[1]: v for k, v in known.items() if k.startswith(f"{name}:")} for name in names}


def random_sets(classes: int = 10, width: int = 16) -> Sets:
    """Gaussian classes, and outliers around other centres: enough to run every line."""
    random = np.random.default_rng(0)
    centres = 2 * random.standard_normal((3 * classes, width))

    def drawn(count: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        labels = random.integers(0, classes, count)
        rows = centres[first + labels] + random.standard_normal((count, width))
        return rows.astype(np.float32), labels

    made: Sets = {}
    for name in ("id", "id-validation", "id-test"):
        made[name], made[f"{name}/labels"] = drawn(400, 0)
    for name, first in (("aux", classes), ("aux-validation", classes), ("test/a", classes), ("test/b", 2 * classes)):
        made[name] = drawn(300, first)[0]
    return made


class ProbeDAL(DALClassifier):
    """DALClassifier with another transport cost than its rule's, which says how far its search goes."""

    def __init__(self, *, cost: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.cost = cost

    def _risk(self) -> Any:
        risk = super()._risk()
        risk.rule = risk.rule if self.cost is None else replace(risk.rule, cost=self.cost)
        return risk

    def moves(self, out: np.ndarray) -> float:
        """The mean ‖p‖₁ of the search around `out` once training is over, in scaled features."""
        weight, bias = self._weights
        head = torch.nn.Linear(*weight.shape)
        head.load_state_dict({"weight": torch.from_numpy(weight.T.copy()), "bias": torch.from_numpy(bias)})
        z, risk = self._scaling.apply(out).dense(), self._risk()
        options = {"steps": self.num_search, "step_size": self.ps, "rule": risk.rule}
        found = closed_form_search(head, z, torch.zeros_like(z), risk.dual.gamma, **options)
        return float(found.p.abs().sum(dim=1).mean())


COMMON = {"epochs": 15, "batch_size": 250, "batch_size_out": 250, "held_out": 0, "l2": 1e-3}
PROXIMAL = {"rule": "proximal", "ps": 1.0, "num_search": 10, "beta": 1e-3, "gamma0": 0.1}
REFERENCE = {"rule": "reference", "ps": 0.1, "num_search": 10}
ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0)
RADII = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
DECAYS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
RADIUS_OF = {"l1": 10.0, "l2": 1.0, "mean-abs": 0.08}
"""About the same move in each cost's own unit, for 128 features."""


def trials(aux: int) -> Iterator[Row]:
    """Every head to train: study, method, `count` of auxiliary outliers, and the estimator's arguments.

    OE and DAL have equally many heads to choose from: each its weight alpha and one number more.
    """
    yield {"study": "reference", "method": "ce", "count": 0}
    for alpha, l2 in itertools.product(ALPHAS, DECAYS):
        yield {"study": "tuning", "method": "oe", "count": aux, "alpha": alpha, "l2": l2}
    for alpha, rho in itertools.product(ALPHAS, RADII):
        yield {"study": "tuning", "method": "dal", "count": aux, **PROXIMAL, "alpha": alpha, "rho": rho}
    yield {"study": "rho", "method": "dal", "count": aux, **PROXIMAL, "alpha": 1.0, "rho": 0.0}
    for steps in (1, 2, 5, 10, 20, 50):
        yield {"study": "num_search", "method": "dal", "count": aux, **REFERENCE, "alpha": 1.0, "num_search": steps}
    for ps in (0.05, 0.1, 0.5, 1.0, 5.0, 10.0):
        yield {"study": "ps", "method": "dal", "count": aux, **REFERENCE, "alpha": 1.0, "ps": ps}
    for rule, (cost, rho) in itertools.product(("reference", "paper", "proximal"), RADIUS_OF.items()):
        step = {**PROXIMAL, "rule": rule, "ps": REFERENCE["ps"] if rule == "reference" else PROXIMAL["ps"]}
        yield {"study": "cost", "method": "dal", "count": aux, **step, "alpha": 1.0, "cost": cost, "rho": rho}
    for count in (100, 300, 1000, 3000, aux):
        yield {"study": "size", "method": "oe", "count": count, "alpha": 1.0}
        yield {"study": "size", "method": "dal", "count": count, **PROXIMAL, "alpha": 1.0, "rho": 3.0}
        yield {"study": "size", "method": "dal", "count": count, **REFERENCE, "alpha": 1.0}
    for seed in (1, 2, 3):
        yield {"study": "order", "method": "oe", "count": aux, "alpha": 1.0, "random_state": seed}
        yield {"study": "order", "method": "dal", "count": aux, **PROXIMAL, "alpha": 1.0, "rho": 3.0} | {
            "random_state": seed
        }


def made(trial: Row) -> OEClassifier | ProbeDAL:
    options = {k: v for k, v in trial.items() if k not in ("study", "method", "count")}
    return (ProbeDAL if trial["method"] == "dal" else OEClassifier)(**{"random_state": 0, **COMMON, **options})


def measured(trial: Row, sets: Sets) -> Row:
    """The trial with what came out: FPR95 and AUROC as means over the OOD test sets, and FPR95 on validation data."""
    model = made(trial)
    out = sets["aux"][: trial["count"]] if trial["count"] else None
    model.fit(sets["id"], sets["id/labels"], X_out=out)
    row: Row = {**trial, "accuracy": float(model.score(sets["id-test"], sets["id-test/labels"]))}
    for model.ood_score in ("msp", "energy"):
        scores = {name: model.score_samples(rows) for name, rows in sets.items() if "/labels" not in name}
        oods = [scores[name] for name in sets if name.startswith("test/")]
        fprs = [fpr_at_tpr(id_scores=scores["id-test"], ood_scores=ood) for ood in oods]
        areas = [auroc(id_scores=scores["id-test"], ood_scores=ood) for ood in oods]
        seen = fpr_at_tpr(id_scores=scores["id-validation"], ood_scores=scores["aux-validation"])
        row[model.ood_score] = {"fpr95": float(np.mean(fprs)), "auroc": float(np.mean(areas)), "validation": seen}
    if isinstance(model, ProbeDAL):
        row |= {"gamma": model.gamma_, "moved": model.moves(out[:1000])}
    return row


def paired(rows: list[Row], first: Row, second: Row, score: str, key: str) -> tuple[float, float, float]:
    """The mean over networks of first − second, and its 95 % t-interval; not a number with one network."""
    gaps = [_only(rows, first, n)[score][key] - _only(rows, second, n)[score][key] for n in networks(rows)]
    half = float(stdtrit(len(gaps) - 1, 0.975)) * float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5 if gaps[1:] else np.nan
    return float(np.mean(gaps)), float(np.mean(gaps)) - half, float(np.mean(gaps)) + half


def networks(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["network"] for row in rows))


def _only(rows: list[Row], wanted: Row, network: str) -> Row:
    """The row of one trial on one network."""
    key = {**wanted, "network": network}
    return next(row for row in rows if all(row.get(k) == v for k, v in key.items()))


def chosen(rows: list[Row], method: str, score: str) -> list[Row]:
    """For each network the head of the tuning study with the lowest FPR95 on validation data."""
    mine = [row for row in rows if row["study"] == "tuning" and row["method"] == method]
    return [min((r for r in mine if r["network"] == n), key=lambda r: r[score]["validation"]) for n in networks(rows)]


def verdict(rows: list[Row]) -> str:
    """What came of choosing by validation data, a line a score."""
    lines = []
    for score in ("msp", "energy"):
        picked = {method: chosen(rows, method, score) for method in ("oe", "dal")}
        means = {m: 100 * float(np.mean([row[score]["fpr95"] for row in best])) for m, best in picked.items()}
        knobs = {m: [(r["alpha"], r.get("rho", r.get("l2"))) for r in best] for m, best in picked.items()}
        lines.append(f"{score}: FPR95 {means}, chosen (alpha, l2 or rho) {knobs}")
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """FPR95 against the radius, means over networks, and OE's lines; a bar is the interval of the gap to its line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for axis, score in zip(axes, ("msp", "energy"), strict=True):
        for place, alpha in enumerate((0.3, 1.0, 3.0)):
            _draw_weight(axis, rows, score, alpha, place)
        axis.set_xscale("log")
        axis.set_xlabel("radius ρ (ℓ1, scaled features)")
        axis.set_title({"msp": "MSP", "energy": "energy"}[score], fontsize=10)
    axes[0].set_ylabel("FPR95 (%), lower is better")
    axes[0].legend(fontsize=8, frameon=False, ncols=3, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_weight(axis: Any, rows: list[Row], score: str, alpha: float, place: int) -> None:
    """One weight of the outliers: OE's level, and DAL's gap to it at each radius."""
    plain = {"study": "tuning", "method": "oe", "alpha": alpha, "l2": COMMON["l2"]}
    level = 100 * float(np.mean([_only(rows, plain, network)[score]["fpr95"] for network in networks(rows)]))
    moved = [{"study": "tuning", "method": "dal", "alpha": alpha, "rho": rho} for rho in RADII]
    gaps = 100 * np.array([paired(rows, trial, plain, score, "fpr95") for trial in moved])
    beside = np.array(RADII) * 1.06 ** (place - 1)  # or the bars would hide one another
    style = {"color": f"C{place}", "lw": 1.2}
    bars = np.nan_to_num(gaps[:, 2] - gaps[:, 0])
    axis.errorbar(beside, level + gaps[:, 0], bars, fmt="o-", ms=4, capsize=2, label=f"DAL, α = {alpha:g}", **style)
    axis.axhline(level, ls="--", label=f"OE, α = {alpha:g}", **style)


def written(folder: Path, rows: list[Row], sets: Mapping[str, Sets], quick: bool, protocol: str) -> None:
    """rows.jsonl with four digits, about.json with the command and the counts."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(rounded(row)) for row in rows)
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    counts = {name: len(rows) for name, rows in next(iter(sets.values())).items() if "/labels" not in name}
    result = {"command": COMMAND.format(protocol), "quick": quick, "networks": list(sets), "counts": counts}
    result |= {"common": COMMON, **about(packages=("scikit-learn", "numpy"))}
    (folder / "about.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


def read(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def main() -> int:
    asked = options().parse_args()
    if asked.detectors or asked.cache or asked.quick:
        folders = [Path(name) for name in asked.detectors]
        protocol = load_protocol(asked.protocol)
        sets = {"random": random_sets()} if asked.quick else cached(asked.cache, folders, protocol, asked.data)
        rows = []
        for network, mine in sets.items():
            todo = list(trials(len(mine["aux"])))[:: 12 if asked.quick else 1]
            for trial in todo:
                rows.append({"network": network, **measured(trial, mine)})
                print(json.dumps(rounded(rows[-1])), flush=True)
            if asked.out is not None:  # after every network, lest a run be cut off
                written(asked.out, rows, sets, asked.quick, asked.protocol)
        print("" if asked.quick else verdict(rows))
    if asked.figure is not None:
        draw(read(asked.out), asked.figure)
    return 0


def options() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="random features, every twelfth head")
    made.add_argument("--detectors", nargs="*", default=[], help="folders of detectors trained by cross-entropy")
    made.add_argument("--protocol", default="local-cifar100")
    made.add_argument("--data", help="the data root; FAROUT_DATA by default")
    made.add_argument("--cache", type=Path, help="an .npz of features, read and added to")
    made.add_argument("--out", type=Path, help="a folder for rows.jsonl and about.json")
    made.add_argument("--figure", type=Path, help="a .png of FPR95 against the radius, from the rows in --out")
    return made


if __name__ == "__main__":
    sys.exit(main())
