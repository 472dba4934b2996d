"""How many images a second the streamed loader brings at ImageNet's shape, and what limits it.

    PYTHONPATH=src python benchmarks/bench_loader.py --out benchmarks/results      # 2,000 JPEGs, 0 to all cores
    PYTHONPATH=src python benchmarks/bench_loader.py --quick

Two numbers first. Bytes: an image of about 400 x 350 is some 40 kB as JPEG and 150 kB as uint8 at 224 x 224, so 4,400
images/s, what the ResNet-50 step takes, are 0.2 GB/s from the files, which the page cache holds here, and 0.7 GB/s to
the device. Work: decoding and resizing such an image takes 2 to 4 ms of one core, so 4,400 images/s ask for 10 to 18
cores; the rest (reading, stacking, sending to the main process, copying) is to stay small beside it.

A round times, one after another: decoding alone in one process, as the limit of one core; then the product's loader
(`Streamed`, batches of 64, shuffled, on the device) with each number of workers. "efficiency" is the loader's rate over
workers times the rate of one core, and what is missing there is neither decoding nor the lack of cores.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from recording import Row, about, parser, table, write

NEEDED = 4400.0  # images/s of the ResNet-50 step, 64 + 64 at 224: benchmarks/results/*-step.json
BATCH, SIZE = 64, (256, 224)


def made_folder(folder: Path, count: int) -> float:
    """Photographs of a kind: smooth colours with grain, at ImageNet's mean size; the mean bytes of a file."""
    from PIL import Image

    random = np.random.default_rng(0)
    (folder / "a").mkdir(parents=True)
    for number in range(count):
        width, height = int(random.integers(300, 500)), int(random.integers(280, 420))
        blocks = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(blocks).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
        grain = random.integers(-12, 13, (height, width, 1), dtype=np.int16)
        picture = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
        picture.save(folder / "a" / f"{number:05d}.jpg", quality=90)
    sizes = [file.stat().st_size for file in (folder / "a").iterdir()]
    return statistics.fmean(sizes)


def decoding(samples: object, seconds: float) -> float:
    """Images/s of one process that decodes and does nothing else; one thread, as Pillow decodes."""
    from farout.data.image_files import decode

    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        decode(samples.file(count % len(samples)), *SIZE)  # type: ignore[attr-defined,arg-type]
        count += 1
    return count / (time.perf_counter() - begin)


def streaming(samples: object, workers: int, device: str, seconds: float) -> Row:
    """Images/s of the product's loader after its first batches; the first batch's own time is given apart."""
    import torch

    from farout.data.loaders import Streamed

    draws = torch.Generator().manual_seed(workers)
    order = torch.randint(len(samples), (100_000 // BATCH, BATCH), generator=draws)  # type: ignore[arg-type]
    begin = time.perf_counter()
    batches = Streamed(samples, device, workers).batches(list(order))  # type: ignore[arg-type]
    next(batches)
    first = time.perf_counter() - begin
    for _ in range(2 * max(1, workers)):  # what the workers had ready while nobody took anything
        next(batches)
    begin, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - begin < seconds:
        x, _ = next(batches)
        count += len(x)
    if device == "cuda":
        torch.cuda.synchronize()
    rate = count / (time.perf_counter() - begin)
    del batches  # ends the workers
    return {"workers": workers, "images_per_second": rate, "first_batch_s": first}


def copying(device: str) -> float | None:
    """GB/s from pinned memory to the device."""
    if device != "cuda":
        return None
    import torch

    x = torch.empty(BATCH, 3, 224, 224, dtype=torch.uint8).pin_memory()
    x.to(device, non_blocking=True)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(200):
        x.to(device, non_blocking=True)
    torch.cuda.synchronize()
    return 200 * x.numel() / (time.perf_counter() - begin) / 1e9


def limit(rows: list[Row], alone: float, cores: int) -> str:
    """What stands in the way, in words."""
    best = max(rows, key=lambda row: row["images_per_second"])
    if best["images_per_second"] >= NEEDED:
        return f"nothing: {best['workers']} workers bring more than the step takes"
    wanted = NEEDED / alone
    share = best["images_per_second"] / (alone * min(cores, max(1, best["workers"])))
    if share > 0.7:
        return f"decoding: {cores} cores at {alone:.0f} images/s each; {wanted:.0f} such cores would keep up"
    return f"the way from the workers: {share:.0%} of what the cores decode arrives; {wanted:.0f} cores would be needed"


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--workers", type=int, nargs="*", help="by default 0, 1, 2, 4, ... up to the cores")
    asked = options.parse_args()
    import torch

    from farout.data.folders import FolderSet

    torch.set_num_threads(1)  # the main process only hands on; its threads would take the workers' cores
    device, cores = "cuda" if torch.cuda.is_available() else "cpu", len(os.sched_getaffinity(0))
    count, seconds, rounds = (200, 1.0, 1) if asked.quick else (2000, 4.0, 3)
    workers = asked.workers or [0, *(n for n in (1, 2, 4, 8, 12, 16, 24, 32) if n <= cores)]
    with tempfile.TemporaryDirectory() as spare:
        size = made_folder(Path(spare) / "set", count)
        samples = FolderSet("made", Path(spare) / "set", SIZE)
        alone = []
        taken: dict[int, list[Row]] = {n: [] for n in workers}
        for _ in range(rounds):
            alone.append(decoding(samples, seconds))
            for n in workers:
                taken[n].append(streaming(samples, n, device, seconds))
                print(taken[n][-1], flush=True)
    one = statistics.median(alone)
    rows = []
    for n, seen in taken.items():
        rate = statistics.median(row["images_per_second"] for row in seen)
        first = statistics.median(row["first_batch_s"] for row in seen)
        rows.append({"workers": n, "images_per_second": rate, "first_batch_s": first})
        rows[-1] |= {"efficiency": rate / (one * min(cores, max(1, n))), "share_of_needed": rate / NEEDED}
    result = about(device, ["pillow"]) | {
        "usable_cores": cores,
        "images": count,
        "file_bytes": size,
        "batch": BATCH,
        "rounds": rounds,
        "quick": asked.quick,
        "needed_images_per_second": NEEDED,
        "decode_one_core_images_per_second": one,
        "copy_gb_per_second": copying(device),
        "rows": rows,
        "limit": limit(rows, one, cores),
    }
    write(result, "loader", asked.out, device)
    lines = [
        [n["workers"], f"{n['images_per_second']:.0f}", f"{n['efficiency']:.2f}", f"{n['share_of_needed']:.2f}",
         f"{n['first_batch_s']:.2f}"] for n in rows
    ]  # fmt: skip
    print(table(["workers", "images/s", "efficiency", "of 4,400", "first batch s"], lines))
    print(f"one core decodes {one:.0f} images/s, {cores} cores; what limits: {result['limit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
