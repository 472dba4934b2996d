"""Two runs, one folder: the second is refused, the dead do not hold."""

import os
import signal
import subprocess
import sys

import pytest

from farout.training import lock
from farout.training.lock import LockedError, RunLock, in_use, patient

HOLDER = """
import os, sys
from pathlib import Path
from farout.training.lock import RunLock
with RunLock(Path(sys.argv[1])):
    if len(sys.argv) > 2 and os.fork() == 0:  # a data loader that outlives its parent
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder, *more):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_another_process_is_refused_and_named_and_free_when_it_ends(tmp_path):
    process = holder(tmp_path)
    assert in_use(tmp_path)
    with (
        pytest.raises(LockedError, match=rf"is in use by process {process.pid} on .* since 20\d\d-"),
        RunLock(tmp_path),
    ):
        pass
    process.communicate()
    assert not in_use(tmp_path)
    with RunLock(tmp_path):
        pass


def test_asking_neither_makes_a_folder_nor_gives_up_the_lock(tmp_path):
    assert not in_use(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with RunLock(tmp_path):
        assert in_use(tmp_path)
        fork = subprocess.run([sys.executable, "-c", HOLDER, tmp_path], input="", capture_output=True, text=True)
        assert "is in use by" in fork.stderr


def test_the_patient_come_after_whoever_has_it(tmp_path, monkeypatch):
    other, told, waits = RunLock(tmp_path), [], []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            other.__exit__(None, None, None)

    monkeypatch.setattr(lock.time, "sleep", sleep)
    other.__enter__()
    with patient(tmp_path, told.append):
        assert len(waits) == 3
    assert told == [f"waiting: this process already trains in {tmp_path}"]
    assert not in_use(tmp_path)


@pytest.mark.parametrize("orphan", [[], ["orphan"]])
def test_a_killed_process_holds_nothing(tmp_path, orphan):
    """Not even through a forked child that is still there."""
    process = holder(tmp_path, *orphan)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with RunLock(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()
    process.stdin.close()


def test_one_process_twice_is_refused_too(tmp_path):
    with RunLock(tmp_path):
        with pytest.raises(LockedError, match="this process already trains in"), RunLock(tmp_path / "." / "x" / ".."):
            pass
        with RunLock(tmp_path / "other"):
            pass
    with RunLock(tmp_path):
        pass


def test_the_lock_does_not_outlive_an_error_in_its_block(tmp_path):
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path):
        _ = 1 / 0
    with RunLock(tmp_path):
        pass


def test_what_the_file_says_is_not_trusted(tmp_path):
    process = holder(tmp_path)
    (tmp_path / ".lock").write_text("rubbish")
    with pytest.raises(LockedError, match="is in use by another process"), RunLock(tmp_path):
        pass
    process.communicate()
