"""How long a report takes to make and to open: 5 methods x 5 seeds x 6 OOD sets, as a paper would have.

    python benchmarks/bench_report.py                            print one JSON row
    python benchmarks/bench_report.py --out benchmarks/results   write it there as well

The runs are synthetic (normal scores, smooth logs), so only what is read from files is in the report: the certificate,
the map and the mistakes need networks. `open_s` is from navigation to two frames after the load event in headless
Chromium, the median of five fresh pages; the target is 3 s.
"""

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "report"))

from synthetic_runs import write_run

from farout.see import write_report

METHODS = ("ce", "oe", "energy", "dal", "doe")
SETS = ("textures", "svhn", "places365", "lsun", "isun", "cifar100")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"


def runs(folder: Path, samples: int) -> Path:
    for shift, method in enumerate(METHODS):
        for seed in range(5):
            place = folder / method / f"s{seed}"
            write_run(place, method, seed, sets=SETS, count=samples, shift=2 + shift / 4, steps=200)
    return folder


def opened(path: Path, times: int = 5) -> float | None:
    """Seconds until the page is drawn; None where there is no browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    seconds = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        for _ in range(times):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(path.as_uri())
            seconds.append(page.evaluate(DRAWN) / 1000)  # since the navigation began
            page.close()
        browser.close()
    return round(statistics.median(seconds), 2)


def measure(samples: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = runs(Path(folder) / "runs", samples)
        start = time.perf_counter()
        path = write_report([made], Path(folder) / "report.html", samples=0)
        took = time.perf_counter() - start
        return {
            "date": date.today().isoformat(),
            "machine": f"{platform.machine()}, {platform.system()}",
            "methods": len(METHODS),
            "seeds": 5,
            "sets": len(SETS),
            "samples": samples,
            "make_s": round(took, 2),
            "size_mb": round(path.stat().st_size / 1e6, 2),
            "open_s": opened(path),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000, help="of each set")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    row = measure(chosen.samples)
    print(json.dumps(row))
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / f"{row['date']}-report.json").write_text(json.dumps(row, indent=2) + "\n")
    return 0 if row["open_s"] is None or row["open_s"] < 3 else 1


if __name__ == "__main__":
    sys.exit(main())
