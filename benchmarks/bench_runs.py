"""Whole runs through the product's own code: CIFAR-10 pre-training and DAL, with checkpoints, logs and evaluation.

    PYTHONPATH=src python benchmarks/bench_runs.py --out benchmarks/results               # on a GPU, all epochs
    PYTHONPATH=src python benchmarks/bench_runs.py --epochs 10 --kernels triton           # a tenth, fused kernels
    PYTHONPATH=src python benchmarks/bench_runs.py --quick                                # on a CPU: a small network

Two numbers first, at 1.97 GFLOP and 13 MB of activations an image and step. Pre-training, 4.9 million images: 9.7
PFLOP, 10 s at the chip's bf16 rate; 64 TB through memory, 15 s at 4.2 TB/s. DAL, 7.3 million images: 14.4 PFLOP, 15 s;
95 TB, 23 s. At 75,000 images/s the steps alone take 65 s and 98 s.

Each run is a process of its own that trains a recipe (`farout.train`) and evaluates it (`farout.run.evaluate`) on five
OOD sets, so imports, reading, compiling, writing and calibrating are inside its seconds. "cold" has empty caches of
inductor, triton and Python's bytecode, "warm" those that the cold run left. (Bytecode is in an ordinary installation;
where it cannot be written, torch's two thousand files are compiled at every start.) The time to the first step is from
the start of the process to the first row of the log; `ready_s` to the first row after the step was compiled and
recorded. With fewer epochs than the recipe's the whole is reckoned: what was measured, and the missing steps at the
steady rate, which has log rows and checkpoints in it.

Data are $FAROUT_DATA's, or made here: images of ten noisy colours at the sizes of the real sets. Speed does not depend
on what is in an image.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recording import ROOT, Row, about, parser, table, write

TARGET = {"seconds": 120, "cold_first_step_s": 30, "warm_first_step_s": 5}
OOD = {"svhn": 26_032, "lsun": 10_000, "isun": 8_925, "textures": 5_640, "places365": 10_000}
STEADY = 10  # steps after which compiling and recording are over


class Started(Exception):
    """The first steps are done, and no more are wanted."""


def noisy_colours(count: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 32, 32, 3) whose class is their mean colour."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    colours = np.random.default_rng(1).integers(60, 196, (classes, 1, 1, 3))
    images = random.integers(-60, 60, (count, 32, 32, 3), dtype=np.int16) + colours[labels].astype(np.int16)
    return images.astype(np.uint8), labels


def made_data(folder: Path, share: float) -> Path:
    """Sets of the real sizes, or a share of them, as array files below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate((("train", 50_000), ("test", 10_000))):
        x, y = noisy_colours(int(share * count), 10, seed)
        np.savez(folder / f"cifar10-{split}.npz", images=x, labels=y)
    np.save(folder / "300k.npy", noisy_colours(int(share * 300_000), 50, 2)[0])
    for seed, (name, count) in enumerate(OOD.items(), 3):
        np.save(folder / f"{name}.npy", noisy_colours(int(share * count), 70, seed)[0])
    return folder


