"""How long the worst-case search takes, by each of its implementations, beside what the hardware allows.

    python benchmarks/bench_search.py --quick                                      a short run, on a CPU too
    python benchmarks/bench_search.py --check --out benchmarks/results             verify, then time, then write JSON

--check (on a GPU) first holds the Triton kernels against the float64 oracle: every rule, small and large heads, γ = 0
and γ > 0, with the closed form's own error in float32 beside theirs. A row where the oracle's p came within rounding
of 0 before a sign was taken is set aside and counted: there float32 may rightly take the other sign. It also looks
for races (the same bits in every run), a barrier that never opens, capture in a CUDA graph and torch.compile.
--tune tries other tiles.

Times are medians of interleaved rounds, back to back on the device, inputs warm in its cache. Floors: each input read
and each output written once at the measured copy rate; 2 products × 2MDK × steps at the measured float32 product rate.
"""

import argparse
import importlib
import itertools
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout that is not installed

from farout.worst_case.search import COSTS, RULES, STEPS, SearchRule, Worst, autograd_search, closed_form_search

kernel: Any = importlib.import_module("farout.worst_case.triton_search")  # by name: a function is called so, too

SHAPES = [(256, 128, 10), (256, 128, 100), (64, 2048, 1000)]
QUICK = [(256, 128, 10), (256, 128, 100)]
STEP_SIZE = 0.3
TOLERANCE = 1e-5
EVERY_RULE = [
    SearchRule(cost=cost, step=step, charge=charge)
    for cost, step, charge in itertools.product(COSTS, STEPS, ("final", "before-last"))
]
TILES = [  # BLOCK_M, BLOCK_N, BLOCK_R, warps, stages, precision
    (64, 64, 16, 8, 3, "ieee"),
    (64, 64, 32, 8, 2, "ieee"),
    (64, 64, 32, 8, 4, "ieee"),
    (64, 128, 16, 8, 3, "ieee"),
    (64, 64, 16, 4, 3, "ieee"),
    (64, 64, 32, 8, 3, "tf32x3"),
    (64, 64, 32, 4, 3, "tf32x3"),
]

Search = Callable[[], Worst]
Row = dict[str, Any]


class Case:
    """One problem: a linear head, outlier features z (M, D), a start p0 and γ, on one device."""

    def __init__(self, M: int, D: int, K: int, rule: SearchRule, gamma: float, steps: int, device: str) -> None:
        self.sizes, self.rule, self.steps = (M, D, K), rule, steps
        self.head = nn.Linear(D, K, device=device).requires_grad_(False)
        self.head.weight *= 2  # larger, and ten steps magnify float32's own rounding beyond 1e-5
        self.z = torch.randn(M, D, device=device).relu()
        self.p0 = rule.draw(self.z)
        self.gamma = torch.tensor(gamma, device=device)

    def by(self, search: Callable[..., Worst]) -> Search:
        head, z, p0, gamma, steps, rule = self.head, self.z, self.p0, self.gamma, self.steps, self.rule
        return lambda: search(head, z, p0, gamma, steps=steps, step_size=STEP_SIZE, rule=rule)

    def tiled(self, **options: Any) -> Search:
        before_last = self.rule.charge == "before-last"
        at = kernel.Problem(
            *(self.z, self.p0, self.head.weight, self.head.bias, self.gamma),
            *(self.steps, STEP_SIZE, self.rule.cost, self.rule.step, before_last),
        )
        return lambda: Worst(*kernel.tiled_search(at, **options))

    def priced(self) -> "Case":
        """The same with γ a third of the usual pull, in the units of its cost: enough to matter under any rule."""
        ascent = (torch.softmax(self.head(self.z), dim=-1) - 1 / self.sizes[2]) @ self.head.weight
        pull = ascent.norm(dim=-1) if self.rule.cost == "l2" else ascent.abs()
        self.gamma = pull.median() / 3 * (self.sizes[1] if self.rule.cost == "mean-abs" else 1)
        return self

    def truth(self) -> tuple[Worst, Tensor]:
        """The oracle in float64, and (M,) whether a row never came within rounding of a change of sign."""
        head, z, gamma = nn.Linear(*self.head.weight.T.shape).to(self.z).double(), self.z.double(), self.gamma.double()
        head.load_state_dict({name: value.double() for name, value in self.head.state_dict().items()})
        trace = [self.p0.double()]
        for _ in range(self.steps):
            step = autograd_search(head, z, trace[-1], gamma, steps=1, step_size=STEP_SIZE, rule=self.rule)
            trace.append(step.p)
        want = Worst(trace[-1], step.cost)
        close = 2e-6 * want.p.abs().max()
        signs = self.rule.cost != "l2" and self.rule.step != "proximal" and self.gamma > 0
        unsure = [((p != 0) & (p.abs() < close)).any(-1) for p in trace[1:-1]] if signs else []
        return want, ~torch.stack([*unsure, torch.zeros(len(z), dtype=torch.bool, device=z.device)]).any(0)


