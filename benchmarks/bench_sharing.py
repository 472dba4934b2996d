"""Several trainings on one GPU at a time: images per second in sum, one process alone and several under MPS.

    nvidia-cuda-mps-control -d                                       # with CUDA_MPS_PIPE_DIRECTORY set, here and there
    PYTHONPATH=src python benchmarks/bench_sharing.py --processes 1 4 --out benchmarks/results

A step of WRN-40-2 is some three hundred small kernels, few of which fill the card; the kernels of another process can
run beside them, if MPS lets both in at once. Each process trains DAL on random images for `--seconds` after its step
was recorded; all of them measure over about the same time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

from bench_step import TRITON, endless, pairs, stepper


def child(seconds: float, inliers: int, outliers: int) -> None:
    """Train for so long and print the rate."""
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    step = stepper(device, {"name": "wrn", "kernels": "triton"}, TRITON, "graphed", "bf16")
    batches = endless(pairs(device, 32, inliers, outliers, 20_000))
    for _ in range(8):
        step(next(batches))
    torch.cuda.synchronize()
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(20):
            step(next(batches))
        torch.cuda.synchronize()
        steps += 20
    print(steps * (inliers + outliers) / (time.perf_counter() - begun))


def rate(processes: int, seconds: float) -> float:
    command = [sys.executable, __file__, "--child", "--seconds", str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(float(process.communicate()[0].split()[-1]) for process in running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="a folder for <date>-<device>-sharing.json")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.seconds, 128, 256)
        return
    mps = "yes" if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else "no"
    rows = []
    for processes in arguments.processes:
        rows.append({"processes": processes, "mps": mps, "images_per_second": rate(processes, arguments.seconds)})
        print(f"{processes} processes, MPS {mps}: {rows[-1]['images_per_second']:,.0f} images/s", flush=True)
    if arguments.out:
        name = torch.cuda.get_device_name()
        what = "DAL on WRN-40-2, 128 + 256 images a step, bf16, graphed, fused kernels"
        note = f"{what}; {name}, torch {torch.__version__}."
        result = {"subject": "sharing", "date": str(date.today()), "device": name, "note": note, "rows": rows}
        path = arguments.out / f"{date.today()}-{name.lower().replace(' ', '-')}-sharing.json"
        path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