def spent(store: Row, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, with its seconds and calls added up under `name`."""
    store[name] = {"seconds": 0.0, "calls": 0}

    @functools.wraps(work)
    def inner(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return work(*arguments, **named)
        finally:
            store[name]["seconds"] += time.perf_counter() - begin
            store[name]["calls"] += 1

    return inner


def child(plan: Row) -> Row:
    """One run in this process: the recipe trained and evaluated, with clocks around the product's own functions."""
    import torch

    from farout import build, run
    from farout.training.checkpoint import Checkpoints
    from farout.training.log import RunLog

    warnings.simplefilter("ignore")
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark or plan["cudnn_benchmark"]
    imported, parts, rows = time.time() - plan["begun"], {}, []
    build.job = spent(parts, "building", build.job)  # sets to the device, network, optimiser
    Checkpoints.save = spent(parts, "checkpoints", Checkpoints.save)  # type: ignore[method-assign]
    run._detector = spent(parts, "calibration", run._detector)
    run._guard = spent(parts, "leakage check", run._guard)
    kept = RunLog.write

    def noted(self: RunLog, row: Row) -> None:
        kept(self, row)
        rows.append((row["step"], time.time() - plan["begun"], sum(v for k, v in row.items() if k in ("ce", "oe"))))
        if plan["only_start"] and row["step"] >= STEADY:
            raise Started

    RunLog.write = noted  # type: ignore[method-assign]
    try:
        done = run.train(plan["recipe"], plan["overrides"], run=plan["run"])
    except Started:
        return {"first_step_s": rows[0][1], "rows": rows}
    trained = time.time() - plan["begun"]
    results = run.evaluate(done)
    seconds = time.time() - plan["begun"]
    return {
        "seconds": seconds,
        "imported_s": imported,
        "first_step_s": rows[0][1],
        "trained_s": trained,
        "evaluation_s": seconds - trained,
        "parts": parts,
        "rows": rows,
        "results": results,
        "epochs": done.config.train.epochs,
        "batch": [done.config.data.batch_size, done.config.data.outlier_batch_size if done.config.data.outliers else 0],
    }


def steady(rows: list[list[float]]) -> float:
    """Seconds a step once all is warm, checkpoints and rows included: over the log's rows from `STEADY` on."""
    late = [row for row in rows if row[0] >= STEADY]
    late = late if len(late) > 1 else rows
    (first, begun, _), (last, ended, _) = late[0], late[-1]
    return (ended - begun) / max(1, last - first)


def reckoned(seen: Row, whole_epochs: int) -> Row:
    """What was measured, and what the recipe's own number of epochs would take at the steady rate."""
    step = steady(seen["rows"])
    missing = (whole_epochs - seen["epochs"]) * seen["steps_per_epoch"]
    ready = next((row[1] for row in seen["rows"] if row[0] >= STEADY), seen["rows"][-1][1])
    return {
        "epochs_measured": seen["epochs"],
        "epochs_whole": whole_epochs,
        "fraction": seen["epochs"] / whole_epochs,
        "checkpoints_written": seen["parts"]["checkpoints"]["calls"],
        "seconds": seen["seconds"],
        "seconds_whole": seen["seconds"] + missing * step,
        "first_step_s": seen["first_step_s"],
        "ready_s": ready,
        "ms_per_step": 1e3 * step,
        "images_per_second": sum(seen["batch"]) / step,
        "imported_s": seen["imported_s"],
        "evaluation_s": seen["evaluation_s"],
        **{f"{name.replace(' ', '_')}_s": part["seconds"] for name, part in seen["parts"].items()},
        "accuracy": seen["results"][0]["accuracy"],
        "loss": [seen["rows"][0][2], seen["rows"][-1][2]],
    }


def launched(recipe: str, overrides: list[str], folder: Path, cache: Path, asked: Any, only_start: bool = False) -> Row:
    """The run in a fresh process with its own compiler caches."""
    plan = {"recipe": recipe, "overrides": overrides, "run": str(folder), "only_start": only_start}
    plan |= {"cudnn_benchmark": asked.cudnn_benchmark}
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PYTHONPYCACHEPREFIX": str(cache / "bytecode"),
        "FAROUT_DATA": str(asked.data),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    answer = folder.with_suffix(".json")
    command = [sys.executable, __file__, "--child", json.dumps(plan | {"answer": str(answer), "begun": time.time()})]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode or not answer.is_file():
        raise RuntimeError(f"{recipe} {' '.join(overrides)}\n{ended.stdout[-2000:]}\n{ended.stderr[-6000:]}")
    seen: Row = json.loads(answer.read_text())
    return seen


def first_steps(recipe: str, overrides: list[str], scratch: Path, asked: Any) -> Row:
    """Time to the first step with empty caches: a run that is stopped after `STEADY` steps. It leaves them full."""
    name = titled(recipe).replace("/", "-")
    often = [*overrides, f"train.log_every={STEADY}"]
    seen = launched(recipe, often, scratch / f"{name}-cold", scratch / f"cache-{name}", asked, True)
    return _starts("cold", recipe, seen)


def _starts(state: str, recipe: str, seen: Row) -> Row:
    ready = next(row[1] for row in seen["rows"] if row[0] >= STEADY)
    print(f"{recipe}, {state}: first step after {seen['first_step_s']:.1f} s, steady after {ready:.1f} s", flush=True)
    return {f"{state}_first_step_s": seen["first_step_s"], f"{state}_ready_s": ready}


def overrides_of(asked: Any, recipe: str) -> list[str]:
    chosen = [f"train.engine={asked.engine}", f"train.precision={asked.precision}"]
    chosen += [f"net.kernels={asked.kernels}"] if asked.kernels else []
    chosen += [f"method.search={asked.search}"] if asked.search and "dal" in titled(recipe) else []
    if asked.quick:
        chosen += ["net.depth=10", "net.width=1", "data.batch_size=32", "data.outlier_batch_size=64"]
        chosen += ["train.log_every=2"]
    return chosen + asked.override


def titled(recipe: str) -> str:
    """A recipe's name, or its file's."""
    return Path(recipe).stem if recipe.endswith(".yaml") else recipe


def measured(asked: Any, scratch: Path) -> list[Row]:
    from farout.config import Config

    start, rows = None, []
    for recipe in asked.recipes:
        overrides = overrides_of(asked, recipe)
        if start is not None and asked.chained:
            overrides.append(f"train.init={start}")
        whole = Config.load(recipe).train.epochs
        row: Row = {"recipe": titled(recipe), "overrides": [o for o in overrides if not o.startswith("train.init")]}
        row |= first_steps(recipe, overrides, scratch, asked)
        epochs = min(whole, asked.epochs or whole)
        folder = (asked.keep or scratch) / f"{titled(recipe).replace('/', '-')}-run"
        cache = scratch / f"cache-{titled(recipe).replace('/', '-')}"
        seen = launched(recipe, [*overrides, f"train.epochs={epochs}"], folder, cache, asked)
        row |= _starts("warm", recipe, seen)
        seen["steps_per_epoch"] = steps_of(seen, epochs)
        rows.append(row | reckoned(seen, whole))
        print(json.dumps(rows[-1]), flush=True)
        start = folder
    return rows


def steps_of(seen: Row, epochs: int) -> int:
    """Steps an epoch, by the name of the last checkpoint."""
    newest = sorted((Path(seen["run"]) / "checkpoints").glob("step-*.pt"))[-1]
    return int(newest.stem.partition("-")[2]) // epochs


def shown(rows: list[Row]) -> str:
    header = ["run", "epochs", "seconds", "whole", "images/s", "ms/step", "cold", "warm", "checkpoints", "evaluation"]
    lines = [
        [
            row["recipe"],
            f"{row['epochs_measured']} of {row['epochs_whole']}",
            f"{row['seconds']:.1f}",
            f"{row['seconds_whole']:.1f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['ms_per_step']:.2f}",
            f"{row['cold_first_step_s']:.1f}",
            f"{row['warm_first_step_s']:.1f}",
            f"{row['checkpoints_s']:.1f}",
            f"{row['evaluation_s']:.1f}",
        ]
        for row in rows
    ]
    return table(header, lines)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--epochs", type=int, help="a part of the recipe's epochs; the file then says so")
    options.add_argument("--engine", help="train.engine; compiled-graph on a GPU, else eager")
    options.add_argument("--precision", help="train.precision; bf16 on a GPU, else float32")
    options.add_argument("--kernels", help="net.kernels, e.g. triton")
    options.add_argument("--search", help="method.search of DAL; triton on a GPU")
    options.add_argument("--recipes", nargs="*", help="names or files, in place of cifar10/ce and DAL from it")
    options.add_argument("--keep", type=Path, help="a folder for the runs; by default they are thrown away")
    options.add_argument("--override", nargs="*", default=[], help="more key=value for the recipes")
    options.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN try its algorithms first")
    options.add_argument("--data", type=Path, help="where the sets lie; $FAROUT_DATA, else they are made")
    options.add_argument("--child", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.child:
        plan = json.loads(asked.child)
        Path(plan["answer"]).write_text(json.dumps(child(plan) | {"run": plan["run"]}))
        return 0
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    asked.engine = asked.engine or ("compiled-graph" if on_gpu else "eager")
    asked.precision = asked.precision or ("bf16" if on_gpu else "float32")
    asked.search = asked.search or ("triton" if on_gpu else None)
    asked.epochs = asked.epochs or (1 if asked.quick else None)
    asked.chained = not asked.recipes
    asked.recipes = asked.recipes or ["cifar10/ce", "cifar10/dal-reference"]
    with tempfile.TemporaryDirectory() as spare:
        scratch = Path(spare)
        given = asked.data or os.environ.get("FAROUT_DATA")
        asked.data = Path(given) if given else made_data(scratch / "data", 0.01 if asked.quick else 1.0)
        rows = measured(asked, scratch)
    result = about(device, ["triton"]) | {
        "data": "given" if given else "made",
        "engine": asked.engine,
        "precision": asked.precision,
        "kernels": asked.kernels,
        "search": asked.search,
        "cudnn_benchmark": asked.cudnn_benchmark,
        "quick": asked.quick,
        "target": TARGET,
        "runs": rows,
    }
    write(result, "runs", asked.out, device)
    print(shown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
