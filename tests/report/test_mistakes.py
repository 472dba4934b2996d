"""The worst of several sets, and pictures that any browser reads."""

import io

import numpy as np
import torch
from PIL import Image

from farout.report.mistakes import SIDE, class_means, highest, nearest_class, png


def test_the_highest_over_several_sets():
    assert highest([np.array([1.0, 5.0, 2.0]), np.array([4.0, 0.0])], 3) == [(0, 1), (1, 0), (0, 2)]
    assert highest([np.array([1.0])], 5) == [(0, 0)]


def test_the_nearest_class_leaves_out_those_without_samples():
    features = torch.tensor([[0.0, 0], [2, 0], [10, 0]])
    means = class_means(features, torch.tensor([0, 0, 2]), 3)
    assert means[0].tolist() == [1, 0]
    assert means[1].isnan().all()
    assert nearest_class(torch.tensor([[2.0, 1], [9, 0]]), means).tolist() == [0, 2]


def test_small_images_keep_their_pixels_and_large_ones_shrink():
    small = torch.randint(256, (3, 8, 8), dtype=torch.uint8)
    back = np.asarray(Image.open(io.BytesIO(png(small))))
    assert (torch.from_numpy(back.copy()).permute(2, 0, 1) == small).all()
    assert Image.open(io.BytesIO(png(torch.zeros(1, 300, 150, dtype=torch.uint8)))).size == (SIDE // 2, SIDE)


def test_embeddings_have_no_picture():
    assert png(torch.rand(7)) is None
