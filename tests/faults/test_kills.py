"""Killed at any moment and resumed, nothing is lost and nothing is different; SIGTERM saves first."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import kills
import pytest

from farout.training import Checkpoints, read_rows

SCRIPT = Path(kills.__file__)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_ten_kills_change_nothing(tmp_path):
    """`make faults` does two hundred."""
    call = [sys.executable, SCRIPT, "--kills", "10", "--per-run", "4", "--out", tmp_path]
    done = subprocess.run(call, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert found["kills"] == 10
    assert set(found["by_method"]) == {"ce", "dal", "poem"}
    assert len(found["by_moment"]) >= 5
    assert all(found[key] == 0 for key in ("failed_resumes", "wrong_resumes", "lost_rows", "doubled_rows"))


def train(folder: Path, **options) -> subprocess.Popen:
    arguments = kills.command("dal", 0, folder)[1:]
    return subprocess.Popen(
        [sys.executable, "-m", "farout", *arguments], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **options
    )


def test_sigterm_saves_and_exits_and_fresh_processes_give_the_same_bits(tmp_path):
    whole = train(tmp_path / "whole")
    process = train(tmp_path / "cut")
    handle = os.pidfd_open(process.pid)
    while kills.count_lines(tmp_path / "cut" / "log.jsonl") < 3:
        assert not select.select([handle], [], [], 0.001)[0], process.stderr.read()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    os.close(handle)
    assert process.returncode == 130
    state = Checkpoints(tmp_path / "cut" / "checkpoints").latest()
    steps = state["progress"]["step"]
    assert f"interrupted after step {steps}; everything up to here is saved. Continue with:" in said
    assert [row["step"] for row in read_rows(tmp_path / "cut" / "log.jsonl")] == list(range(steps))
    if steps == kills.ROWS:
        pytest.skip("the signal came too late to leave anything to resume")
    assert train(tmp_path / "cut").wait() == 0
    assert whole.wait() == 0
    assert not any(kills.compare(tmp_path / "whole", tmp_path / "cut").values())
