"""Resident memory grows by no more than a stated amount with every million images or scores; `make faults` has ten."""

from pathlib import Path

import memory
import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peak memory is read from /proc")


@pytest.mark.parametrize(("job", "millions"), [("train", 1), ("pages", 1), ("metrics", 2)])
def test_resident_memory_stays_below_its_cap(job, millions):
    assert memory.measure(job, millions) < memory.cap(job, millions)


def test_the_caps_at_ten_million_are_those_promised():
    assert {job: memory.cap(job, 10) for job in memory.CAPS} == {"train": 1500, "pages": 50, "metrics": 1000}
