"""What all benchmarks share: which machine and versions, clocks, a table, a results file, and the fit of a law."""

import argparse
import json
import math
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # benchmarks run from a checkout that is not installed

Row = dict[str, Any]

LAWS: dict[str, Callable[[float], float]] = {
    "linear": lambda n: n,
    "n log n": lambda n: n * math.log(n),
}
"""t = a + b·f(n), by name."""


def parser(doc: str) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="small and soon done; its figures are not for quoting")
    made.add_argument("--out", type=Path, help="a folder for <date>-<device>-<subject>.json")
    return made


def device_name(device: str = "cpu") -> str:
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name())
    return f"{platform.machine()} CPU"


def about(device: str = "cpu", packages: Sequence[str] = ()) -> Row:
    """Date, machine and versions; the load tells how quiet the machine was."""
    found = {"python": platform.python_version()}
    for package in ("torch", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "date": date.today().isoformat(),
        "device": device_name(device),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "versions": found,
    }


def write(result: Row, subject: str, out: Path | None, device: str = "cpu") -> None:
    """<date>-<device>-<subject>.json in `out`, nothing without it."""
    if out is None:
        return
    slug = "cpu" if not device.startswith("cuda") else device_name(device).lower().replace(" ", "-")
    subject += "-quick" if result.get("quick") else ""  # never in place of a file that is quoted
    path = out / f"{result['date']}-{slug}-{subject}.json"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def table(header: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Columns of text, the first to the left and numbers to the right."""
    cells = [list(header), *([str(cell) for cell in line] for line in lines)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    rows = [[cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))]
            for line in cells]  # fmt: skip
    return "\n".join("  ".join(row).rstrip() for row in rows)


def cpu_seconds() -> float:
    """CPU time of this process, all threads, and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def clocked(work: Callable[[], object]) -> Row:
    """Wall and CPU seconds of `work`."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu}


def fit(points: Sequence[tuple[float, float]], law: str) -> Row:
    """Least squares of t = a + b·f(n) through (n, t): the numbers, R² and the largest residual as a share of t.

    >>> fit([(1, 3.0), (2, 5.0), (3, 7.0)], "linear")["b"]
    2.0
    """
    shape = LAWS[law]
    f, t = [shape(n) for n, _ in points], [t for _, t in points]
    f_mean, t_mean = statistics.fmean(f), statistics.fmean(t)
    spread = sum((x - f_mean) ** 2 for x in f)
    b = sum((x - f_mean) * (y - t_mean) for x, y in zip(f, t, strict=True)) / spread if spread else 0.0
    a = t_mean - b * f_mean
    residuals = [y - a - b * x for x, y in zip(f, t, strict=True)]
    total = sum((y - t_mean) ** 2 for y in t)
    r2 = 1 - sum(r * r for r in residuals) / total if total else 1.0
    return {
        "law": law,
        "a": a,
        "b": b,
        "r2": r2,
        "worst_residual": max(abs(r) / y for r, y in zip(residuals, t, strict=True)),
    }
