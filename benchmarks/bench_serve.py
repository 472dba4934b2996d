"""How many images a server judges, how long a request takes, and whether one answer is wrong.

    python benchmarks/bench_serve.py runs/demo/dal/s0 --out benchmarks/results
    python benchmarks/bench_serve.py                        without a detector: a small untrained network

Starts `farout serve` as a process of its own on the loopback, then loads it with 1, 8 and 64 clients that each wait
for an answer before they ask again. One request in ten is bad: no image, a decompression bomb, broken JSON, a field
of another name, a cut file. Every answer is compared with the detector's own, every refusal with what was due. Ends
after --requests or --seconds for each number of clients, whichever comes first. Clients and server share the cores;
where others use them too, OMP_NUM_THREADS=1 keeps the threads of one batch from waiting for each other.
"""

import argparse
import asyncio
import base64
import io
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout that is not installed

from farout.detector import Detector, channels_of
from farout.nets.make import make_net
from farout.scores import SCORES

CLIENTS = (1, 8, 64)
POOL = 200
BAD_SHARE = 0.1
TOLERANCE = 1e-5
Row = dict[str, Any]


def stand_in(folder: Path) -> Path:
    """A detector with an untrained network on 32 x 32 colour images: as slow as a trained one."""
    torch.manual_seed(0)
    spec = {"name": "resnet8", "num_classes": 10, "mean": [0.5] * 3, "std": [0.25] * 3}
    detector = Detector(make_net(spec), SCORES["msp"](), classes=[f"class {k}" for k in range(10)], size=32)
    return detector.calibrate(torch.randint(256, (500, 3, 32, 32), dtype=torch.uint8)).save(folder)


def pool_of(detector: Detector) -> tuple[list[bytes], list[Row]]:
    """Encoded images, noise over a random grey, and what the detector says of each, alone."""
    size = detector.size if isinstance(detector.size, int) else detector.size[1]
    channels = channels_of(detector.net) or 3
    generator = torch.Generator().manual_seed(0)
    level = torch.randint(40, 216, (POOL, 1, 1, 1), generator=generator)
    noise = torch.randint(-40, 40, (POOL, channels, size, size), generator=generator)
    images = (level + noise).clamp(0, 255).to(torch.uint8)
    return [encoded(image) for image in images], [wanted(detector, image) for image in images]


def encoded(image: torch.Tensor) -> bytes:
    file = io.BytesIO()
    pixels = image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def wanted(detector: Detector, image: torch.Tensor) -> Row:
    judged = detector.judge(image[None])
    score, threshold = judged.score.item(), detector.threshold.item()
    label = judged.label.item()
    top = judged.probabilities[0].topk(2).values
    return {
        "score": score,
        "verdict": "OOD" if judged.is_ood.item() else "ID",
        "label": detector.classes[label] if detector.classes else str(label),
        # Within rounding of a border either side is right.
        "verdict_sure": abs(score - threshold) > TOLERANCE * max(1.0, abs(score)),
        "label_sure": (top[0] - top[1]).item() > TOLERANCE,
    }


def right(result: Row, want: Row) -> bool:
    near = abs(result["score"] - want["score"]) <= TOLERANCE * max(1.0, abs(want["score"]))
    verdict = result["verdict"] == want["verdict"] or not want["verdict_sure"]
    return near and verdict and (result["label"] == want["label"] or not want["label_sure"])


def form(*pictures: bytes) -> Row:
    return {"files": [("images", ("x.png", picture, "image/png")) for picture in pictures]}


