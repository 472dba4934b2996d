"""Start the ranks of one run as torchrun would, by their environment, but forked: a start costs no imports."""

import os
import select
import signal
import socket
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import kills

import farout.cli
import farout.run
from farout.training import Checkpoints

# No batch statistics and nothing random in a step: the ranks' mean is the mean of the batch, up to rounding.
OVERRIDES = [
    *("demo/oe", "net={name: mlp, in_features: 64}", "data.batch_size=100", "data.outlier_batch_size=40"),
    *("train.epochs=3", "train.log_every=1", "train.device=cpu", "optim.lr=0.05"),
]


def command(folder: Path, *more: str) -> list[str]:
    return ["farout", "train", *OVERRIDES, *more, "--run", str(folder), "--resume"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(count: int, arguments: list[str], said: Path) -> list[int]:
    """Fork `count` ranks; what they say goes to `said`.RANK."""
    port, children = free_port(), []
    for rank in range(count):
        child = os.fork()
        if child:
            children.append(child)
            continue
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        sys.argv = arguments
        output = os.open(f"{said}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = 1
        try:
            farout.cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(code)
    return children


def finish(children: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def run(count: int, folder: Path, *more: str) -> list[int]:
    """All ranks to their end: their exit codes."""
    return finish(start(count, command(folder, *more), folder.parent / f"{folder.name}-said"))


def interrupt_one(count: int, folder: Path, rows: int) -> list[int]:
    """SIGTERM to the last rank alone, once the log has `rows` rows."""
    children = start(count, command(folder), folder.parent / f"{folder.name}-said")
    handle = os.pidfd_open(children[-1])
    while kills.count_lines(folder / "log.jsonl") < rows:
        assert not select.select([handle], [], [], 0.001)[0], "the rank ended early"
    os.kill(children[-1], signal.SIGTERM)
    os.close(handle)
    return finish(children)


def farthest(left: Path, right: Path) -> float:
    """The largest difference between two runs' final weights."""
    states = [Checkpoints(folder / "checkpoints").latest()["objective"] for folder in (left, right)]
    return max(float((value - states[1][key]).abs().max()) for key, value in states[0].items())


def main(place: Path) -> dict[str, object]:
    kills.warm_up()
    found: dict[str, object] = {}
    found["one"] = run(1, place / "one")
    found["two"] = run(2, place / "two")
    found["two said"] = [Path(f"{place / 'two'}-said.{rank}").read_text() for rank in (0, 1)]
    found["two - one"] = farthest(place / "one", place / "two")
    moved = place / "moved"
    for count, rows in ((2, 3), (4, 8)):
        found[f"interrupted at {count}"] = interrupt_one(count, moved, rows)
        found[f"said at {count}"] = [Path(f"{moved}-said.{rank}").read_text() for rank in range(count)]
        found[f"steps at {count}"] = Checkpoints(moved / "checkpoints").latest()["progress"]["step"]
    found["moved"] = run(1, moved)
    found["moved - one"] = farthest(place / "one", moved)
    found["rows"] = [row["step"] for row in kills.timeless(moved)]
    found["shares"] = run(2, place / "shares", "data.batch_size=101")
    found["shares said"] = Path(f"{place / 'shares'}-said.1").read_text()
    (place / "locked").mkdir()
    with farout.run.RunLock(place / "locked"):
        found["locked"] = run(2, place / "locked")
        found["locked said"] = [Path(f"{place / 'locked'}-said.{rank}").read_text() for rank in (0, 1)]
    return found


if __name__ == "__main__":
    import json

    print(json.dumps(main(Path(sys.argv[1])), indent=1))
