"""Score histograms: ID against each OOD set, with the threshold at 95 % TPR."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farout.errors import MissingExtraError

# Okabe and Ito's palette: told apart by colour-blind readers, and by brightness in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def pyplot(purpose: str) -> Any:
    """matplotlib without a screen, or a message that says how to get it."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except Exception:  # a broken install raises more than ImportError
        raise MissingExtraError("matplotlib", "plot", purpose) from None
    return plt


def read_scores(run: Path) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """{score: {set: values}} from a run's `scores.npz`; the ID set comes first."""
    with np.load(run / "scores.npz", allow_pickle=False) as arrays:
        nested: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
        for key in arrays.files:
            score, _, name = key.partition("|")
            nested.setdefault(score, {})[name] = arrays[key]
    return nested


def histograms(runs: Mapping[str, Path], path: Path) -> Path:
    """One panel for each (run, score): ID as a filled shape, OOD sets as lines, each to the same height."""
    plt = pyplot("drawing score histograms")
    tables = {name: read_scores(run) for name, run in runs.items()}
    scores = list(next(iter(tables.values())))
    figure, axes = plt.subplots(
        len(tables), len(scores), figsize=(5.2 * len(scores), 2.4 * len(tables) + 0.6), squeeze=False
    )
    for row, (name, table) in enumerate(tables.items()):
        for column, score in enumerate(scores):
            _panel(axes[row][column], table[score], f"{name}, {score}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(labels), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _panel(axis: Any, sets: Mapping[str, np.ndarray[Any, Any]], title: str) -> None:
    everything = np.concatenate(list(sets.values()))
    low, high = np.quantile(everything, [0.005, 1.0])  # a few far outliers would squeeze the rest
    bins = np.linspace(low, high, 41)
    for number, (name, values) in enumerate(sets.items()):
        counts, _ = np.histogram(np.clip(values, low, high), bins)
        shape = counts / counts.max()  # every set to the same height, or one spike would flatten the others
        name = name.rpartition("/")[2]
        if number == 0:
            axis.stairs(shape, bins, fill=True, color=COLOURS[0], alpha=0.35, label=f"ID {name}")
            axis.axvline(np.quantile(values, 0.05), color="black", ls="--", lw=1, label="95 % of ID to the right")
        else:
            axis.stairs(shape, bins, lw=1.3, color=COLOURS[number % len(COLOURS)], label=name)
    axis.set_title(title, fontsize=9)
    axis.set_yticks([])
    axis.tick_params(labelsize=8)
    axis.set_xlabel("score (higher = more in-distribution)", fontsize=8)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
