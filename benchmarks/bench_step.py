"""Time one training step: OE against DAL, engine by engine, and the reference-shaped step that they replace.

    python benchmarks/bench_step.py --out benchmarks/results    # on a GPU: WRN-40-2, 128 + 256, then ResNet-50 at 224
    python benchmarks/bench_step.py --quick                     # on a CPU: a small network

Two numbers first, WRN-40-2 on 384 images of 32x32: 1.97 GFLOP an image and training step, 0.76 TFLOP in all, 1 ms at
the chip's bf16 rate; about 5 GB of activations through memory, 1.2 ms at 4.2 TB/s. Steps of all variants are
interleaved, each is timed with events around it, and the median is reported.
"""

import argparse
import json
import platform
import statistics
import time
from datetime import date
from pathlib import Path

import torch

from farout import seeds
from farout.components import make
from farout.data.arrays import ArraySet
from farout.data.augment import CropFlip
from farout.data.loaders import Resident
from farout.data.pairs import Pairs
from farout.methods import METHODS
from farout.nets.make import make_net
from farout.training import ENGINES, Objective
from farout.training.optim import sgd


def pairs(device: torch.device, side: int, inliers: int, outliers: int, count: int, channels: int = 3) -> Pairs:
    """Random images that live on the device."""
    draws = seeds.generator(0)
    x = torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=draws)
    y = torch.randint(10, (count,), generator=draws)
    id_set, out_set = ArraySet("id", x, y), ArraySet("out", x.flip(0))
    augment = CropFlip(side // 8)
    return Pairs(
        Resident(id_set, device), Resident(out_set, device), augment, batch_size=inliers, outlier_batch_size=outliers
    )


def endless(source: Pairs):
    epoch = 0
    while True:
        yield from source.epoch(epoch)
        epoch += 1


def stepper(device: torch.device, net: dict, method: dict, engine: str, precision: str, kernels: str | None = None):
    """A function that takes a batch and makes one step."""
    torch.manual_seed(0)
    net = net if kernels is None else {**net, "kernels": kernels}
    made = make_net({"mean": [0.5] * 3, "std": [0.25] * 3, "num_classes": 10, **net}).to(device)
    if precision == "bf16":
        made.precision = "bf16"
        made = made.to(memory_format=torch.channels_last)
    way = make("method", METHODS, method).to(device)
    objective = Objective(made, way).to(device).train()
    descent = ENGINES[engine](objective, sgd(objective.parameters(), lr=0.01))

    def step(batch):
        descent.get_ready(batch)
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=precision != "no TF32"):
            descent(batch, 0.01)

    return step


def timed(step, batch, device: torch.device) -> float:
    """Milliseconds of one step."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step(batch)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    begin = time.perf_counter()
    step(batch)
    return 1e3 * (time.perf_counter() - begin)


def measure(variants: dict, source: Pairs, device: torch.device, steps: int, warm: int) -> list[dict]:
    """Median step of each variant, interleaved."""
    batches, times = endless(source), {name: [] for name in variants}
    for name, step in variants.items():
        begin = time.perf_counter()
        for _ in range(warm):
            step(next(batches))
        if device.type == "cuda":
            torch.cuda.synchronize()
        print(f"warm: {name} ({time.perf_counter() - begin:.1f} s)", flush=True)
    for _ in range(steps):
        for name, step in variants.items():
            times[name].append(timed(step, next(batches), device))
    medians = {name: statistics.median(each) for name, each in times.items()}
    return [
        {
            "variant": name,
            "ms": medians[name],
            "p90": sorted(each)[int(0.9 * len(each))],
            "images_per_second": 1e3 * source.images_per_step / medians[name],
        }
        for name, each in times.items()
    ]


def profile(step, source: Pairs, path: Path | None) -> None:
    """Where a step's device time goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    batches = endless(source)
    with record(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            step(next(batches))
        torch.cuda.synchronize()
    text = seen.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=90)
    print(text)
    if path is not None:
        path.write_text(text)


