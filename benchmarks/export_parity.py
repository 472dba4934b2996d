"""Export parity of every method x score pair of the tables, as .pt2 and as ONNX.

    python benchmarks/export_parity.py --methods dal --to torch        a part, printed
    python benchmarks/export_parity.py --out benchmarks/results        write <date>-cpu-export-parity.json

Each method trains for one epoch on the demo's digits, so that the weights are its own. Every score is then fitted,
exported and compared on 200 test digits that the export's own check did not see; a pair that cannot be exported has its
reason. Shapes of graphs, and no accuracy, are what is tested here.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout that is not installed

from farout import build
from farout.components import make
from farout.config import Config
from farout.data.named import open_named
from farout.detector import Detector
from farout.errors import FaroutError
from farout.export import FORMATS, OPSET, export, open_exported, why_not_exported
from farout.methods import METHODS
from farout.scores import SCORES
from farout.training import Checkpoints, RunLog, fit

Row = dict[str, Any]
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


def compare(detector: Detector, to: str, x: torch.Tensor, folder: Path) -> Row:
    """Export, open again, and the largest differences on `x`."""
    begun = time.process_time()
    path = export(detector, folder / f"detector{FORMATS[to].suffix}", to)
    wanted, got = detector.judge(x), open_exported(path).judge(x)
    room = 1e-4 * wanted.score.abs().clamp(min=1)
    apart = (got.score.double() - wanted.score.double()).abs()
    away = (wanted.score - detector.threshold).abs() > room
    return {
        "cpu_s": round(time.process_time() - begun, 2),
        "bytes": path.stat().st_size,
        "score_apart": float(apart.max()),
        "score_apart_relative": float((apart / wanted.score.abs().clamp(min=1)).max()),
        "labels_differ": int((got.label != wanted.label).sum()),
        "verdicts_differ": int((got.is_ood != wanted.is_ood)[away].sum()),
    }


def pairs(method: str, scores: list[str], formats: list[str], x: torch.Tensor) -> Iterator[Row]:
    """A row for each score and format, or for each score that is not exported."""
    with tempfile.TemporaryDirectory() as scratch:
        job, config = trained(method, Path(scratch))
        splits = build.id_splits(config.data)
        for name in scores:
            row = {"method": method, "score": name}
            if reason := why_not_exported(method, name):
                yield {**row, "refused": reason}
                continue
            score = make("score", SCORES, {"name": name})
            try:
                detector = Detector(job.net, score, classes=splits.train.classes, size=8)
                detector.fit(splits.train, splits.held_out)
            except FaroutError as error:  # ViM on features that collapsed, say
                yield {**row, "not_fitted": str(error)}
                continue
            yield from ({**row, "to": to, **compare(detector, to, x, Path(scratch))} for to in formats)


def about() -> Row:
    """When, where and with what."""
    import onnx
    import onnxruntime

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    device = f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return {"date": date.today().isoformat(), "device": device, "versions": versions, "opset": OPSET}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for <date>-cpu-export-parity.json")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--scores", default=",".join(SCORES))
    parser.add_argument("--to", default=",".join(FORMATS))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    x, _ = open_named("demo/digits", split="test").read(torch.arange(200))
    rows = []
    for method in chosen.methods.split(","):
        for row in pairs(method, chosen.scores.split(","), chosen.to.split(","), x):
            print(json.dumps(row), flush=True)
            rows.append(row)
    if chosen.out is not None:
        result = {**about(), "inputs": len(x), "pairs": rows}
        path = chosen.out / f"{result['date']}-cpu-export-parity.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
