"""Spoil valid files at random and read them, 100,000 times for each reader.

    python tests/fuzz/fuzz.py --inputs 100000 --out benchmarks/results
    python tests/fuzz/fuzz.py --only npz --first 4711 --inputs 1                   one input again

Input number i of a reader is a function of (seed, reader, i). Readers run in forked children under a limit on address
space, so that what asks for more memory than CAP fails; a child that dies or hangs is an input that did it.
"""

import argparse
import json
import mmap
import os
import platform
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from spoil import draw, spoil
from targets import TARGETS, content

from farout.errors import FaroutError

CAP = 1 << 30
"""Bytes of address space a reader may take beyond what the process has; the inputs are a few kilobytes."""
SECONDS = 20
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "exec")


class Outside(BaseException):
    """A reader wrote outside its folder, or started something."""


def importing() -> bool:
    """Whether an import is under way: some modules are imported, and run, only where they are needed."""
    return any("importlib" in line.filename for line in traceback.extract_stack())


def watch(folder: Path) -> None:
    """From now on, what a reader must not do raises; it cannot be switched off in this process."""
    inside = (str(folder), "/dev/null")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not watch.on:
            return
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            name = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes)) else ""
            if name and not name.startswith(inside):
                raise Outside(f"opened {name} for writing")
        if event in FORBIDDEN and not (event == "exec" and importing()):
            raise Outside(event)

    sys.addaudithook(hook)


watch.on = False


def one(name: str, number: int, seed: int, valid: dict[str, bytes], folder: Path) -> tuple[str, str]:
    """Read one spoilt tree: ("read" | "refused" | "crashed", why)."""
    rng = random.Random(f"{seed}/{name}/{number}")
    file = rng.choice(list(valid))
    (folder / file).write_bytes(spoil(valid[file], draw(rng)))
    watch.on = True
    try:
        TARGETS[name].read(folder)
        return "read", ""
    except (FaroutError, ValueError) as error:
        return ("refused", type(error).__name__) if str(error) else ("crashed", f"{file}: {error!r} has no message")
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "crashed", f"{file}: {type(error).__name__}: {str(error)[:200]} at {place.filename}:{place.lineno}"
    finally:
        watch.on = False
        for spoilt in valid:
            (folder / spoilt).write_bytes(valid[spoilt])


def limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + CAP,) * 2)


def child(name: str, first: int, last: int, seed: int, shared: mmap.mmap, report: Path, place: Path) -> None:
    """Inputs `first` to `last`, the number of the one at work in shared memory, crashes in `report`."""
    warnings.simplefilter("ignore")
    folder = place / name
    valid = content(TARGETS[name], folder)
    counts: Counter[str] = Counter()
    TARGETS[name].read(folder)  # the valid tree must be readable, and what is imported is imported now
    for spoilt in valid:
        (folder / spoilt).write_bytes(valid[spoilt])
    limit()
    os.chdir(folder)
    watch(folder)
    with report.open("a") as file:
        for number in range(first, last):
            struct.pack_into("q", shared, 0, number)
            signal.alarm(SECONDS)
            outcome, why = one(name, number, seed, valid, folder)
            signal.alarm(0)
            counts[outcome] += 1
            if outcome == "crashed":
                file.write(json.dumps({"number": number, "why": why}) + "\n")
                file.flush()
        file.write(json.dumps({"counts": counts}) + "\n")


def fuzz(name: str, first: int, inputs: int, seed: int, place: Path) -> dict[str, Any]:
    """All inputs of one reader, in children of 5,000; after a death it goes on behind the input that caused it."""
    shared = mmap.mmap(-1, 8)
    report = place / f"{name}.jsonl"
    report.write_text("")
    number, deaths, done = first, [], 0
    while number < first + inputs:
        last = min(number + 5000, first + inputs)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(name, number, last, seed, shared, report, place)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        at = struct.unpack_from("q", shared, 0)[0]
        if code == 1:
            raise SystemExit(f"the fuzzer itself failed at {name} {at}")
        if code != 0:
            deaths.append({"number": at, "why": f"{signal.Signals(-code).name}"})
            last = at + 1
        done += last - number
        number = last
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.get("counts", {}))
    crashes = [row for row in rows if "why" in row] + deaths
    return {"inputs": done, "read": counts["read"], "refused": counts["refused"], "crashes": crashes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="for each reader")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--out", type=Path, help="a folder for the dated results file")
    arguments = parser.parse_args()
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    readers: dict[str, Any] = {}
    about = {"subject": "fuzz", "date": str(date.today()), "seed": arguments.seed, "cap_bytes": CAP}
    about |= {"system": platform.platform(), "torch": torch.__version__}
    begun, crashes = time.perf_counter(), 0
    place = Path(tempfile.mkdtemp(dir=base))
    try:
        for name in arguments.only:
            found = readers[name] = fuzz(name, arguments.first, arguments.inputs, arguments.seed, place)
            crashes += len(found["crashes"])
            print(f"{name:18} {found['inputs']:7} inputs, {found['read']} read, {found['refused']} refused,", end=" ")
            print(f"{len(found['crashes'])} crashes", flush=True)
            for crash in found["crashes"][:12]:
                print("  ", crash["number"], crash["why"])
            seconds = round(time.perf_counter() - begun, 1)
            write(arguments.out, {**about, "seconds": seconds, "crashes": crashes, "readers": readers})
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(f"error: {crashes} crashes" if crashes else 0)


def write(folder: Path | None, result: dict[str, Any]) -> None:
    """The results so far: a long run that is stopped leaves what it did."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{date.today()}-cpu-fuzz.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