DAL = {"name": "dal-reference"}
AUTOGRAD = {"name": "dal-reference", "search": "autograd"}
TRITON = {"name": "dal-reference", "search": "triton"}


def plan(device: torch.device, quick: bool) -> dict[str, tuple]:
    """Shapes, and the variants to compare at each."""
    if device.type == "cpu":
        net = {"name": "small-conv", "in_channels": 3, "width": 16}
        variants = {
            "oe": ({"name": "oe"}, "eager", "float32"),
            "dal, autograd search": (AUTOGRAD, "eager", "float32"),
            "dal, closed form": (DAL, "eager", "float32"),
        }
        return {"small-conv 32x32, 64 + 128": (net, (32, 64, 128, 1024), variants)}
    wrn = {
        "reference-shaped: dal, autograd, float32, eager": (AUTOGRAD, "eager", "float32"),
        "reference-shaped, without TF32": (AUTOGRAD, "eager", "no TF32"),
        "oe, graphed": ({"name": "oe"}, "graphed", "bf16"),
        "dal, graphed, triton": (TRITON, "graphed", "bf16"),
        "oe, graphed, fused kernels": ({"name": "oe"}, "graphed", "bf16", "triton"),
        "dal, graphed, triton, fused kernels": (TRITON, "graphed", "bf16", "triton"),
        "oe, compiled-graph": ({"name": "oe"}, "compiled-graph", "bf16"),
        "dal, compiled-graph, closed form": (DAL, "compiled-graph", "bf16"),
        "dal, compiled-graph, triton": (TRITON, "compiled-graph", "bf16"),
    }
    imagenet = {
        "oe, graphed": ({"name": "oe"}, "graphed", "bf16"),
        "dal, graphed, triton": (TRITON, "graphed", "bf16"),
        "dal, graphed, closed form": (DAL, "graphed", "bf16"),
    }
    shapes = {"WRN-40-2 32x32, 128 + 256": ({"name": "wrn"}, (32, 128, 256, 20_000), wrn)}
    if not quick:
        shapes["ResNet-50 224x224, 64 + 64"] = ({"name": "resnet50"}, (224, 64, 64, 1024), imagenet)
    return shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", type=Path, help="write where the time of a variant of WRN-40-2 goes")
    parser.add_argument("--profiled", default="dal, compiled-graph, triton", help="which variant")
    parser.add_argument("--only", default="", help="variants whose titles have this in them; a|b for either")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, help="a JSON file, or a folder for <date>-<device>-step.json")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU"
    result = {"date": str(date.today()), "device": name, "torch": torch.__version__, "shapes": {}}
    steps = min(arguments.steps, 15) if arguments.quick or device.type == "cpu" else arguments.steps
    for shape, (net, (side, inliers, outliers, count), variants) in plan(device, arguments.quick).items():
        source = pairs(device, side, inliers, outliers, count)
        chosen = {
            title: choices
            for title, choices in variants.items()
            if any(part in title for part in arguments.only.split("|"))
        }
        if not chosen:
            continue
        made = {title: stepper(device, net, *choices) for title, choices in chosen.items()}
        rows = measure(made, source, device, steps, warm=6 if device.type == "cuda" else 2)
        result["shapes"][shape] = rows
        if arguments.profile and device.type == "cuda" and shape.startswith("WRN"):
            profile(made[arguments.profiled], source, arguments.profile)
        print(f"\n{shape}")
        for row in rows:
            print(f"  {row['variant']:52s} {row['ms']:9.3f} ms  {row['images_per_second']:10.0f} images/s")
    if arguments.out:
        folder = arguments.out if arguments.out.suffix != ".json" else None
        slug = name.lower().replace(" ", "-")
        path = arguments.out if folder is None else folder / f"{result['date']}-{slug}-step.json"
        path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
