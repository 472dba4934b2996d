"""What the tests of reports share: synthetic runs, and one report of runs that were really trained."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from synthetic_runs import write_run

from farout import see
from farout.detector import Detector
from farout.report.html import Report, page
from farout.run import evaluate, load_run, train

NASTY = "</script><script>alert('x')</script>"


@pytest.fixture
def three(tmp_path):
    """Two seeds of oe, two of dal, dal the better; one folder that holds them all."""
    for seed in (0, 1):
        write_run(tmp_path / "runs" / "oe" / f"s{seed}", "oe", seed, shift=1.0)
        write_run(tmp_path / "runs" / "dal" / f"s{seed}", "dal", seed, shift=2.5)
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny_run) -> Path:
    """A tiny ce and the tiny dal, evaluated; one of dal's classes has a nasty name."""
    folder = tmp_path_factory.mktemp("seen") / "runs"
    shutil.copytree(tiny_run.folder, folder / "dal" / "s0")
    detector = Detector.load(folder / "dal" / "s0" / "detector")
    detector.classes = (NASTY, *detector.classes[1:])
    detector.save(folder / "dal" / "s0" / "detector")
    tiny = ["net.width=8", "data.batch_size=100", "train.epochs=1", "train.log_every=2", "train.device=cpu"]
    train("demo/ce", tiny, run=folder / "ce" / "s0")
    for name in ("ce", "dal"):
        evaluate(load_run(folder / name / "s0"))
    return folder


@pytest.fixture(scope="session")
def seen(trained) -> Report:
    """What a report says of these runs; the map is small, for t-SNE takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(see, "MAP_POINTS", 25)
        return see.make_report([trained], samples=100)


@pytest.fixture(scope="session")
def report_file(seen, trained) -> Path:
    path = trained.parent / "report.html"
    path.write_text(page(seen))
    return path
