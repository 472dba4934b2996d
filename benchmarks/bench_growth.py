"""How cost grows: a training step, an evaluation and a certificate against their sizes, each held to its law.

    PYTHONPATH=src python benchmarks/bench_growth.py --out benchmarks/results --figures docs/images
    PYTHONPATH=src python benchmarks/bench_growth.py --quick
    PYTHONPATH=src python benchmarks/bench_growth.py --draw benchmarks/results/2026-11-15-cpu-growth.json

What theory says, for M outliers, D features, K classes and S steps of the search:

    step against num_search      a + b·S      each step is two products, 4·M·D·K FLOP
    step against batch           a + b·M      everything is done sample by sample
    step against classes         a + b·K      head, its gradient and the search
    step against features        a + b·D      likewise
    evaluation against samples   a + b·n      one forward a sample, every score from it
    metrics against samples      a + b·n·log n, one sort
    certificate against samples  a + b·n      33 prices over 512 rows, a few over all

Steps against num_search, classes and features are those of a linear head on embeddings, where the search is not hidden
behind a network; the batch is that of a whole network (small-conv on a CPU, WRN-40-2 in bf16 on a GPU). Sizes are
interleaved: every round takes each once, and a point is the median over rounds, of CPU seconds (one thread) on a CPU
and of event times on a GPU. The fit is plain least squares, with R² and the largest residual as a share of its point.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recording import LAWS, Row, about, fit, parser, table, write

Work = Callable[[], object]
SHAPE = {"batch": 256, "classes": 100, "features": 512, "num_search": 10}


def head_step(device: str, batch: int, classes: int, features: int, num_search: int, search: str) -> Work:
    """One DAL step of a linear head on embeddings, forward, search, backward and optimiser."""
    import torch
    from torch import nn

    from farout.methods import METHODS
    from farout.nets.net import Net
    from farout.training import ENGINES, Objective
    from farout.training.optim import sgd
    from farout.types import Batch

    torch.manual_seed(0)
    net = Net(nn.Identity(), nn.Linear(features, classes))
    method = METHODS["dal-reference"](num_search=num_search, search=search)
    objective = Objective(net, method).to(device).train()
    engine = "graphed" if device == "cuda" else "eager"
    descent = ENGINES[engine](objective, sgd(objective.parameters(), lr=0.01))
    x, x_out = (torch.rand(batch, features, device=device) for _ in range(2))
    given = Batch(x, torch.randint(classes, (batch,), device=device), x_out)
    return lambda: descent(given, 0.01)


def net_step(device: str, batch: int) -> Work:
    """One DAL step of a whole network on `batch` inliers and twice as many outliers."""
    import torch

    from farout.methods import METHODS
    from farout.nets.make import make_net
    from farout.training import ENGINES, Objective
    from farout.training.optim import sgd
    from farout.types import Batch

    torch.manual_seed(0)
    on_gpu = device == "cuda"
    spec = {"name": "wrn"} if on_gpu else {"name": "small-conv", "in_channels": 3, "width": 8}
    net = make_net({"mean": [0.5] * 3, "std": [0.25] * 3, "num_classes": 10, **spec}).to(device)
    net.precision = "bf16" if on_gpu else "float32"
    objective = Objective(net.to(memory_format=torch.channels_last), METHODS["dal-reference"]()).to(device).train()
    descent = ENGINES["graphed" if on_gpu else "eager"](objective, sgd(objective.parameters(), lr=0.01))
    x, x_out = (torch.randint(256, (n, 3, 32, 32), device=device).byte() for n in (batch, 2 * batch))
    given = Batch(x, torch.randint(10, (batch,), device=device), x_out)
    return lambda: descent(given, 0.01)


def evaluation(device: str, count: int) -> Work:
    """`evaluate_net` on `count` ID and `count` OOD images with five scores, leaving out what is fitted."""
    import torch

    from farout.components import make
    from farout.data.arrays import ArraySet
    from farout.evaluation import evaluate_net
    from farout.nets.make import make_net
    from farout.scores import SCORES

    torch.manual_seed(0)
    spec = {"name": "wrn"} if device == "cuda" else {"name": "small-conv", "in_channels": 3, "width": 8}
    net = make_net({"mean": [0.5] * 3, "std": [0.25] * 3, "num_classes": 10, **spec}).to(device)
    images = torch.randint(256, (count, 3, 32, 32)).byte()
    inliers, outliers = ArraySet("id", images, torch.randint(10, (count,))), ArraySet("ood", images.flip(0))
    scores = {name: make("score", SCORES, {"name": name}) for name in ("msp", "max-logit", "energy", "gen")}
    return lambda: evaluate_net(net, scores, inliers, {"far": {"ood": outliers}})


def metrics(device: str, count: int) -> Work:
    import torch

    from farout.metrics import summary

    torch.manual_seed(0)
    id_scores, ood_scores = torch.randn(count) + 1, torch.randn(count)
    return lambda: summary(id_scores=id_scores, ood_scores=ood_scores)


def certificate(device: str, count: int) -> Work:
    """Bounds on the worst-case risk of a head on ReLU features at ten radii: the domain that is not exact."""
    import torch

    from farout.worst_case.certificate import worst_risk

    torch.manual_seed(0)
    weight = torch.randn(10, 128).to(device)
    weight[0, 3] -= 8  # L₋ > L₊, else a closed form would answer
    z = torch.randn(count, 128, device=device).relu()
    radii = [0.1 * n for n in range(1, 11)]
    return lambda: worst_risk(z, weight, torch.zeros(10, device=device), radii, domain="nonnegative")


def curves(device: str, quick: bool) -> dict[str, tuple[str, Sequence[int], Callable[[int], Work]]]:
    """Subject -> (law, sizes, size -> what to time)."""
    on_gpu = device == "cuda"
    search = "triton" if on_gpu else "closed-form"

    def head(**change: int) -> Work:
        base = SHAPE | ({"batch": 1024} if on_gpu else {"features": 128, "batch": 128})
        return head_step(device, search=search, **(base | change))

    def cut(sizes: Sequence[int]) -> Sequence[int]:
        return sizes[:4] if quick else sizes

    wide = (128, 256, 512, 1024, 1536, 2048) if on_gpu else (64, 128, 256, 512, 768, 1024)
    many = (10, 100, 250, 500, 750, 1000) if on_gpu else (50, 100, 200, 400, 600, 800)
    images = (2000, 4000, 8000, 16_000, 24_000, 32_000) if on_gpu else (250, 500, 1000, 2000, 3000, 4000)
    rows = (20_000, 50_000, 100_000, 200_000, 400_000, 600_000) if on_gpu else (4000, 8000, 16_000, 32_000, 64_000)
    found = {
        "step against num_search": ("linear", cut((1, 2, 5, 10, 20, 30, 40)), lambda n: head(num_search=n)),
        "step against classes": ("linear", cut(many), lambda n: head(classes=n)),
        "step against features": ("linear", cut(wide), lambda n: head(features=n)),
        "step against batch": (
            "linear",
            cut((32, 64, 128, 256, 384, 512) if on_gpu else (8, 16, 32, 64, 96, 128)),
            lambda n: net_step(device, n),
        ),
        "evaluation against samples": ("linear", cut(images), lambda n: evaluation(device, n)),
        "certificate against samples": ("linear", cut(rows), lambda n: certificate(device, n)),
    }
    if not on_gpu:  # metrics are the CPU's work on every machine
        sizes = cut((50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000))
        found["metrics against samples"] = ("n log n", sizes, lambda n: metrics(device, n))
    return found


def seconds(work: Work, device: str) -> float:
    if device == "cuda":
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measured(law: str, sizes: Sequence[int], make: Callable[[int], Work], device: str, rounds: int) -> Row:
    """The points of one curve, and its fit."""
    works = {size: make(size) for size in sizes}
    for work in works.values():
        for _ in range(6 if device == "cuda" else 2):  # recorded, cached, grown
            work()
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size, work in works.items():
            taken[size].append(seconds(work, device))
    points = [(size, statistics.median(times)) for size, times in taken.items()]
    spread = [[min(times), max(times)] for times in taken.values()]
    return {"points": points, "range": spread, "rounds": rounds, "fit": fit(points, law)}


def draw(result: Row, path: Path) -> None:
    """All curves of a results file as one picture: points, the fitted law, R²."""
    from farout.report.histogram import COLOURS, pyplot

    plt = pyplot("drawing how cost grows")
    found = result["curves"]
    figure, axes = plt.subplots(-(-len(found) // 4), 4, figsize=(12, 2.9 * -(-len(found) // 4)))
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for axis, (name, curve) in zip(axes.flat, found.items(), strict=False):
        law, (x, y) = curve["fit"], zip(*curve["points"], strict=True)
        grid = [max(x) * (n + 1) / 100 for n in range(100)]
        fitted = [1e3 * (law["a"] + law["b"] * LAWS[law["law"]](n)) for n in grid]
        axis.plot(grid, fitted, color=COLOURS[0], linewidth=1.2)
        axis.plot(x, [1e3 * t for t in y], "o", color=COLOURS[1], markersize=4)
        axis.set_title(f"{name}\n{law['law']}, R² = {law['r2']:.4f}", fontsize=9)
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.set_xlabel(name.rpartition(" ")[2], fontsize=8)
        axis.set_ylabel("ms", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.ticklabel_format(style="plain")
        axis.xaxis.set_major_locator(plt.MaxNLocator(4))
    figure.suptitle(f"{result['device']}, {result['date']}", fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"wrote {path}")


def picture_of(result: Row) -> str:
    return "growth-cpu.png" if result["device"].endswith("CPU") else "growth-gpu.png"


def shown(found: dict[str, Row]) -> str:
    def line(name: str, curve: Row) -> list[Any]:
        law, points = curve["fit"], curve["points"]
        sizes = f"{points[0][0]:,} .. {points[-1][0]:,}"
        times = f"{1e3 * points[0][1]:.2f} .. {1e3 * points[-1][1]:.2f}"
        return [name, law["law"], sizes, times, f"{law['r2']:.4f}", f"{100 * law['worst_residual']:.0f} %"]

    lines = [line(name, curve) for name, curve in found.items()]
    return table(["curve", "law", "sizes", "ms", "R²", "worst residual"], lines)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--device", help="cuda if there is one")
    options.add_argument("--only", nargs="*", default=[], help="curves whose names begin so")
    options.add_argument("--rounds", type=int, help="how often each point is taken")
    options.add_argument("--figures", type=Path, help="a folder for growth-<cpu|gpu>.png")
    options.add_argument("--draw", type=Path, help="draw a results file and measure nothing")
    asked = options.parse_args()
    if asked.draw:
        result = json.loads(asked.draw.read_text())
        draw(result, (asked.figures or Path("docs/images")) / picture_of(result))
        return 0
    import torch

    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    rounds = asked.rounds or (5 if asked.quick else 30 if device == "cuda" else 7)
    found: dict[str, Row] = {}
    failed: dict[str, str] = {}
    for name, (law, sizes, make) in curves(device, asked.quick).items():
        if asked.only and not name.startswith(tuple(asked.only)):
            continue
        try:
            found[name] = measured(law, sizes, make, device, rounds)
            print(name, [(n, round(1e3 * t, 3)) for n, t in found[name]["points"]], flush=True)
        except Exception as error:  # the other curves are still wanted
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: {failed[name]}", flush=True)
    result = about(device) | {"threads": 1, "quick": asked.quick, "rounds": rounds, "curves": found, "failed": failed}
    result["clock"] = "CUDA events" if device == "cuda" else "CPU seconds, one thread"
    write(result, "growth", asked.out, device)
    if asked.figures:
        draw(result, asked.figures / picture_of(result))
    print(shown(found))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
