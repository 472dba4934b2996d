"""The demo's training, by farout's loop and by the loop that everyone writes: eager, with a DataLoader.

    python benchmarks/bench_demo.py --out benchmarks/results
    python benchmarks/bench_demo.py --quick                    2 epochs

Two numbers first. The demo's network (small-conv, width 16, on 8 x 8) takes 0.92 MFLOP an image and training step, 0.18
GFLOP for 64 + 128 images: 4 ms on one core at 45 GFLOP/s. A batch is 12 kB of pixels: what a per-image pipeline costs
is neither arithmetic nor bytes but calls, some 50 µs an image.

Both train demo/ce, then demo/dal from it: the same network, data, optimiser, schedule, number of steps and losses, with
DAL's own code for the search. Ours is `farout.train` with what it does besides: log, checkpoints, calibration. Theirs
is a set with a padded random crop of each image in __getitem__, scaled and normalised there as well, two shuffled
DataLoaders side by side, num_workers 0 and 2, persistent, and the network with nn.Conv2d alone (net.kernels: plain). No
logs and no checkpoints are asked of it. "The steps alone" are as many forwards, backwards and optimiser steps on a
batch that is already there, with either network: what no loop can save.

Runs are interleaved; CPU seconds of all threads and of worker processes, and wall seconds. OMP_NUM_THREADS=1 makes the
first exact on a crowded machine.
"""

import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from farout import build, run
from farout.config import Config
from farout.methods import METHODS
from farout.nets.net import Net
from farout.training import SCHEDULES
from farout.types import Batch
from recording import Row, about, clocked, parser, table, write

TARGET = 2.0


class Images(Dataset[tuple[Tensor, int]]):
    """Images and labels, each image through its transform as it is asked for."""

    def __init__(self, x: Tensor, y: Tensor, mean: list[float], std: list[float], padding: int) -> None:
        self.x, self.y, self.padding = x, y, padding
        self.mean, self.std = (torch.tensor(v).view(-1, 1, 1) for v in (mean, std))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.x[index].float() / 255
        padded = F.pad(image, [self.padding] * 4)
        top, left = torch.randint(2 * self.padding + 1, (2,)).tolist()
        side = image.shape[-1]
        image = padded[:, top : top + side, left : left + side]
        return (image - self.mean) / self.std, int(self.y[index])


def whole(samples: Any) -> tuple[Tensor, Tensor]:
    x, y = samples.read(torch.arange(len(samples)))
    return x, y


