"""The embedding as a map: ID, auxiliary outliers, and where the search moves them, before and after training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farout.report.chart import INK, Arrows, Axis, Chart, Figure, Mark, Points, Table, missing

Array = NDArray[Any]
TITLE = "The embedding, before and after training"
ROLES = ("ID", "auxiliary outliers", "worst case")


@dataclass(frozen=True)
class Cloud:
    """Features to be laid flat: ID (N, D) with class names (N), outliers (M, D), moved outliers (M, D) or None."""

    title: str
    inliers: Array
    names: Sequence[str]
    outliers: Array
    worst: Array | None


def flatten(features: Array) -> Array:
    """t-SNE to the plane: (N, D) -> (N, 2); the two main directions where there are too few points for it."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(features) < 12:
        wide = np.pad(features, ((0, 0), (0, max(0, 2 - features.shape[1]))))
        return np.asarray(PCA(2).fit_transform(wide))
    perplexity = min(30.0, (len(features) - 1) / 4)
    init = "pca" if features.shape[1] > 1 else "random"
    return np.asarray(TSNE(perplexity=perplexity, init=init, max_iter=600, random_state=0).fit_transform(features))


def embedding_map(clouds: Sequence[Cloud], why: Sequence[str]) -> Figure:
    """A panel a cloud. Distances within a panel mean something, places and axes do not."""
    if not clouds:
        return missing("embedding", TITLE, "; ".join(why) or "no network and data to embed")
    charts, table = [], []
    for cloud in clouds:
        chart, rows = _panel(cloud)
        charts.append(chart)
        table += [[cloud.title, *row] for row in rows]
    caption = (
        "t-SNE of the features. Arrows lead from an auxiliary outlier to the worst case that the run's own search "
        "finds for it. Only who is whose neighbour is meant; axes and panels have no common scale."
    )
    return Figure("embedding", TITLE, caption, charts, Table(["panel", "kind", "class", "x", "y"], table), list(why))


def _panel(cloud: Cloud) -> tuple[Chart, list[list[object]]]:
    parts = [cloud.inliers, cloud.outliers, *([] if cloud.worst is None else [cloud.worst])]
    flat = flatten(np.concatenate(parts))
    ends = np.cumsum([len(part) for part in parts])
    places = [flat[start:end].tolist() for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    classes = [list(cloud.names), *([""] * len(part) for part in parts[1:])]
    marks: list[Mark] = []
    rows: list[list[object]] = []
    for role, series, group, names in zip(ROLES, (0, 1, 3), places, classes, strict=False):
        tips = [f"{role}: class {name}" if name else role for name in names]
        marks.append(Points([x for x, _ in group], [y for _, y in group], role, series, tips, 2.2))
        rows += [[role, name, round(x, 1), round(y, 1)] for name, (x, y) in zip(names, group, strict=True)]
    if cloud.worst is not None:
        ends_at = list(zip(places[1], places[2], strict=True))
        starts, stops = [a for a, _ in ends_at], [b for _, b in ends_at]
        x, y, to_x, to_y = ([point[axis] for point in points] for points in (starts, stops) for axis in (0, 1))
        marks.insert(0, Arrows(x, y, to_x, to_y, "search", INK))
    return Chart(cloud.title, Axis(ticks=False), Axis(ticks=False), marks, 330), rows
