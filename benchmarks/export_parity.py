"""Export parity of every exportable method x score pair, as .pt2 and as ONNX: the largest differences, as JSONL.

    python benchmarks/export_parity.py --out benchmarks/results/DATE-export-parity.jsonl [--methods dal] [--to torch]

Each method trains for one epoch on the demo's digits, so that the weights are its own; every score that fits its head
is fitted, exported and compared on 200 test digits that the export's own check did not see.
"""

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path

import torch

from farout import build
from farout.components import make
from farout.config import Config
from farout.data.named import open_named
from farout.detector import Detector
from farout.errors import ConfigError
from farout.export import FORMATS, export, open_exported
from farout.methods import METHODS
from farout.scores import SCORES
from farout.training import Checkpoints, RunLog, fit

SMALL = {"atom": {"pool": 300, "keep": 120}, "ntom": {"pool": 300, "keep": 120}, "poem": {"pool": 300, "keep": 120}}


def trained(method: str, folder: Path) -> tuple[build.Job, Config]:
    """One epoch of `method` on the demo's digits with a small network."""
    tree = Config.load("demo/oe").to_dict()
    tree["method"] = {"name": method, **SMALL.get(method, {})}
    tree["net"] |= {"width": 8}
    tree["train"] |= {"epochs": 1, "device": "cpu"}
    config = Config.from_dict(tree)
    job = build.job(config)
    log = RunLog(folder / "log.jsonl")
    fit(job.descent, job.pairs, job.schedule, job.plan, Checkpoints(folder / "checkpoints"), log)
    return job, config


def fits(method: str, score: str) -> bool:
    """CSI's score needs four outputs a class, the outlier class's one more than there are classes."""
    needed = {"csi": METHODS[method].outputs_per_class == 4, "outlier-class": METHODS[method].outlier_class}
    return needed.get(score, True) and not SCORES[score].why_not_exported


def compare(detector: Detector, to: str, x: torch.Tensor, folder: Path) -> dict[str, object]:
    """Export, open again, and the largest differences on `x`."""
    begun = time.perf_counter()
    path = export(detector, folder / f"detector{FORMATS[to].suffix}", to)
    wanted, got = detector.judge(x), open_exported(path).judge(x)
    away = (wanted.score - detector.threshold).abs() > 1e-4 * wanted.score.abs().clamp(min=1)
    return {
        "seconds": round(time.perf_counter() - begun, 2),
        "bytes": path.stat().st_size,
        "score": float((got.score.double() - wanted.score.double()).abs().max()),
        "labels_differ": int((got.label != wanted.label).sum()),
        "verdicts_differ": int((got.is_ood != wanted.is_ood)[away].sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--scores", default=",".join(SCORES))
    parser.add_argument("--to", default=",".join(FORMATS))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    x, _ = open_named("demo/digits", split="test").read(torch.arange(200))
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with chosen.out.open("w") as out:
        for method in chosen.methods.split(","):
            with tempfile.TemporaryDirectory() as scratch:
                job, config = trained(method, Path(scratch))
                splits = build.id_splits(config.data)
                for name in filter(lambda name, method=method: fits(method, name), chosen.scores.split(",")):
                    row: dict[str, object] = {"method": method, "score_name": name}
                    try:
                        score = make("score", SCORES, {"name": name})
                        detector = Detector(job.net, score, classes=splits.train.classes, size=8)
                        detector.fit(splits.train, splits.held_out)
                    except ConfigError as error:  # ViM on collapsed features, say
                        out.write(json.dumps({**row, "not_fitted": str(error)}) + "\n")
                        continue
                    for to in chosen.to.split(","):
                        out.write(json.dumps({**row, "to": to, **compare(detector, to, x, Path(scratch))}) + "\n")
                        out.flush()


if __name__ == "__main__":
    main()
