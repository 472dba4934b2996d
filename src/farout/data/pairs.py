"""A training batch as a function of (seed, epoch, step, rank): ID samples and outliers, drawn and augmented."""

from collections.abc import Iterator

import torch
from torch import Tensor

from farout import distributed, seeds
from farout.data.augment import Augment
from farout.data.source import Source
from farout.errors import DataError
from farout.types import Batch

ID_STREAM, OUTLIER_STREAM, AUGMENT_STREAM = 1, 2, 3


def epoch_order(count: int, wanted: int, generator: torch.Generator) -> Tensor:
    """`wanted` numbers below `count`: whole permutations one after another, the last one cut.

    Where far fewer are wanted than there are (80 million images), distinct numbers are drawn without a permutation.
    """
    if wanted * 8 < count:
        drawn = torch.randint(count, (wanted + wanted // 4 + 16,), generator=generator)
        _, inverse = torch.unique(drawn, return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), len(drawn)).scatter_reduce(
            0, inverse, torch.arange(len(drawn)), "amin"
        )
        return drawn[first.sort().values][:wanted]
    rounds = -(-wanted // count)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])[:wanted]


class Pairs:
    """All batches of a training run. An epoch is one pass over the ID set; the last, smaller batch is dropped.

    Outliers are drawn anew each epoch, without repetition while the pool lasts. With several ranks each takes its
    share of every batch (rows rank::ranks), so the global batch does not depend on how many there are.
    """

    def __init__(
        self,
        inliers: Source,
        outliers: Source | None,
        augment: Augment,
        *,
        batch_size: int = 128,
        outlier_batch_size: int = 256,
        seed: int = 0,
        outlier_augment: Augment | None = None,
    ) -> None:
        self.inliers, self.outliers = inliers, outliers
        self.augments = {ID_STREAM: augment, OUTLIER_STREAM: outlier_augment or augment}
        self.batch_size, self.outlier_batch_size, self.seed = batch_size, outlier_batch_size, seed
        self.steps = len(inliers.set) // batch_size
        if self.steps == 0:
            raise DataError(
                f"{inliers.set.name} has {len(inliers.set)} training samples, fewer than one batch of {batch_size}; "
                "lower data.batch_size"
            )
        if outliers is not None and len(outliers.set) == 0:
            raise DataError(f"the auxiliary set {outliers.set.name} is empty")

    @property
    def images_per_step(self) -> int:
        return self.batch_size + (self.outlier_batch_size if self.outliers is not None else 0)

    def epoch(self, epoch: int, start: int = 0, selection: Tensor | None = None) -> Iterator[Batch]:
        """The batches of one epoch from step `start` on; `selection` limits the outliers to these indices."""
        inliers = self._stream(self.inliers, self.batch_size, ID_STREAM, epoch, start, None)
        if self.outliers is None:
            yield from (Batch(x, y) for x, y in inliers)
            return
        outliers = self._stream(self.outliers, self.outlier_batch_size, OUTLIER_STREAM, epoch, start, selection)
        for (x, y), (x_out, _) in zip(inliers, outliers, strict=True):
            yield Batch(x, y, x_out)

    def _stream(
        self, source: Source, size: int, stream: int, epoch: int, start: int, selection: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of one source, drawn and augmented; all that is random is known before the first of them."""
        rows = slice(distributed.rank(), None, distributed.world_size())
        pool = len(source.set) if selection is None else len(selection)
        order = epoch_order(pool, self.steps * size, seeds.generator(self.seed, stream, epoch))
        order = order if selection is None else selection.cpu()[order]
        augment = self.augments[stream]
        chances = augment.draw(self.steps, size, seeds.generator(self.seed, stream, epoch, AUGMENT_STREAM))
        chances = chances[start:, rows]
        batches = source.batches([batch[rows] for batch in order.split(size)[start:]])
        for step, (x, y) in enumerate(batches):
            if step == 0:
                chances = chances.to(x.device)  # once an epoch, not once a batch
            yield augment(x, chances[step]), y
