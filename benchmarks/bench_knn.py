"""The KNN score against FAISS's flat index and against torch.cdist + topk, and what Mahalanobis holds in memory.

    PYTHONPATH=src python benchmarks/bench_knn.py --out benchmarks/results     # FAISS on a CPU, cdist on a GPU
    PYTHONPATH=src python benchmarks/bench_knn.py --quick

Two numbers first. 10,000 queries on a bank of 50,000 x 128: 2·B·N·D = 128 GFLOP, 2 ms at a GPU's 67 TFLOP/s in float32
and 0.6 s on two CPU cores at 200 GFLOP/s; the bank is 26 MB, but the B x N distances, read again by the choice of the k
nearest, are 2 GB written and 2 GB read, 1 ms at 4.2 TB/s: so both are near each other, and no part of the matrix may
go through memory more than it must. Mahalanobis: B·D + B·K doubles, 51 + 4 MB for B = 50,000; B x B would be 20 GB.

Rounds are interleaved and the median ratio within a round counts; on a CPU that of CPU seconds (all threads), on a GPU
of event times. FAISS (IndexFlatL2, its own threads) and ours search the same normalised features for the same k, FAISS
through `search` on the finished index. Answers are compared: the k-th distances agree to 1e-4.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from recording import ROOT, Row, about, cpu_seconds, parser, table, write

SHAPES = ((50_000, 128, 50, 500), (50_000, 128, 50, 10_000), (50_000, 512, 50, 4_000), (200_000, 768, 100, 2_000))
"""Bank rows, features, k, queries: CIFAR on WRN-40-2 twice, on a ResNet-18, and a share of ImageNet on a ViT.

FAISS takes about three times as long a query for 500 queries at once as for 2,000 or more, so both are here, and the
verdict is on the worst of them for us: few queries alone would flatter.
"""
TARGET_CPU = 1.2


def features(bank: int, width: int, queries: int, device: str):
    """A fitted score's bank and queries, as a ReLU network gives them."""
    import torch

    draws = torch.Generator().manual_seed(0)
    made = torch.randn(bank + queries, width, generator=draws).relu_()
    return made[:bank].to(device), made[bank:].to(device)


def variants(bank, queries, k: int, device: str) -> dict[str, Callable[[], object]]:
    """Ours first; each returns the k-th nearest distance (B,)."""
    import torch
    import torch.nn.functional as F

    from farout.scores.knn import KNN
    from farout.types import Outputs

    score = KNN(k=k).to(device)
    score.bank = F.normalize(bank, dim=1)
    logits = queries.new_empty(len(queries), 0)
    made: dict[str, Callable[[], object]] = {"farout": lambda: -score(Outputs(queries, logits))}
    if device == "cpu" and find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatL2(bank.shape[1])
        index.add(score.bank.numpy())

        def flat():
            squared, _ = index.search(F.normalize(queries, dim=1).numpy(), k)
            return torch.from_numpy(squared[:, -1]).clamp(min=0).sqrt()

        made["faiss IndexFlatL2"] = flat

    def plain(rows: int):
        def distances():
            z = F.normalize(queries, dim=1)
            parts = [torch.cdist(q, score.bank).topk(k, dim=1, largest=False).values[:, -1] for q in z.split(rows)]
            return torch.cat(parts)

        return distances

    if device == "cuda":
        made["torch.cdist + topk, 1,000 queries at once"] = plain(1000)
        made["torch.cdist + topk, all at once"] = plain(len(queries))
    return made


def seconds(work: Callable[[], object], device: str) -> Row:
    """Wall and CPU seconds on a CPU; those between two events on a GPU."""
    if device == "cuda":
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return {"seconds": begin.elapsed_time(end) / 1e3}
    wall, cpu = time.perf_counter(), cpu_seconds()
    work()
    return {"seconds": cpu_seconds() - cpu, "wall_s": time.perf_counter() - wall}


