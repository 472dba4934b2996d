"""The three metrics (FPR95, AUROC, AUPR) on 10 million + 10 million scores, against scikit-learn's two functions.

    python benchmarks/bench_metrics.py --out benchmarks/results
    python benchmarks/bench_metrics.py --quick                      1 million + 1 million

Two numbers first. Work: one sort of 20 million keys, some 5·10⁸ comparisons, half a second with vector instructions.
Bytes: the scores are 80 MB as float32; places in int64 beside them would be 160 MB, and every point of the curve is two
counts, 160 MB in int32. So a second or two on one core, and a few hundred MB beside the scores.

`farout.metrics.summary` gives FPR95 and AUPR on both sides and AUROC; scikit-learn is asked for roc_auc_score and
roc_curve, which is less: AUROC and a curve to read FPR95 from. Each is timed in a process of its own that makes the
same scores (float32, as networks give them), interleaved. CPU seconds of all threads, and the process's peak memory
(getrusage), of which what stands before the call is given apart. Values are compared: bit for bit between rounds, and
how far the libraries are apart is in the file. "ties" has scores rounded to three decimals.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

from recording import ROOT, Row, about, parser, table, write

TARGET = {"times_sklearn": 3.0, "peak_gb": 1.0}
VARIANTS = ("farout", "sklearn")


def child(variant: str, count: int, kind: str) -> None:
    """Measure one library in this process and print what was found."""
    import numpy as np

    if variant == "farout":
        from farout.metrics import summary
    else:
        from sklearn.metrics import roc_auc_score, roc_curve

    random = np.random.default_rng(0)
    id_scores = random.standard_normal(count, dtype=np.float32) + np.float32(1)
    ood_scores = random.standard_normal(count, dtype=np.float32)
    if kind == "ties":
        for scores in (id_scores, ood_scores):
            np.round(scores, 3, out=scores)
    before = peak()
    wall, cpu = time.perf_counter(), time.process_time()
    if variant == "farout":
        values = summary(id_scores=id_scores, ood_scores=ood_scores)
    else:
        labels = np.concatenate([np.ones(count, np.int8), np.zeros(count, np.int8)])
        scores = np.concatenate([id_scores, ood_scores])
        area = roc_auc_score(labels, scores)
        fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
        values = {"auroc": float(area), "fpr95_id": float(fpr[np.abs(tpr - 0.95).argmin()])}
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "before_gb": before, "peak_gb": peak(), "values": values}))


def peak() -> float:
    """GB that this process has held at most, programs and libraries included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def launched(variant: str, count: int, kind: str) -> Row:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, __file__, "--child", variant, str(count), kind]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    found: Row = json.loads(answer)
    return found


def compared(kind: str, count: int, rounds: int) -> list[Row]:
    taken: dict[str, list[Row]] = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant in VARIANTS:
            taken[variant].append(launched(variant, count, kind))
            print(kind, variant, taken[variant][-1], flush=True)
    lines = []
    for variant, seen in taken.items():
        line: Row = {"kind": kind, "variant": variant, "values": seen[0]["values"]}
        line["same_bits"] = all(one["values"] == seen[0]["values"] for one in seen)
        for clock in ("cpu", "wall"):
            ratios = [a[f"{clock}_s"] / b[f"{clock}_s"] for a, b in zip(taken["sklearn"], seen, strict=True)]
            line[f"{clock}_s"] = statistics.median(one[f"{clock}_s"] for one in seen)
            line[f"{clock}_times_sklearn"] = statistics.median(ratios)
            line[f"{clock}_range"] = [min(ratios), max(ratios)]
        line |= {key: statistics.median(one[key] for one in seen) for key in ("before_gb", "peak_gb")}
        lines.append(line)
    theirs = lines[1]["values"]
    apart = max(abs(lines[0]["values"][key] - theirs[key]) for key in theirs)
    lines[0]["apart_from_sklearn"] = apart
    return lines


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return 0
    options = parser(__doc__)
    asked = options.parse_args()
    count, rounds = (1_000_000, 3) if asked.quick else (10_000_000, 3)
    kinds = ("distinct",) if asked.quick else ("distinct", "ties")
    rows = [line for kind in kinds for line in compared(kind, count, rounds)]
    result = about(packages=["scikit-learn", "numpy"]) | {
        "scores_a_side": count,
        "rounds": rounds,
        "quick": asked.quick,
    }
    result |= {"clock": "CPU seconds of all threads", "target": TARGET, "rows": rows}
    write(result, "metrics", asked.out)
    lines = [
        [r["kind"], r["variant"], f"{r['cpu_s']:.2f}", f"{r['cpu_times_sklearn']:.2f}",
         f"{r['wall_times_sklearn']:.2f}", f"{r['peak_gb']:.2f}"] for r in rows
    ]  # fmt: skip
    print(table(["scores", "library", "CPU s", "x sklearn", "x sklearn, wall", "peak GB"], lines))
    print(f"wanted: at least {TARGET['times_sklearn']} times scikit-learn's speed in under {TARGET['peak_gb']} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