def bad_requests(picture: bytes) -> list[tuple[Row, int]]:
    bomb = io.BytesIO()
    Image.new("1", (6000, 6000)).save(bomb, "PNG")
    return [
        (form(b"this is no image"), 422),
        (form(bomb.getvalue()), 422),
        (form(picture, picture[: len(picture) // 2]), 422),
        ({"files": {"picture": picture}}, 422),
        ({"json": {"images": ["***"]}}, 422),
        ({"json": {"images": []}}, 422),
        ({"content": b'{"images": [', "headers": {"content-type": "application/json"}}, 400),
        ({"content": picture, "headers": {"content-type": "image/png"}}, 415),
    ]


class Request(NamedTuple):
    """A whole HTTP request as bytes, made beforehand; the status that is due; the numbers of its images."""

    wire: bytes
    status: int
    numbers: list[int]


def requests_of(pictures: list[bytes], url: str) -> tuple[list[Request], list[Request]]:
    """Good ones, as forms and as JSON, of one or four images; and bad ones."""
    rng, good = random.Random(0), []
    for _ in range(2 * POOL):
        numbers = [rng.randrange(POOL) for _ in range(rng.choice((1, 1, 1, 4)))]
        chosen = [pictures[n] for n in numbers]
        coded = {"json": {"images": [base64.b64encode(picture).decode() for picture in chosen]}}
        good.append(Request(wire(url, form(*chosen) if rng.random() < 0.5 else coded), 200, numbers))
    return good, [Request(wire(url, request), status, []) for request, status in bad_requests(pictures[0])]


def wire(url: str, request: Row) -> bytes:
    made = httpx.Request("POST", f"{url}/v1/score", **request)
    made.read()
    head = "".join(f"{name}: {value}\r\n" for name, value in made.headers.items())
    return f"POST /v1/score HTTP/1.1\r\n{head}\r\n".encode() + made.content


class Connection:
    """HTTP/1.1 over one socket, no more than is needed: httpx with 64 clients costs more than the server."""

    def __init__(self, url: str) -> None:
        found = httpx.URL(url)
        self.host, self.port = found.host, found.port
        self.reader: asyncio.StreamReader | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        body = await self.reader.readexactly(int(length[1]) if length else 0)
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), body

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()
        self.reader = None


class Load:
    """What all clients share: what is left to do, and what came of it."""

    def __init__(self, made: tuple[list[Request], list[Request]], wants: list[Row], count: int, limit: float) -> None:
        (self.good, self.bad), self.wants = made, wants
        self.left, self.end = count, time.perf_counter() + limit
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.images = self.wrong = self.failed = 0

    async def client(self, url: str, seed: int) -> None:
        rng, connection = random.Random(seed), Connection(url)
        while self.left > 0 and time.perf_counter() < self.end:
            self.left -= 1
            await self.send(connection, rng.choice(self.bad if rng.random() < BAD_SHARE else self.good))
        connection.close()

    async def send(self, connection: Connection, request: Request) -> None:
        start = time.perf_counter()
        try:
            status, body = await connection.ask(request.wire)
        except (OSError, EOFError) as error:
            print(f"no answer: {error!r}")
            self.failed += 1
            connection.close()
            return
        self.statuses[status] += 1
        if status != request.status:
            print(f"{status} where {request.status} was due: {body[:200]!r}")
            self.wrong += 1
        elif status == 200:
            self.seconds.append(time.perf_counter() - start)
            self.images += len(request.numbers)
            self.wrong += not self.all_right(json.loads(body)["results"], request.numbers)

    def all_right(self, results: list[Row], numbers: list[int]) -> bool:
        return len(results) == len(numbers) and all(
            right(got, self.wants[n]) for got, n in zip(results, numbers, strict=True)
        )


async def measure(url: str, pictures: list[bytes], wants: list[Row], clients: int, args: Any) -> Row:
    made = requests_of(pictures, url)
    warm = Load(made, wants, 20, 10)
    await warm.client(url, -1)
    before = batches(url)
    load, start = Load(made, wants, args.requests, args.seconds), time.perf_counter()
    await asyncio.gather(*(load.client(url, seed) for seed in range(clients)))
    took, after = time.perf_counter() - start, batches(url)
    cuts = statistics.quantiles(load.seconds, n=100, method="inclusive")
    return {
        "clients": clients,
        "requests": sum(load.statuses.values()),
        "statuses": {str(status): count for status, count in sorted(load.statuses.items())},
        "wrong": load.wrong + warm.wrong,
        "unanswered": load.failed + warm.failed,
        "seconds": round(took, 2),
        "images_per_s": round(load.images / took, 1),
        "requests_per_s": round(sum(load.statuses.values()) / took, 1),
        **{f"p{p}_ms": round(1000 * cuts[p - 1], 2) for p in (50, 90, 99)},
        "mean_batch": round((after[0] - before[0]) / max(1, after[1] - before[1]), 2),
    }


def batches(url: str) -> tuple[float, float]:
    """Images and batches so far, as the server counts them."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    read = [re.search(rf"^farout_batch_size_{what} (\S+)$", text, re.M) for what in ("sum", "count")]
    total, count = (float(found[1]) if found else 0.0 for found in read)
    return total, count


def start_server(detector: Path) -> tuple[subprocess.Popen[str], str]:
    """The process, once it listens, and where."""
    code = "import farout.cli.serving; from farout.cli import main; main()"
    source = str(Path(__file__).resolve().parents[1] / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(detector), "--port", "0", "--timeout", "60"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"running on (http://\S+)", line):
            return process, found[1]
        print(line, end="")
    raise SystemExit("the server did not start")


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    return process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("detector", nargs="?", type=Path, help="a detector's folder, or a run's")
    parser.add_argument("--requests", type=int, default=1500, help="for each number of clients, at most")
    parser.add_argument("--seconds", type=float, default=20, help="for each number of clients, at most")
    parser.add_argument("--note", default="", help="what else the machine did, for the record")
    parser.add_argument("--out", type=Path, help="the folder for the JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = args.detector or stand_in(Path(spare))
        folder = folder / "detector" if (folder / "detector").is_dir() else folder
        detector = Detector.load(folder)
        process, url = start_server(folder)
        try:
            rows = [asyncio.run(measure(url, *pool_of(detector), clients, args)) for clients in CLIENTS]
        finally:
            ended = stop(process)
    for row in rows:
        print(*(f"{key}={value}" for key, value in row.items()))
    if args.out is not None:
        write(args, detector, rows, ended)
    if any(row["wrong"] or row["unanswered"] for row in rows):
        raise SystemExit("there were wrong or missing answers")


def write(args: Any, detector: Detector, rows: list[Row], ended: int) -> None:
    card = detector.card()
    record = {
        "date": date.today().isoformat(),
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine(), "load_average": os.getloadavg()},
        "threads": torch.get_num_threads(),
        "note": args.note,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "net": card["net"],
        "score": card["score"],
        "size": card["size"],
        "max_batch": 32,
        "max_wait_ms": 5,
        "bad_share": BAD_SHARE,
        "ended_by_signal": -ended if ended < 0 else None,
        "rows": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{record['date']}-cpu-serve.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
