"""Two ways to the training device that give the same batches: all at once, or as they are needed."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from farout.data.source import ImageSet, Source

CHUNK = 4096


class Resident:
    """The whole set on the device, as it is stored; a batch is one gather. For sets that fit."""

    def __init__(self, samples: ImageSet, device: torch.device | str = "cpu") -> None:
        self.set = samples
        x, y = samples.read(torch.arange(min(1, len(samples))))
        self.x, self.y = (one.new_empty(len(samples), *one.shape[1:], device=device) for one in (x, y))
        for rows in torch.arange(len(samples)).split(CHUNK):  # straight to its place: no second copy of the set
            piece = slice(int(rows[0]), int(rows[-1]) + 1)
            self.x[piece], self.y[piece] = samples.read(rows)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        wanted = list(indices)
        if not wanted:
            return
        everything = torch.cat(wanted).to(self.x.device)  # one transfer for all batches
        for rows in everything.split([len(batch) for batch in wanted]):
            yield self.x[rows], self.y[rows]


class _Reads(Dataset[tuple[Tensor, Tensor]]):
    """A set as a map-style data set whose items are whole batches."""

    def __init__(self, samples: ImageSet) -> None:
        self.samples = samples

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.samples.read(rows)


class Streamed:
    """Batches read (and decoded) by `workers` processes just ahead of their use. For sets that do not fit."""

    def __init__(self, samples: ImageSet, device: torch.device | str = "cpu", workers: int = 2) -> None:
        self.set = samples
        self.device = torch.device(device)
        self.workers = workers

    def batches(self, indices: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Reads(self.set),
            sampler=list(indices),  # each "index" is a batch of them
            batch_size=None,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        for x, y in loader:
            yield x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)


LOADERS: Mapping[str, Callable[..., Source]] = {"resident": Resident, "streamed": Streamed}


def in_order(source: Source, batch_size: int = 1000) -> Iterator[tuple[Tensor, Tensor]]:
    """Every sample once, in the set's own order."""
    return source.batches(torch.arange(len(source.set)).split(batch_size))
