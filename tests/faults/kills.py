"""Kill real training processes with SIGKILL, resume them, and hold the end against a run that nobody touched.

    python tests/faults/kills.py --kills 200 --out benchmarks/results

A child is forked from a process that has imported everything and run nothing, so that a life costs a second and not
six; what it runs is the command line. The moments:

start   any time from the first instruction on, imports excepted
row     after a random row of the log, plus a random part of a step
write   in the middle of a checkpoint's bytes
rename  between the checkpoint's new name and the removal of the old ones
log     in the middle of a row of the log
seen    from outside, as soon as a half-written file is seen
"""

import argparse
import json
import os
import platform
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import farout.cli
import farout.run
from farout.data.demo import DEMO_SETS
from farout.training import checkpoint, load_state, log, read_rows

METHODS = {
    "ce": ["demo/ce"],
    "dal": ["demo/dal", "method.warmup=1", "method.rho=0.001"],
    "poem": ["demo/oe", "method=poem", "method.pool=300", "method.keep=120"],
}
SMALL = [
    *("net.width=4", "data.batch_size=100", "data.outlier_batch_size=50", "train.epochs=3"),
    *("train.log_every=1", "train.checkpoint_every=2", "train.device=cpu"),
]
ROWS = 18
MOMENTS = ("start", "row", "write", "rename", "log", "seen")


def warm_up() -> None:
    """What costs a process seconds and is the same in each: done before forking, it is done once."""
    for name in ("demo/digits", "demo/outliers"):
        DEMO_SETS[name]("train")
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # its first use imports torch's compiler


def command(method: str, seed: int, folder: Path) -> list[str]:
    return ["farout", "train", *METHODS[method], *SMALL, f"train.seed={seed}", "--run", str(folder), "--resume"]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def live(arguments: list[str], moment: str, rng: random.Random) -> int:
    """Fork a child that runs the command line, bent so that it dies by its own hand where only it can know when."""
    child = os.fork()
    if child:
        return child
    sys.argv = arguments
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    if moment == "write":
        checkpoint._put = dying_put(rng.randint(1, 4), rng.random())
    if moment == "rename":
        checkpoint._flush_folder = dying_flush(rng.randint(1, 4))
    if moment == "log":
        log.RunLog.write = dying_write(rng.randint(1, 6), rng.random())
    code = 1
    try:
        farout.cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        os._exit(code)


def dying_put(nth: int, share: float) -> Any:
    writes = Counter()

    def put(file, head, payload):
        writes["all"] += 1
        content = head + bytes(payload)
        if writes["all"] < nth:
            file.write(content)
            return
        file.write(content[: round(share * len(content))])
        file.flush()
        die()

    return put


def dying_flush(nth: int) -> Any:
    renames = Counter()

    def flush(path):
        renames["all"] += path.name == "checkpoints"
        if renames["all"] == nth:
            die()

    return flush


def dying_write(nth: int, share: float) -> Any:
    rows, write = Counter(), log.RunLog.write

    def half(self, row):
        rows["all"] += 1
        if rows["all"] < nth:
            write(self, row)
            return
        line = json.dumps(row) + "\n"
        with self.path.open("a") as file:
            file.write(line[: round(share * len(line))])
        die()

    return half


def wait_for(child: int, folder: Path, moment: str, rng: random.Random) -> None:
    """Watch the child from outside until its moment has come, then kill it; or until it is dead or done."""
    handle = os.pidfd_open(child)
    lines = count_lines(folder / "log.jsonl")
    wanted = rng.randint(lines, ROWS) if moment == "row" else -1
    if moment == "start":
        select.select([handle], [], [], rng.uniform(0, 1.0))
        os.kill(child, signal.SIGKILL)
    pause = 0.0005 if moment in ("row", "seen") else None  # else it ends by itself
    while not select.select([handle], [], [], pause)[0]:
        if moment == "row" and count_lines(folder / "log.jsonl") >= wanted:
            select.select([handle], [], [], rng.uniform(0, 0.04))
            os.kill(child, signal.SIGKILL)
        if moment == "seen" and half_written(folder / "checkpoints"):
            os.kill(child, signal.SIGKILL)
    os.close(handle)


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def half_written(folder: Path) -> bool:
    return folder.is_dir() and any(name.endswith(".part") for name in os.listdir(folder))


