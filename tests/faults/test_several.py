"""Several processes: equal to one, stopped together, moved between 1, 2 and 4, and back after a rank was killed."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import kills
import pytest
import ranks

from farout.training import Checkpoints

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    call = [sys.executable, ranks.__file__, tmp_path_factory.mktemp("ranks")]
    done = subprocess.run(call, capture_output=True, text=True, env=ENVIRONMENT, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


pytestmark = pytest.mark.xdist_group("several")


def test_two_ranks_give_what_one_gives(found):
    """The same global batch; without batch statistics only the order of sums differs."""
    assert found["one"] == [0]
    assert found["two"] == [0, 0]
    assert found["two - one"] < 1e-6


def test_only_the_first_rank_speaks_and_no_option_is_outdated(found):
    first, second = found["two said"]
    assert "Detector " in first
    assert "Detector " not in second
    assert "FutureWarning" not in first + second


def test_a_signal_to_one_rank_stops_all_at_the_same_step(found):
    for count in (2, 4):
        steps = found[f"steps at {count}"]
        assert found[f"interrupted at {count}"] == [130] * count
        for said in found[f"said at {count}"]:
            assert f"interrupted after step {steps}; everything up to here is saved" in said
    assert 3 <= found["steps at 2"] < found["steps at 4"] < 18


def test_checkpoints_move_between_two_four_and_one(found):
    assert found["moved"] == [0]
    assert found["moved - one"] < 1e-6
    assert found["rows"] == list(range(18))


def test_what_rank_0_finds_wrong_stops_all(found):
    assert found["shares"] == [1, 1]
    assert "data.batch_size=101 cannot be shared by 2 ranks; take a multiple of 2" in found["shares said"]
    assert found["locked"] == [1, 1]
    assert "already trains in" in found["locked said"][0]
    assert "rank 0 could not go on" in found["locked said"][1]


def workers(agent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


def test_a_rank_killed_under_torchrun_comes_back_and_continues(tmp_path):
    """The second rank dies; torchrun starts both anew with the same command, and they go on from the checkpoint."""
    folder = tmp_path / "run"
    arguments = [*ranks.command(folder)[1:-1], "train.checkpoint_every=2"]  # without --resume: a restart implies it
    # The "--" keeps torchrun from taking --run for a shorter --run-path (Python 3.11).
    elastic = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    with (tmp_path / "said").open("w") as said:
        agent = subprocess.Popen(
            [*elastic, "-m", "--", "farout", *arguments], stderr=said, stdout=said, env=ENVIRONMENT
        )
        handle = os.pidfd_open(agent.pid)
        while kills.count_lines(folder / "log.jsonl") < 5:
            assert not select.select([handle], [], [], 0.001)[0], (tmp_path / "said").read_text()
        first = json.loads((folder / ".lock").read_text())["pid"]
        os.kill(next(worker for worker in workers(agent.pid) if worker != first), signal.SIGKILL)
        select.select([handle], [], [], 200)
        os.close(handle)
        if agent.poll() is None:
            agent.kill()
    assert agent.wait() == 0, (tmp_path / "said").read_text()
    assert "going back to" not in (tmp_path / "said").read_text()
    assert [row["step"] for row in kills.timeless(folder)] == list(range(18))
    assert Checkpoints(folder / "checkpoints").latest()["progress"] == {"step": 18}
    assert (folder / "detector" / "detector.json").is_file()
