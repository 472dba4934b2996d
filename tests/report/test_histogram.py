"""The picture is drawn, from the file that evaluation writes."""

import builtins

import numpy as np
import pytest
from PIL import Image

from farout.errors import MissingExtraError
from farout.report.histogram import histograms, read_scores


@pytest.fixture
def run(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"{score}|{name}": rng.normal(size=50) for score in ("msp", "energy") for name in ("id", "<script>", "c")}
    np.savez(tmp_path / "scores.npz", **arrays)
    return tmp_path


def test_scores_come_back_by_score_and_set(run):
    table = read_scores(run)
    assert list(table) == ["msp", "energy"]
    assert list(table["msp"]) == ["id", "<script>", "c"]


def test_a_picture_with_ink_on_it(run, tmp_path):
    path = histograms({"one": run, "two": run}, tmp_path / "deep" / "h.png")
    pixels = np.asarray(Image.open(path).convert("L"))
    assert pixels.shape[0] > 400
    assert pixels.std() > 10


def test_without_matplotlib_the_message_says_how_to_get_it(run, monkeypatch):
    real = builtins.__import__

    def broken(name, *arguments, **keywords):
        if name.startswith("matplotlib"):
            raise RuntimeError("broken install")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(MissingExtraError, match=r"needs matplotlib.*pip install 'farout\[plot\]'"):
        histograms({"one": run}, run / "h.png")
