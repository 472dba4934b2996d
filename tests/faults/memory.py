"""The largest resident memory of jobs on millions of images and scores, each in a process of its own.

python memory.py JOB FOLDER COUNT        prints megabytes
python memory.py --out FOLDER            all jobs at ten million, into <date>-cpu-memory.json

For `pages` it is what was added to what the process had when it began to read.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

MILLIONS = 10
CAPS = {"train": (600, 90), "pages": (50, 0), "metrics": (400, 60)}
"""Megabytes: a base, of which torch alone is about 300, and so many for every million; 1,500, 50 and 1,000 at ten."""


def cap(job: str, millions: int) -> int:
    base, each = CAPS[job]
    return base + each * millions


def sparse_images(folder: Path, count: int) -> Path:
    """Ten million images are 31 GB, of which the disk holds nothing."""
    path = folder / "tiny_images.bin"
    with path.open("wb") as file:
        file.truncate(count * 3072)
    (folder / "80mn_cifar_idxs.txt").write_text("\n".join(map(str, range(1, 1000))))
    return path


def train(folder: Path, count: int) -> None:
    """POEM with all of the images as outliers, mined from all of them."""
    import numpy as np

    import farout

    rng = np.random.default_rng(0)
    np.savez(folder / "id.npz", images=rng.integers(0, 256, (220, 32, 32, 3), np.uint8), labels=np.arange(220) % 3)
    farout.train(
        "demo/oe",
        [
            *(f"data.id={folder / 'id.npz'}", f"data.outliers={sparse_images(folder, count)}", "data.size=32"),
            *("data.mean=[0.5,0.5,0.5]", "data.std=[0.5,0.5,0.5]", "data.loader={name: streamed, workers: 0}"),
            *("net={name: small-conv, in_channels: 3, width: 4}", "data.batch_size=100", "data.held_out=0.05"),
            *("method={name: poem, pool: 2000, keep: 500}", "train.epochs=2", "train.device=cpu"),
        ],
        run=folder / "run",
    )


def pages(folder: Path, count: int) -> int:
    """150,000 images at random places, as an epoch would: no page that was touched may stay. What was there before."""
    import torch

    from farout.data.tiny_images import TinyImages

    images = TinyImages(sparse_images(folder, count))
    images.read(torch.arange(1000))
    before = resident()
    for rows in torch.randint(count, (150_000,)).split(1000):
        images.read(rows)
    return before


def resident() -> int:
    """The most this program ever held, in megabytes; `ru_maxrss` would begin with what the one that started it held."""
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(peak.split()[1]) // 1024


def metrics(folder: Path, count: int) -> None:
    """All metrics of as many scores, hardly two alike."""
    import torch

    from farout.metrics import summary

    scores = torch.rand(count)
    summary(id_scores=scores[: count // 2] + 0.1, ood_scores=scores[count // 2 :])


def measure(job: str, millions: int) -> int:
    """A job in a process of its own: megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, job, folder, str(millions * 1_000_000)]
        path = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
        if done.returncode:
            raise RuntimeError(done.stderr)
        return int(done.stdout.split()[-1])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True, help="a folder for the results")
    out = options.parse_args().out
    rows = []
    for job in CAPS:
        began = time.monotonic()
        megabytes = measure(job, MILLIONS)
        rows.append({"job": job, "megabytes": megabytes, "cap": cap(job, MILLIONS)})
        rows[-1]["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(rows[-1]), flush=True)
    import torch

    about = {"subject": "memory", "date": date.today().isoformat(), "count": MILLIONS * 1_000_000, "rows": rows}
    about |= {"system": platform.platform(), "torch": torch.__version__}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{about['date']}-cpu-memory.json").write_text(json.dumps(about, indent=2) + "\n")
    return int(any(row["megabytes"] >= row["cap"] for row in rows))


if __name__ == "__main__":
    if sys.argv[1].startswith("-"):
        sys.exit(main())
    job = {"train": train, "pages": pages, "metrics": metrics}[sys.argv[1]]
    before = job(Path(sys.argv[2]), int(sys.argv[3])) or 0
    print(resident() - before)
