"""The map keeps neighbours together, names classes, and joins each outlier to its worst case."""

import numpy as np
import pytest

from farout.report.chart import Arrows, Points
from farout.report.embedding import Cloud, embedding_map, flatten


def cloud(count=8):
    rng = np.random.default_rng(0)
    outliers = rng.normal(20, 1, (count, 5)).astype(np.float32)
    inliers = rng.normal(0, 1, (count, 5)).astype(np.float32)
    return Cloud("after", inliers, [str(n % 3) for n in range(count)], outliers, outliers + 1)


def test_two_clusters_stay_two_clusters():
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.normal(0, 1, (40, 8)), rng.normal(50, 1, (40, 8))]).astype(np.float32)
    flat = flatten(features)
    near = [np.linalg.norm(flat - point, axis=1).argsort()[1] // 40 for point in flat]
    assert near == [0] * 40 + [1] * 40


@pytest.mark.parametrize("shape", [(3, 5), (11, 1)])
def test_few_points_or_features_still_have_a_place(shape):
    assert flatten(np.random.default_rng(0).normal(size=shape)).shape == (shape[0], 2)


def test_points_have_classes_and_arrows_lead_from_outlier_to_worst_case():
    figure = embedding_map([cloud()], [])
    marks = figure.charts[0].marks
    arrows = next(mark for mark in marks if isinstance(mark, Arrows))
    inliers, outliers, worst = (mark for mark in marks if isinstance(mark, Points))
    assert inliers.tips[1] == "ID: class 1"
    assert (arrows.x, arrows.y, arrows.to_x, arrows.to_y) == (outliers.x, outliers.y, worst.x, worst.y)
    assert len(figure.table.rows) == 24


def test_nothing_to_map_gives_the_reason():
    assert embedding_map([], ["dal: the data moved away"]).why_missing == "dal: the data moved away"
