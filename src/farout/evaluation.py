"""Scores against test sets: one forward pass a set, every score read from it, one row for each (score, OOD set)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from farout import metrics, seeds
from farout.data.arrays import Subset
from farout.data.source import ImageSet
from farout.nets.net import Net
from farout.scores import Score
from farout.scores.embed import embed, score_embedded
from farout.types import Row

DRAW_STREAM = 6


def evaluate_net(
    net: Net,
    scores: Mapping[str, Score],
    id_test: ImageSet,
    ood_tests: Mapping[str, Mapping[str, ImageSet]],
    *,
    train: ImageSet | None = None,
    num_classes: int | None = None,
    ood_count: int | None = None,
    seed: int = 0,
) -> tuple[list[Row], dict[str, dict[str, Tensor]]]:
    """Rows of metrics, and the scores themselves: {score: {set: (N,)}} with the ID test set under its own name.

    `ood_tests` maps a group (near, far) to its sets; `train` is where scores are fitted that need it.
    """
    if any(score.needs_fit for score in scores.values()):
        if train is None:
            raise ValueError("a score needs fitting, and no ID training data was given: pass train=")
        fitted_on = embed(net, train)
        for score in scores.values():
            score.fit(net, fitted_on)
    inliers = embed(net, id_test)
    accuracy = metrics.accuracy(logits=inliers.outputs.logits[:, :num_classes].cpu(), labels=inliers.labels)
    kept = {name: {id_test.name: score_embedded(net, score, inliers)} for name, score in scores.items()}
    rows: list[Row] = []
    for group, sets in ood_tests.items():
        for set_name, samples in sets.items():
            outliers = embed(net, _draw(samples, ood_count, seed))
            for name, score in scores.items():
                id_scores = kept[name][id_test.name]
                ood_scores = kept[name][set_name] = score_embedded(net, score, outliers)
                rows.append(
                    {
                        "score": name,
                        "id": id_test.name,
                        "ood": set_name,
                        "group": group,
                        "id_count": len(id_scores),
                        "ood_count": len(ood_scores),
                        "accuracy": accuracy,
                        **metrics.summary(id_scores=id_scores, ood_scores=ood_scores),
                    }
                )
    return rows, kept


def _draw(samples: ImageSet, count: int | None, seed: int) -> ImageSet:
    """`count` random samples, as the paper tests on; all of them by default."""
    if count is None or count >= len(samples):
        return samples
    return Subset(samples, torch.randperm(len(samples), generator=seeds.generator(seed, DRAW_STREAM))[:count])