def eager(config: Config, workers: int, start: dict[str, Tensor] | None) -> Net:
    """The straightforward loop: zip two DataLoaders, forward, backward, step."""
    torch.manual_seed(0)
    data, splits = config.data, build.id_splits(config.data)
    like = (data.mean, data.std, data.augment["padding"])
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_workers": workers}
    options |= {"persistent_workers": workers > 0}
    inliers = DataLoader(Images(*whole(splits.train), *like), batch_size=data.batch_size, **options)
    outliers = None
    if data.outliers:
        pool = build.outlier_set(data, splits.train.classes)
        outliers = DataLoader(Images(*whole(pool), *like), batch_size=data.outlier_batch_size, **options)
    net = build.net(config, len(splits.train.classes))
    net = Net(net.body, net.head).train()  # images come normalised
    if start is not None:
        net.load_state_dict(start)
    method = METHODS[config.method["name"]](**{k: v for k, v in config.method.items() if k != "name"})
    optim = {key: value for key, value in config.optim.items() if key != "name"}
    optimizer = torch.optim.SGD(net.parameters(), **({"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4} | optim))
    schedule = SCHEDULES[config.schedule["name"]](
        lr=optim["lr"], steps_per_epoch=len(inliers), epochs=config.train.epochs
    )
    done = 0
    for _ in range(config.train.epochs):
        others = endless(outliers)
        for x, y in inliers:
            for group in optimizer.param_groups:
                group["lr"] = schedule(done)
            terms = method.loss(net, Batch(x, y, None if outliers is None else next(others)))
            optimizer.zero_grad()
            torch.stack(list(terms.values())).sum().backward()
            optimizer.step()
            done += 1
    return net


def endless(loader: Any) -> Any:
    """Outliers for as long as inliers last."""
    while loader is not None:
        for x, _ in loader:
            yield x


def configs(epochs: int | None, kernels: str) -> dict[str, Config]:
    changes = ["train.device=cpu", f"net.kernels={kernels}", *([f"train.epochs={epochs}"] if epochs else [])]
    return {name: Config.load(f"demo/{name}", changes) for name in ("ce", "dal")}


def ours(epochs: int | None) -> None:
    """demo/ce and demo/dal by `farout.train`."""
    with tempfile.TemporaryDirectory() as spare:
        first = None
        for name in ("ce", "dal"):
            more = [] if first is None else [f"train.init={first}"]
            changes = ["train.device=cpu", *([f"train.epochs={epochs}"] if epochs else []), *more]
            first = run.train(f"demo/{name}", changes, run=Path(spare) / name).folder


def theirs(epochs: int | None, workers: int) -> None:
    start = None
    for config in configs(epochs, "plain").values():
        net = eager(config, workers, start)
        start = {**net.state_dict()} if start is None else start


def steps_alone(epochs: int | None, kernels: str) -> None:
    """What no loop can save: the same number of forwards, backwards and optimiser steps, on one batch that is there."""
    for config in configs(epochs, kernels).values():
        data, splits = config.data, build.id_splits(config.data)
        net = build.net(config, len(splits.train.classes)).to(memory_format=torch.channels_last).train()
        method = METHODS[config.method["name"]](**{k: v for k, v in config.method.items() if k != "name"})
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
        x, y = splits.train.read(torch.arange(data.batch_size))
        x_out = x.repeat(2, 1, 1, 1) if data.outliers else None
        for _ in range(config.train.epochs * (len(splits.train) // data.batch_size)):
            terms = method.loss(net, Batch(x, y, x_out))
            optimizer.zero_grad()
            torch.stack(list(terms.values())).sum().backward()
            optimizer.step()


def convolution_share() -> Row:
    """Which share of the plain steps' CPU time is torch's convolutions, forward and backward."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        steps_alone(1, "plain")
    spent = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    whole = sum(spent.values())
    backward = spent.get("aten::convolution_backward", 0.0)
    forward = sum(spent.get(f"aten::{name}", 0.0) for name in ("mkldnn_convolution", "_slow_conv2d_forward"))
    return {"backward": backward / whole, "forward": forward / whole}


def medians(rows: list[Row]) -> list[Row]:
    lines, base = [], [row for row in rows if row["variant"] == "farout"]
    for name in dict.fromkeys(row["variant"] for row in rows):
        mine, line = [row for row in rows if row["variant"] == name], {"variant": name}
        for clock in ("cpu", "wall"):
            line[f"{clock}_s"] = statistics.median(row[f"{clock}_s"] for row in mine)
            ratios = [row[f"{clock}_s"] / own[f"{clock}_s"] for row, own in zip(mine, base, strict=True)]
            line[f"{clock}_over_farout"] = statistics.median(ratios)
            line[f"{clock}_range"] = [min(ratios), max(ratios)]
        lines.append(line)
    return lines


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, help="default 3, or 1 with --quick")
    asked = options.parse_args()
    warnings.simplefilter("ignore")
    epochs, rounds = (2 if asked.quick else None), asked.rounds or (1 if asked.quick else 3)
    variants = {
        "farout": lambda: ours(epochs),
        "DataLoader, num_workers=0": lambda: theirs(epochs, 0),
        "DataLoader, num_workers=2": lambda: theirs(epochs, 2),
        "the steps alone": lambda: steps_alone(epochs, "gemm"),
        "the steps alone, nn.Conv2d": lambda: steps_alone(epochs, "plain"),
    }
    ours(1)  # data are made and libraries loaded before the clock runs
    rows = []
    for number in range(rounds):
        for name, work in variants.items():
            rows.append({"round": number, "variant": name, **clocked(work)})
            print(rows[-1], flush=True)
    lines = medians(rows)
    result = about() | {"threads": torch.get_num_threads(), "rounds": rounds, "quick": asked.quick, "target": TARGET}
    result |= {
        "epochs": {name: c.train.epochs for name, c in configs(epochs, "gemm").items()},
        "medians": lines,
        "runs": rows,
    }
    result["convolution_share"] = convolution_share()
    write(result, "demo", asked.out)
    shown = [[n["variant"], *(f"{n[k]:.2f}" for k in ("cpu_s", "cpu_over_farout", "wall_s", "wall_over_farout"))]
             for n in lines]  # fmt: skip
    print(table(["loop", "CPU s", "x farout", "wall s", "x farout"], shown))
    print(f"wanted: farout at least {TARGET} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