# ---- check


def poison(device: str) -> None:
    """Leave NaN in the memory that the next search is given: what it does not write is then seen."""
    sizes = (256, 2_048, 32_768, 131_072, 1 << 20, 1 << 22)
    for block in [torch.empty(size, device=device) for size in sizes]:
        block.fill_(torch.nan)


def errors(case: Case, search: Search) -> Row:
    """Largest errors of p and cost, relative to their largest entries, over the rows that are sure."""
    want, sure = case.truth()
    poison(case.z.device.type)
    got = search()
    ratios = [((g.double() - w)[sure].abs().max() / w.abs().max()).item() for g, w in zip(got, want, strict=True)]
    return {"error": math.inf if any(map(math.isnan, ratios)) else max(ratios), "set_aside": int((~sure).sum())}


def verdict(name: str, work: Callable[[], Row]) -> Row:
    """Run one check; a crash is a failed check, so that one run tells as much as it can."""
    start = time.perf_counter()
    try:
        row = work()
        row["ok"] = bool(row.get("ok", True) and row.get("error", 0.0) <= TOLERANCE)
    except Exception as crash:
        row = {"ok": False, "crash": f"{type(crash).__name__}: {crash}"[:600]}
    row = {"check": name, **row, "seconds": round(time.perf_counter() - start, 2)}
    print("ok    " if row["ok"] else "FAILED", *(f"{k}={v}" for k, v in row.items() if k != "ok"), flush=True)
    return row


def rule_name(rule: SearchRule) -> str:
    return f"{rule.cost} {rule.step} {rule.charge}"


def sweep(sizes: tuple[int, int, int], rules: list[SearchRule], make: Callable[[Case], Search]) -> Row:
    """The worst error over rules and both prices, each with a problem of its own."""
    worst: Row = {"error": 0.0, "closed_form_error": 0.0, "rows_set_aside": 0, "rows": 0}
    for rule, priced in itertools.product(rules, (False, True)):
        case = Case(*sizes, rule, 0.0, 10, "cuda")
        if priced:
            case.priced()
        row = errors(case, make(case))
        witness = errors(case, case.by(closed_form_search))["error"]
        worst["closed_form_error"] = max(worst["closed_form_error"], witness)
        worst["rows"] += sizes[0]
        worst["rows_set_aside"] += row["set_aside"]
        if row["error"] > worst["error"]:
            worst |= {"error": row["error"], "at": f"{rule_name(rule)} gamma={case.gamma:.3g}"}
    return worst


def zero_weights(make: Callable[[Case], Search]) -> Row:
    """No gradient: a unit step with γ = 0 must leave p where it is, and give no NaN."""
    case = Case(64, 128, 10, SearchRule(cost="l2", step="unit"), 0.0, 10, "cuda")
    case.head.weight.zero_()
    return {"ok": torch.equal(make(case)().p, case.p0)}


def repeats(make: Callable[[Case], Search], times: int = 50) -> Row:
    """The same bits every time: a moving result is a race."""
    case = Case(64, 2048, 1000, RULES["reference"], 0.0, 10, "cuda").priced()
    search = make(case)
    first = search()
    moved = sum(not all(map(torch.equal, first, search())) for _ in range(times))
    return {"ok": moved == 0, "runs": times, "moved": moved}


def stuck_barrier() -> Row:
    """A count that starts too low, as if programs were missing: it must end, soon, in NaN."""
    case = Case(64, 2048, 1000, RULES["reference"], 0.0, 10, "cuda").priced()
    arrived = torch.full((1,), -1_000_000, dtype=torch.int32, device="cuda")
    return {"ok": bool(case.tiled(path="persistent", arrived=arrived, patience=1000)().cost.isnan().all())}


