"""The largest resident memory of a job, in a process of its own: python memory.py JOB FOLDER prints megabytes.

For `pages` it is what was added to what the process had when it began to read.
"""

import os
import resource
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

IMAGES = 10_000_000


def sparse_images(folder: Path) -> Path:
    """Ten million images, 31 GB, of which the disk holds nothing."""
    path = folder / "tiny_images.bin"
    with path.open("wb") as file:
        file.truncate(IMAGES * 3072)
    (folder / "80mn_cifar_idxs.txt").write_text("\n".join(map(str, range(1, 1000))))
    return path


def train(folder: Path) -> None:
    """Outlier exposure with the ten million as outliers, mined from all of them too."""
    import numpy as np

    import farout

    rng = np.random.default_rng(0)
    np.savez(folder / "id.npz", images=rng.integers(0, 256, (220, 32, 32, 3), np.uint8), labels=np.arange(220) % 3)
    farout.train(
        "demo/oe",
        [
            *(f"data.id={folder / 'id.npz'}", f"data.outliers={sparse_images(folder)}", "data.size=32"),
            *("data.mean=[0.5,0.5,0.5]", "data.std=[0.5,0.5,0.5]", "data.loader={name: streamed, workers: 0}"),
            *("net={name: small-conv, in_channels: 3, width: 4}", "data.batch_size=100", "data.held_out=0.05"),
            *("method={name: poem, pool: 2000, keep: 500}", "train.epochs=2", "train.device=cpu"),
        ],
        run=folder / "run",
    )


def pages(folder: Path) -> int:
    """150,000 images at random places, as an epoch would: no page that was touched may stay. What was there before."""
    import torch

    from farout.data.tiny_images import TinyImages

    images = TinyImages(sparse_images(folder))
    images.read(torch.arange(1000))
    before = resident()
    for rows in torch.randint(IMAGES, (150_000,)).split(1000):
        images.read(rows)
    return before


def resident() -> int:
    """The most this process ever held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def metrics(folder: Path) -> None:
    """All metrics of ten million scores, no two alike."""
    import torch

    from farout.metrics import summary

    scores = torch.rand(IMAGES)
    summary(id_scores=scores[: IMAGES // 2] + 0.1, ood_scores=scores[IMAGES // 2 :])


if __name__ == "__main__":
    job = {"train": train, "pages": pages, "metrics": metrics}[sys.argv[1]]
    before = job(Path(sys.argv[2])) or 0
    print(resident() - before)