def run(arguments: list[str], folder: Path, moment: str, rng: random.Random) -> int:
    """One life: its exit code, or −9 where it was killed."""
    child = live(arguments, moment, rng)
    wait_for(child, folder, moment, rng)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def timeless(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "log.jsonl")
    return [{key: value for key, value in row.items() if key != "images_per_second"} for row in rows]


def compare(whole: Path, cut: Path) -> Counter:
    """What differs between a run left alone and one that was killed and resumed."""
    found = Counter()
    states = [load_state(checkpoint.Checkpoints(folder / "checkpoints").files()[-1]) for folder in (whole, cut)]
    detectors = [(folder / "detector" / "model.safetensors").read_bytes() for folder in (whole, cut)]
    found["wrong_resumes"] = int(not same(*states) or detectors[0] != detectors[1])
    left, right = timeless(whole), timeless(cut)
    steps = Counter(row["step"] for row in right)
    found["lost_rows"] = sum(row["step"] not in steps for row in left)
    found["doubled_rows"] = sum(count - 1 for count in steps.values())
    found["changed_rows"] = sum(row not in left for row in right)
    return found


def faults(kills: int, per_run: int, seed: int, place: Path) -> dict[str, Any]:
    """Kill until `kills` are reached, a few in each run, the methods in turn."""
    rng = random.Random(seed)
    counts, by_moment, by_method, found = Counter(), Counter(), Counter(), Counter()
    wholes: dict[str, Path] = {}
    while counts["kills"] < kills:
        method = list(METHODS)[counts["runs"] % len(METHODS)]
        if method not in wholes:
            wholes[method] = place / f"{method}-whole"
            assert run(command(method, 0, wholes[method]), wholes[method], "never", rng) == 0
        cut = place / f"{method}-cut"
        code = None
        for _ in range(min(per_run, kills - counts["kills"])):
            # Each moment in turn, so that few kills meet all of them.
            moment = MOMENTS[counts["lives"] % len(MOMENTS)]
            code = run(command(method, 0, cut), cut, moment, rng)
            counts["lives"] += 1
            if code == 0:
                break
            assert code == -signal.SIGKILL, f"{method} ended with {code} where it was to be killed at {moment}"
            counts["kills"] += 1
            by_moment[moment] += 1
            by_method[method] += 1
        if code != 0:
            code = run(command(method, 0, cut), cut, "never", rng)
            found["failed_resumes"] += code != 0
        found.update(compare(wholes[method], cut) if code == 0 else {})
        counts["runs"] += 1
        shutil.rmtree(cut)
    zero = dict.fromkeys(("failed_resumes", "wrong_resumes", "lost_rows", "doubled_rows", "changed_rows"), 0)
    about = {"kills": counts["kills"], "runs": counts["runs"], "seed": seed}
    return {**about, "by_moment": dict(by_moment), "by_method": dict(by_method), **zero, **dict(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per-run", type=int, default=5, help="kills before a run is let through")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder for the dated results file")
    arguments = parser.parse_args()
    warm_up()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        result = faults(arguments.kills, arguments.per_run, arguments.seed, Path(place))
    machine = {"system": platform.platform(), "torch": torch.__version__}
    result = {"subject": "faults", "date": str(date.today()), **result, **machine}
    result["seconds"] = round(time.perf_counter() - begun, 1)
    print(json.dumps(result, indent=2))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"{date.today()}-cpu-faults.json").write_text(json.dumps(result, indent=2) + "\n")
    bad = [key for key in result if key.endswith(("_resumes", "_rows")) and result[key]]
    sys.exit(f"error: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