def same_as(case: Case, search: Search) -> Row:
    want, got = case.by(kernel.triton_search)(), search()
    return {"ok": all(map(torch.equal, want, got))}


def compiled_kernel(sizes: tuple[int, int, int]) -> Row:
    case = Case(*sizes, RULES["reference"], 0.0, 10, "cuda").priced()
    return same_as(case, torch.compile(case.by(kernel.triton_search), fullgraph=True))


def captured_kernel(make: Callable[[Case], Search], sizes: tuple[int, int, int]) -> Row:
    case = Case(*sizes, RULES["reference"], 0.0, 10, "cuda").priced()
    replay, held = graphed(make(case))
    before = [t.clone() for t in make(case)()]
    for t in held:
        t.fill_(torch.nan)
    replay()
    return {"ok": all(map(torch.equal, before, held))}


def by_name(case: Case) -> Search:
    return case.by(kernel.triton_search)


def checks() -> list[Row]:
    named = list(RULES.values())
    persistent, split = partial(Case.tiled, path="persistent"), partial(Case.tiled, path="split")
    plain = partial(Case.tiled, path="persistent", cooperative=False)
    large = (64, 2048, 1000)
    work: list[tuple[str, Callable[[], Row]]] = [
        ("rows (256, 128, 10), every rule", partial(sweep, (256, 128, 10), EVERY_RULE, by_name)),
        ("rows (256, 128, 100), every rule", partial(sweep, (256, 128, 100), EVERY_RULE, by_name)),
        ("rows (37, 100, 7), named rules", partial(sweep, (37, 100, 7), named, by_name)),
        ("rows (19, 256, 128), named rules", partial(sweep, (19, 256, 128), named, by_name)),
        ("rows, zero weights", partial(zero_weights, by_name)),
        ("rows in a CUDA graph", partial(captured_kernel, by_name, (256, 128, 10))),
        ("rows under torch.compile", partial(compiled_kernel, (256, 128, 10))),
        ("split (64, 2048, 1000), named rules", partial(sweep, large, named, split)),
        ("split (50, 500, 333), named rules", partial(sweep, (50, 500, 333), named, split)),
        ("split, the same bits", partial(repeats, split, 10)),
        ("persistent, plain launch (64, 2048, 1000), named rules", partial(sweep, large, named, plain)),
        ("persistent, a stuck barrier", stuck_barrier),
        ("persistent (64, 2048, 1000), every rule", partial(sweep, large, EVERY_RULE, persistent)),
        ("persistent (50, 500, 333), named rules", partial(sweep, (50, 500, 333), named, persistent)),
        ("persistent (300, 640, 200), named rules", partial(sweep, (300, 640, 200), named, persistent)),
        ("persistent, zero weights", partial(zero_weights, persistent)),
        ("persistent, the same bits", partial(repeats, persistent)),
        ("persistent in a CUDA graph", partial(captured_kernel, persistent, large)),
        ("persistent, plain launch, in a CUDA graph", partial(captured_kernel, plain, large)),
        ("large head under torch.compile", partial(compiled_kernel, large)),
    ]
    return [verdict(name, check) for name, check in work]


# ---- time


def graphed(search: Search) -> tuple[Callable[[], None], Worst]:
    """The search captured in a CUDA graph: its replay, and the tensors that a replay fills."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            search()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = search()
    return graph.replay, held


def once(run: Callable[[], Any], calls: int, device: str) -> float:
    """Milliseconds a call, over `calls` back to back."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) * 1e3 / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, tuple[float, float]]:
    """Median and interquartile range of milliseconds a call, all runs taking turns, calls enough for about 5 ms."""
    for run in runs.values():
        once(run, 3, device)
    calls = {name: max(1, min(50, round(5 / once(run, 3, device)))) for name, run in runs.items()}
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seen[name].append(once(run, calls[name], device))
    quartiles = {name: statistics.quantiles(times, n=4) for name, times in seen.items()}
    return {name: (q[1], q[2] - q[0]) for name, q in quartiles.items()}


