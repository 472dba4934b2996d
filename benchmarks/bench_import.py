"""What `import farout` costs beyond `import torch`, how soon `farout --help` answers, and what a first step loads.

    python benchmarks/bench_import.py --out benchmarks/results
    python benchmarks/bench_import.py --quick

Every figure is a fresh process, interleaved, after one of each that fills the file cache and writes the byte code; CPU
seconds of the child (user and system, as the kernel counts them), for a crowded machine stretches wall time and not
these. `--help` needs no torch, and must not load it.
"""

import os
import resource
import statistics
import subprocess
import sys
import time

from recording import ROOT, Row, about, parser, table, write

STEP = "import torch; weight = torch.nn.Parameter(torch.ones(2)); made = {}; weight.sum().backward(); made.step()"
COMMANDS = {
    "python": "pass",
    "import torch": "import torch",
    "import torch, farout": "import torch, farout",
    "import farout": "import farout",
    "farout.train, farout.Detector": "import farout; farout.train; farout.Detector",
    "torch.optim.SGD, a step": STEP.format("torch.optim.SGD([weight], lr=0.1)"),
    "farout's SGD, a step": STEP.format("__import__('farout.training.optim').training.optim.sgd([weight], lr=0.1)"),
    "farout --help": "import sys; sys.argv = ['farout', '--help']; from farout.cli import main; main()",
    "farout train --help": "import sys; sys.argv = ['farout', 'train', '--help']; from farout.cli import main; main()",
}
TARGET = {"farout_beyond_torch_s": 0.3, "help_s": 1.0}


def child(code: str) -> Row:
    """CPU and wall seconds of one process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"cpu_s": sum(after[:2]) - sum(before[:2]), "wall_s": wall}


def loads_torch(code: str) -> bool:
    """Whether the process that runs `code` has loaded torch by its end."""
    told = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr)); {code}"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True)
    return ended.stderr.strip().endswith("True")


def main() -> int:
    options = parser(__doc__)
    asked = options.parse_args()
    rounds = 2 if asked.quick else 5
    for code in COMMANDS.values():
        child(code)
    taken: dict[str, list[Row]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, code in COMMANDS.items():
            taken[name].append(child(code))
    rows = []
    for name, seen in taken.items():
        row: Row = {"what": name, "loads_torch": loads_torch(COMMANDS[name])}
        row |= {clock: statistics.median(one[clock] for one in seen) for clock in ("cpu_s", "wall_s")}
        rows.append(row | {"cpu_range": [min(one["cpu_s"] for one in seen), max(one["cpu_s"] for one in seen)]})
    pairs = zip(taken["import torch, farout"], taken["import torch"], strict=True)
    beyond = statistics.median(both["cpu_s"] - torch["cpu_s"] for both, torch in pairs)
    asked_help = next(row["cpu_s"] for row in rows if row["what"] == "farout --help")
    result = about() | {"rounds": rounds, "quick": asked.quick, "clock": "CPU seconds of a fresh process"}
    result |= {"target": TARGET, "farout_beyond_torch_s": beyond, "help_s": asked_help, "rows": rows}
    write(result, "import", asked.out)
    lines = [[r["what"], f"{r['cpu_s']:.3f}", f"{r['wall_s']:.3f}", "yes" if r["loads_torch"] else "no"] for r in rows]
    print(table(["process", "CPU s", "wall s", "loads torch"], lines))
    print(f"farout beyond torch: {beyond:.3f} s (wanted: under {TARGET['farout_beyond_torch_s']})")
    print(f"farout --help: {asked_help:.3f} s (wanted: under {TARGET['help_s']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
