"""Run folders without training: scores drawn from normal distributions, and everything that follows from them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farout.config import Config
from farout.metrics import summary

SETS = ("far/noise", "near/other")


def write_run(
    folder: Path,
    method: str = "dal",
    seed: int = 0,
    *,
    inlier: str = "digits",
    sets: Sequence[str] = SETS,
    scores: Sequence[str] = ("msp", "energy"),
    count: int = 200,
    shift: float = 2.0,
    steps: int = 12,
    settings: dict[str, Any] | None = None,
) -> Path:
    """A run whose ID scores lie `shift` above its OOD scores."""
    tree = {
        "data": {"id": inlier, "outliers": "aux", "test": {"ood": list(sets)}},
        "method": {"name": method, **(settings or {})},
        "train": {"seed": seed},
        "name": f"synthetic/{method}",
    }
    rng = np.random.default_rng([seed, sum(map(ord, method))])
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(Config.from_dict(tree).to_yaml())
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log_rows(steps, method)))
    arrays, rows = {}, []
    for score in scores:
        inliers = rng.normal(shift, 1, count)
        arrays[f"{score}|{inlier}"] = inliers
        for name in sets:
            outliers = arrays[f"{score}|{name}"] = rng.normal(0, 1, count)
            about = {"recipe": tree["name"], "method": method, "seed": seed, "score": score, "id": inlier, "ood": name}
            sizes = {"group": "ood", "id_count": count, "ood_count": count, "accuracy": 0.9 + 0.01 * seed}
            rows.append({**about, **sizes, **summary(id_scores=inliers, ood_scores=outliers)})
    np.savez(folder / "scores.npz", **arrays)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def log_rows(steps: int, method: str) -> list[dict[str, float]]:
    """A log that falls smoothly; dal's has what dal measures."""
    rows = []
    for step in range(0, 10 * steps, 10):
        row = {"step": step, "epoch": step // 50, "lr": 0.1 / (1 + step), "ce": 1 / (1 + step), "oe": 2 / (1 + step)}
        if method == "dal":
            row |= {"gamma": 0.1, "radius": 0.5, "gain": 0.2, "efficiency": 0.4}
        if step:
            row["images_per_second"] = 1000.0
        rows.append(row)
    return rows