def ceilings(device: str, quick: bool) -> Row:
    """Measured bytes a second of a copy (read + written) and float32 operations a second of a large product."""
    floats, side = (1 << 29, 8192) if device == "cuda" else (1 << 22, 512) if quick else (1 << 25, 1536)
    source = torch.randn(floats, device=device)
    target = torch.empty_like(source)
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    runs = {"copy": lambda: target.copy_(source), "product": lambda: a @ b}
    took = {name: ms / 1e3 for name, (ms, _) in interleaved(runs, 5, device).items()}
    return {"copy_bytes_per_s": 8 * floats / took["copy"], "float32_flop_per_s": 2 * side**3 / took["product"]}


def floors(case: Case, ceiling: Row) -> Row:
    M, D, K = case.sizes
    moved, operations = 4 * (3 * M * D + K * D + K + M + 1), 2 * 2 * M * D * K * case.steps
    return {
        "bytes": moved,
        "flop": operations,
        "bytes_floor_ms": moved / ceiling["copy_bytes_per_s"] * 1e3,
        "flop_floor_ms": operations / ceiling["float32_flop_per_s"] * 1e3,
    }


def replayed(case: Case, options: Row) -> Callable[[], None]:
    return graphed(case.tiled(**options))[0]


def variants(case: Case, device: str, compile_cpu: bool) -> dict[str, Callable[[], Callable[[], Any]]]:
    """What is timed, each as a function that prepares it."""
    closed = case.by(closed_form_search)
    made: dict[str, Callable[[], Callable[[], Any]]] = {
        "oracle (autograd)": lambda: case.by(autograd_search),
        "closed form": lambda: closed,
    }
    if device == "cpu":
        return made | ({"closed form, compiled": lambda: torch.compile(closed)} if compile_cpu else {})
    made |= {
        "closed form, compiled + graphs": lambda: torch.compile(closed, mode="reduce-overhead"),
        "closed form, CUDA graph": lambda: graphed(closed)[0],
        "kernel": lambda: by_name(case),
        "kernel, CUDA graph": lambda: graphed(by_name(case))[0],
    }
    if kernel.fits_rows(*case.sizes[1:]):
        return made
    paths: dict[str, Row] = {
        "persistent": {"path": "persistent", "cooperative": True},
        "persistent, plain launch": {"path": "persistent", "cooperative": False},
        "split": {"path": "split"},
        "persistent, tf32x3": {"path": "persistent", "precision": "tf32x3"},
    }
    for name, options in paths.items():
        made[f"{name}, CUDA graph"] = partial(replayed, case, options)
    return made | {"split": lambda: case.tiled(path="split")}


def prepared(made: dict[str, Callable[[], Callable[[], Any]]]) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """The variants that work, run once each, and why the others do not."""
    runs, skipped = {}, {}
    for name, make in made.items():
        try:
            run = make()
            run()
            runs[name] = run
        except Exception as crash:
            skipped[name] = f"{type(crash).__name__}: {crash}"[:300]
            print(f"skipped {name}: {skipped[name]}", flush=True)
    return runs, skipped


def timings(sizes: tuple[int, int, int], arguments: argparse.Namespace, ceiling: Row) -> list[Row]:
    case = Case(*sizes, RULES[arguments.rule], 0.0, arguments.steps, arguments.device)
    runs, skipped = prepared(variants(case, arguments.device, arguments.compile))
    took = interleaved(runs, arguments.rounds, arguments.device)
    shared = {"M": sizes[0], "D": sizes[1], "K": sizes[2], "steps": arguments.steps, **floors(case, ceiling)}
    oracle = took["oracle (autograd)"][0]
    return [
        {**shared, "variant": name, "ms": ms, "iqr_ms": spread, "times_oracle": oracle / ms}
        for name, (ms, spread) in took.items()
    ] + [{**shared, "variant": name, "skipped": why} for name, why in skipped.items()]


