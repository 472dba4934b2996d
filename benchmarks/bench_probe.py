"""What a linear probe costs on a CPU: DAL, OE and plain cross-entropy beside scikit-learn's LogisticRegression.

    python benchmarks/bench_probe.py --quick                        a tenth of the rows, one round
    python benchmarks/bench_probe.py --out benchmarks/results       write <date>-cpu-probe.json

All on one ID matrix, 100,000 x 384 in float32 with 150 classes, rows of unit length as sentence encoders give them;
LogisticRegression with its defaults (lbfgs), ours for 10 epochs, with one pass over the outliers in each. The classes
overlap about as the intents of CLINC150 do in MiniLM's embedding, where lbfgs stops after 21 iterations. Rounds are
interleaved; a ratio is to LogisticRegression in the same round, and the table shows their median. CPU time is that of
all threads, which a crowded machine disturbs less than it does the wall clock; OMP_NUM_THREADS=1 makes it exact.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout that is not installed

from farout.estimators import DALClassifier, OEClassifier

Row = dict[str, Any]
FEATURES, CLASSES, SPREAD, EPOCHS = 384, 150, 4.0, 10
TARGET = 1.3


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def data(rows: int) -> dict[str, np.ndarray]:
    """Gaussian classes and outliers around no class, on the sphere, and rows to test on."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((CLASSES, FEATURES), dtype=np.float32)

    def around(labels: np.ndarray | None, count: int) -> np.ndarray:
        noise = SPREAD * random.standard_normal((count, FEATURES), dtype=np.float32)
        return unit(noise if labels is None else centres[labels] + noise)

    y, y_test = (random.integers(0, CLASSES, count) for count in (rows, 5000))
    return {"x": around(y, rows), "y": y, "x_test": around(y_test, 5000), "y_test": y_test, "out": around(None, rows)}


def variants(sets: dict[str, np.ndarray]) -> dict[str, Callable[[], Any]]:
    """What is timed; the first is what the others are held against."""
    x, y, out = sets["x"], sets["y"], sets["out"]
    ours = {"epochs": EPOCHS, "held_out": 0, "random_state": 0}
    shares = {"1/4": len(x) // 4, "1/2": len(x) // 2, "1": len(x)}
    made: dict[str, Callable[[], Any]] = {
        "LogisticRegression": lambda: LogisticRegression().fit(x, y),
        "CE": lambda: OEClassifier(**ours).fit(x, y),
        "OE, 1 outlier a row": lambda: OEClassifier(**ours).fit(x, y, X_out=out),
    }
    for name, count in shares.items():
        made[f"DAL, {name} outlier a row"] = lambda count=count: DALClassifier(**ours).fit(x, y, X_out=out[:count])
    return made


def measure(name: str, run: Callable[[], Any], sets: dict[str, np.ndarray], number: int) -> Row:
    wall, cpu = time.perf_counter(), time.process_time()
    model = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    accuracy = float(model.score(sets["x_test"], sets["y_test"]))
    row = {"round": number, "variant": name, "wall_s": wall, "cpu_s": cpu, "accuracy": accuracy}
    row |= {"iterations": int(np.max(model.n_iter_)), "load": os.getloadavg()[0]}
    print(row, flush=True)
    return row


def medians(rows: list[Row]) -> list[Row]:
    """One line a variant: median seconds, and the median of the ratios within each round."""
    base = {row["round"]: row for row in rows if row["variant"] == "LogisticRegression"}
    lines = []
    for name in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == name]
        line: Row = {"variant": name, "accuracy": mine[0]["accuracy"], "iterations": mine[0]["iterations"]}
        for clock in ("wall", "cpu"):
            line[f"{clock}_s"] = statistics.median(row[f"{clock}_s"] for row in mine)
            ratios = [row[f"{clock}_s"] / base[row["round"]][f"{clock}_s"] for row in mine]
            line[f"{clock}_ratio"] = statistics.median(ratios)
            line[f"{clock}_ratio_range"] = [min(ratios), max(ratios)]
        lines.append(line)
    return lines


def table(lines: list[Row]) -> str:
    text = [f"{'variant':<24}{'wall s':>9}{'ratio':>8}{'CPU s':>9}{'ratio':>8}{'iterations':>12}{'accuracy':>10}"]
    for line in lines:
        clocks = "".join(f"{line[f'{c}_s']:>9.2f}{line[f'{c}_ratio']:>8.2f}" for c in ("wall", "cpu"))
        text.append(f"{line['variant']:<24}{clocks}{line['iterations']:>12}{line['accuracy']:>10.4f}")
    return "\n".join([*text, f"target: DAL at most {TARGET} times LogisticRegression"])


def about(rows: int, taken: list[Row]) -> Row:
    return {
        "date": date.today().isoformat(),
        "device": f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "sklearn": sklearn.__version__},
        "rows": rows,
        "features": FEATURES,
        "classes": CLASSES,
        "epochs": EPOCHS,
        "medians": medians(taken),
        "runs": taken,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10,000 rows, one round")
    parser.add_argument("--rounds", type=int, help="default 3, or 1 with --quick")
    parser.add_argument("--out", type=Path, help="a folder for <date>-cpu-probe.json")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, rounds = 10_000 if asked.quick else 100_000, asked.rounds or (1 if asked.quick else 3)
    sets = data(rows)
    runs = variants(sets)
    taken: list[Row] = []
    for number in range(rounds):
        taken += [measure(name, run, sets, number) for name, run in runs.items()]
        report = about(rows, taken)
        if asked.out is not None:  # after every round, lest a run be cut off
            asked.out.mkdir(parents=True, exist_ok=True)
            (asked.out / f"{report['date']}-cpu-probe.json").write_text(json.dumps(report, indent=1) + "\n")
    print(table(report["medians"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