def measured(shape: tuple[int, int, int, int], device: str, rounds: int) -> list[Row]:
    """Median seconds of each variant, ours over it, and how far its answer is from ours."""
    import torch

    bank, width, k, count = shape
    runs = variants(*features(bank, width, count, device), k, device)
    apart, memory = {}, {}
    answers = {}
    for name, work in runs.items():
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        with torch.no_grad():
            answers[name] = work()
        memory[name] = (torch.cuda.max_memory_allocated() - held) / 1e6 if device == "cuda" else None
        apart[name] = float((answers[name] - answers["farout"]).abs().max())
    taken: dict[str, list[Row]] = {name: [] for name in runs}
    with torch.no_grad():
        for _ in range(rounds):
            for name, work in runs.items():
                taken[name].append(seconds(work, device))
    ours = [row["seconds"] for row in taken["farout"]]
    lines = []
    for name, rows in taken.items():
        ratios = [mine / row["seconds"] for mine, row in zip(ours, rows, strict=True)]
        line: Row = {"bank": bank, "features": width, "k": k, "queries": count, "variant": name}
        line |= {"seconds": statistics.median(row["seconds"] for row in rows)}
        if device == "cpu":
            walls = [mine["wall_s"] / row["wall_s"] for mine, row in zip(taken["farout"], rows, strict=True)]
            line |= {"wall_s": statistics.median(row["wall_s"] for row in rows)}
            line |= {"farout_over_it_wall": statistics.median(walls)}
        line |= {"farout_over_it": statistics.median(ratios), "range": [min(ratios), max(ratios)]}
        lines.append(line | {"apart": apart[name], "memory_mb": memory[name]})
    return lines


def peak_mb() -> float:
    """What this program has held at most. Not ru_maxrss, which begins with the peak of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024 / 1e6


def mahalanobis_child(rows: int) -> None:
    """Score `rows` features at once in this process, and print how far its memory rose."""
    import torch

    from farout.scores.mahalanobis import Mahalanobis
    from farout.types import Outputs

    width, classes = 128, 10
    score = Mahalanobis()
    score.centre, score.whitening = torch.zeros(width).double(), torch.eye(width).double()
    score.means = torch.randn(classes, width).double()
    z = torch.randn(rows, width)
    score(Outputs(z[:1000], z.new_empty(1000, 0)))  # libraries come into memory before it is read
    before = peak_mb()
    score(Outputs(z, z.new_empty(rows, 0)))
    print(json.dumps({"rows": rows, "rise_mb": peak_mb() - before, "square_mb": rows * rows * 8 / 1e6}))


def mahalanobis(rows: int) -> Row:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, __file__, "--mahalanobis", str(rows)]
    found: Row = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    return found


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--mahalanobis", type=int, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.mahalanobis:
        mahalanobis_child(asked.mahalanobis)
        return 0
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = ((10_000, 128, 50, 1_000),) if asked.quick else SHAPES
    rounds = 3 if asked.quick else (30 if device == "cuda" else 3)
    lines = [line for shape in shapes for line in measured(shape, device, rounds)]
    held = [mahalanobis(rows) for rows in ((10_000,) if asked.quick else (10_000, 20_000, 50_000))]
    result = about(device, ["faiss-cpu"]) | {
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "quick": asked.quick,
        "clock": "CUDA events" if device == "cuda" else "CPU seconds of all threads",
        "target": {"farout_over_faiss": TARGET_CPU},
        "knn": lines,
        "mahalanobis": held,
    }
    write(result, "knn", asked.out, device)
    rows = [
        [f"{n['bank']} x {n['features']}, k {n['k']}, {n['queries']}", n["variant"], f"{1e3 * n['seconds']:.1f}",
         f"{n['farout_over_it']:.2f}", f"{n['apart']:.1e}"] for n in lines
    ]  # fmt: skip
    print(table(["bank, k, queries", "variant", "ms", "farout / it", "apart"], rows))
    lines = [[n["rows"], f"{n['rise_mb']:.0f}", f"{n['square_mb']:.0f}"] for n in held]
    print(table(["Mahalanobis, rows at once", "memory MB", "a B x B matrix MB"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