def tuned() -> list[Row]:
    """Other tiles at the ImageNet shape, other elements a thread at the CIFAR shapes, each with its error."""
    rows = []
    tile, launch, elements = dict(kernel.TILE), dict(kernel.LAUNCH), kernel.ROWS_ELEMENTS

    def measure(name: str, case: Case, search: Search) -> None:
        def work() -> Row:
            row = errors(case, search)
            return {**row, "graph_ms": interleaved({name: graphed(search)[0]}, 20, "cuda")[name][0]}

        rows.append(verdict(f"tune {case.sizes} {name}", work))

    for *block, warps, stages, precision in TILES:
        kernel.TILE.update(zip(("BLOCK_M", "BLOCK_N", "BLOCK_R"), block, strict=True))
        kernel.LAUNCH.update(num_warps=warps, num_stages=stages)
        case = Case(64, 2048, 1000, RULES["reference"], 0.0, 10, "cuda")
        measure(f"{block} warps={warps} stages={stages} {precision}", case, case.tiled(precision=precision))
    kernel.TILE.update(tile)
    kernel.LAUNCH.update(launch)
    for sizes, many in itertools.product([(256, 128, 10), (256, 128, 100)], (16, 32, 64, 128)):
        kernel.ROWS_ELEMENTS = many
        case = Case(*sizes, RULES["reference"], 0.0, 10, "cuda")
        measure(f"{many} elements a thread", case, by_name(case))
    kernel.ROWS_ELEMENTS = elements
    return rows


# ---- report


def versions() -> Row:
    try:
        triton = importlib.import_module("triton").__version__
    except Exception:
        triton = None
    torch_, cuda = torch.__version__, torch.version.cuda
    return {"python": platform.python_version(), "torch": torch_, "triton": triton, "cuda": cuda}


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"


def table(rows: list[Row]) -> str:
    heads = f"{'ms':>10}{'iqr':>9}{'x oracle':>10}{'bytes floor':>13}{'flop floor':>12}"
    lines = [f"{'M, D, K':>16}  {'variant':<34}{heads}"]
    for row in rows:
        sizes = f"{row['M']}, {row['D']}, {row['K']}"
        floor = f"{row['bytes_floor_ms']:>13.5f}{row['flop_floor_ms']:>12.5f}"
        if "skipped" in row:
            lines.append(f"{sizes:>16}  {row['variant']:<34}   skipped: {row['skipped'][:60]}")
        else:
            took = f"{row['ms']:>10.4f}{row['iqr_ms']:>9.4f}{row['times_oracle']:>10.1f}"
            lines.append(f"{sizes:>16}  {row['variant']:<34}{took}{floor}")
    return "\n".join(lines)


def write(report: Row, out: Path | None) -> None:
    """To the file `out`, or in a folder to <date>-<device>-search.json; after every section, lest a run be cut off."""
    if out is None:
        return
    if out.suffix != ".json":
        out = out / f"{report['date']}-{report['device'].replace(' ', '-')}-search.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="verify the kernels first (needs a GPU)")
    parser.add_argument("--tune", action="store_true", help="try other tiles last (needs a GPU)")
    parser.add_argument("--quick", action="store_true", help="CIFAR's shapes only, few rounds")
    parser.add_argument("--compile", action="store_true", help="on a CPU, time the compiled closed form, too")
    parser.add_argument("--rule", choices=RULES, default="reference")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="default 50; 7 on a CPU, 3 with --quick")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="a JSON file, or a folder for <date>-<device>-search.json")
    arguments = parser.parse_args()
    if arguments.device == "cpu" and (arguments.check or arguments.tune):
        parser.error("--check and --tune need a GPU; on a CPU run pytest tests/worst_case/test_triton_search.py")
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 50 if arguments.device == "cuda" else 7)
    return arguments


def main() -> int:
    arguments = parse()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")  # exact float32: no tf32 in what the kernels are held against
    report: Row = {
        "date": date.today().isoformat(),
        "device": device_name(arguments.device),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "rule": arguments.rule,
    }
    print(report, flush=True)
    if arguments.check:
        report["checks"] = checks()
        write(report, arguments.out)
    report["ceilings"] = ceilings(arguments.device, arguments.quick)
    report["times"] = []
    for sizes in QUICK if arguments.quick else SHAPES:
        report["times"] += timings(sizes, arguments, report["ceilings"])
        write(report, arguments.out)
    if arguments.tune:
        report["tuning"] = tuned()
        write(report, arguments.out)
    failed = [row["check"] for row in report.get("checks", []) if not row["ok"]]
    print(f"\nceilings {report['ceilings']}\nfailed checks: {failed or 'none'}\n\n{table(report['times'])}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
