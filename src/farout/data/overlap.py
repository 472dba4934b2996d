"""Leakage: images that two sets share, exactly or nearly, and class names that they share.

An image is known by two numbers: a hash of its bytes, and a 63-bit perceptual hash that survives scaling, recoding
and small changes of colour. Near means that at most `threshold` of the 63 bits differ. The perceptual hash sees only
the coarse shape of an image, so some near pairs are merely alike, above all in plain scenes: look at the examples and
at their `likeness`. Images of next to no contrast have no shape to speak of and are left out of the near search.
Mirrored and cropped copies are not found.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from farout.data.outliers import overlapping_classes
from farout.data.source import ImageSet
from farout.data.views import luma
from farout.errors import ConfigError, DataError

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

SIDE = 32  # images are shrunk or grown to SIDE x SIDE greys
LOW = 8  # and described by their LOW x LOW lowest frequencies, less the mean
BITS = LOW * LOW - 1
FLAT = 5.0  # grey levels of 255; with a smaller standard deviation the signs of the frequencies are mostly noise
CHUNK = 2048  # images held at a time
PAIRS = 1 << 22  # candidate pairs held at a time

_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


class LeakageWarning(UserWarning):
    """Two sets that ought to be apart share images or classes."""


class Prints(NamedTuple):
    """What is kept of every sample (N,): a hash of its bytes, its perceptual hash, and whether it is flat.

    The last two are None for embeddings, of which only exact copies can be found.
    """

    exact: Hashes
    shape: Hashes | None
    flat: Flags | None


class Pair(NamedTuple):
    """Sample `a` of the first set, `b` of the second; bits that differ; correlation of their greys, 1 = the same."""

    a: int
    b: int
    distance: int
    likeness: float


@dataclass(frozen=True)
class Overlap:
    """What two sets share. `exact_b` counts the samples of the second set that the first holds too, byte for byte.

    `near_b` counts those with at most `threshold` differing bits, exact copies that are not flat included; `flat_b`
    those left out of that count. `classes` are names that both sets have. `examples` are the nearest pairs.
    """

    a: str
    b: str
    threshold: int | None
    count_a: int
    count_b: int
    exact_a: int
    exact_b: int
    near_a: int
    near_b: int
    flat_a: int
    flat_b: int
    classes: tuple[str, ...]
    examples: tuple[Pair, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.exact_b or self.near_b or self.classes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        examples = [pair._asdict() for pair in self.examples]
        return {**asdict(self), "classes": list(self.classes), "examples": examples, "clean": self.clean}

    def __str__(self) -> str:
        found = [
            f"{self.exact_b} of the {self.count_b} samples of {self.b} are also in {self.a}" if self.exact_b else "",
            f"{self.near_b} of the {self.count_b} samples of {self.b} are in {self.a} or near it"
            if self.near_b
            else "",
            f"{self.a} and {self.b} have classes in common: {_listed(self.classes)}" if self.classes else "",
        ]
        return "; ".join(part for part in found if part) or f"{self.a} and {self.b} share nothing that was seen"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def overlap(a: ImageSet, b: ImageSet, threshold: int | None = 4, examples: int = 10) -> Overlap:
    """What `a` and `b` share; `threshold` None looks for exact copies only.

    >>> overlap(open_set("cifar10"), open_set("cifar10", split="test")).near_b        # doctest: +SKIP
    """
    return compare(a, b, fingerprint(a), fingerprint(b), threshold, examples)


def compare(
    a: ImageSet, b: ImageSet, prints_a: Prints, prints_b: Prints, threshold: int | None, examples: int = 10
) -> Overlap:
    """`overlap` of sets whose fingerprints are already taken."""
    if threshold is not None and not 0 <= threshold < BITS:
        raise ConfigError(f"threshold counts bits of {BITS}: give 0 .. {BITS - 1}, got {threshold}")
    same_a, same_b = np.isin(prints_a.exact, prints_b.exact), np.isin(prints_b.exact, prints_a.exact)
    near_a, near_b = np.zeros(len(same_a), bool), np.zeros(len(same_b), bool)
    flat_a, flat_b = (_no_flags(p) if p.flat is None else p.flat for p in (prints_a, prints_b))
    nearest = _twins(prints_a.exact, prints_b.exact, examples)
    if threshold is not None and prints_a.shape is not None and prints_b.shape is not None:
        rows_a, rows_b = np.flatnonzero(~flat_a), np.flatnonzero(~flat_b)
        for left, right, distance in near_pairs(prints_a.shape[rows_a], prints_b.shape[rows_b], threshold):
            left, right = rows_a[left], rows_b[right]
            near_a[left], near_b[right] = True, True
            first = np.argsort(distance, kind="stable")[:examples]
            found = zip(left[first].tolist(), right[first].tolist(), distance[first].tolist(), strict=True)
            nearest = sorted({*nearest, *found}, key=lambda pair: (pair[2], pair[1], pair[0]))[:examples]
    return Overlap(
        a=a.name,
        b=b.name,
        threshold=threshold,
        count_a=len(a),
        count_b=len(b),
        exact_a=int(same_a.sum()),
        exact_b=int(same_b.sum()),
        near_a=int(near_a.sum()),
        near_b=int(near_b.sum()),
        flat_a=int(flat_a.sum()),
        flat_b=int(flat_b.sum()),
        classes=shared_classes(a, b),
        examples=tuple(Pair(*pair, likeness=_likeness(a, b, pair[0], pair[1])) for pair in nearest),
    )


def guard(
    train: ImageSet,
    outliers: ImageSet | None,
    id_test: ImageSet,
    ood_tests: Mapping[str, ImageSet],
    *,
    strict: bool = False,
    threshold: int | None = 4,
) -> list[Overlap]:
    """Check the sets of an evaluation against each other: a LeakageWarning for each finding, a DataError if `strict`.

    Looked at are the outliers against the ID training data and every test set, and the OOD test sets against the ID
    training data. How ID training and test data overlap is a property of the benchmark (CIFAR's do) and not asked.
    """
    far = {name: samples for name, samples in ood_tests.items() if len(samples)}
    pairs = [(train, samples) for samples in far.values()]
    if outliers is not None:
        pairs += [(outliers, samples) for samples in (train, id_test, *far.values())]
    prints = {id(samples): fingerprint(samples) for pair in pairs for samples in pair}
    checked = [compare(a, b, prints[id(a)], prints[id(b)], threshold) for a, b in pairs]
    findings = [found for found in checked if not found.clean]
    if findings and strict:
        raise DataError(
            f"the sets of this evaluation overlap: {'; '.join(map(str, findings))}. Look at them with `farout data"
            " overlap`, leave the classes or images out, or evaluate without strict"
        )
    for found in findings:
        warnings.warn(str(found), LeakageWarning, stacklevel=2)
    return checked


def shared_classes(a: ImageSet, b: ImageSet) -> tuple[str, ...]:
    """Class names of `b`, then of `a`, that the other set has too (`overlapping_classes`); only classes with samples.

    >>> shared_classes(open_set("cifar10"), open_set("cifar100"))                      # doctest: +SKIP
    ('pickup_truck',)
    """
    own, other = _present(a), _present(b)
    found = [other[number] for number in overlapping_classes(other, own)]
    return tuple(dict.fromkeys(found + [own[number] for number in overlapping_classes(own, other)]))


def _present(samples: ImageSet) -> list[str]:
    if samples.labels is None:
        return []
    used = set(samples.labels.unique().tolist())
    return [name for number, name in enumerate(samples.classes) if number in used]


def fingerprint(samples: ImageSet) -> Prints:
    """Both hashes of every sample, read once in chunks."""
    exact: list[bytes] = []
    shapes: list[Tensor] = []
    flat: list[Tensor] = []
    for rows in torch.arange(len(samples)).split(CHUNK):
        x, _ = samples.read(rows)
        exact += [hashlib.blake2b(sample.tobytes(), digest_size=8).digest() for sample in x.contiguous().numpy()]
        if x.ndim == 4:
            grey = greys(x)
            shapes.append(perceptual_hash(grey))
            flat.append(grey.flatten(1).std(dim=1) < FLAT)
    digests = np.frombuffer(b"".join(exact), dtype=np.uint64)
    if not shapes:
        return Prints(digests, None, None)
    return Prints(digests, torch.cat(shapes).numpy().view(np.uint64), torch.cat(flat).numpy())


def greys(x: Tensor) -> Tensor:
    """Images (B, C, H, W), uint8 -> greys in [0, 255], (B, SIDE, SIDE)."""
    grey = luma(x.float())
    if grey.shape[-2:] != (SIDE, SIDE):
        mode = "area" if min(grey.shape[-2:]) >= SIDE else "bilinear"
        grey = F.interpolate(grey, (SIDE, SIDE), mode=mode)
    return grey.squeeze(1)


def perceptual_hash(grey: Tensor) -> Tensor:
    """Which of the lowest frequencies lie above their median: (B, SIDE, SIDE) -> int64 (B,), BITS bits each.

    With the cosine transform F = D g Dᵀ, D[f, i] = cos(π f (i + ½) / SIDE), bit k is [F_k > median F]. The mean F_0
    is left out: neither brightness nor contrast changes a bit.
    """
    places = torch.arange(SIDE, dtype=grey.dtype) + 0.5
    basis = torch.cos(math.pi / SIDE * torch.arange(LOW, dtype=grey.dtype)[:, None] * places)
    frequencies = (basis @ grey @ basis.T).flatten(1)[:, 1:]
    bits = frequencies > frequencies.median(dim=1, keepdim=True).values
    return (bits.long() << torch.arange(BITS)).sum(dim=1)


def near_pairs(a: Hashes, b: Hashes, threshold: int) -> Iterator[tuple[Indices, Indices, Indices]]:
    """All pairs (index in a, index in b, bits that differ) with at most `threshold` such bits, each once, in parts.

    Cut into threshold + 1 blocks, two such hashes agree in at least one block: only those pairs are compared.
    """
    edges = np.linspace(0, BITS, threshold + 2).round().astype(int).tolist()
    blocks = [((1 << high) - 1) ^ ((1 << low) - 1) for low, high in pairwise(edges)]
    for number, block in enumerate(blocks):
        for left, right in _same(a & np.uint64(block), b & np.uint64(block)):
            differ = a[left] ^ b[right]
            distance = _ONES[differ.view(np.uint8).reshape(-1, 8)].sum(axis=1, dtype=np.int64)
            fresh = distance <= threshold
            for earlier in blocks[:number]:  # a pair that agrees in several blocks is told in the first
                fresh &= (differ & np.uint64(earlier)) != 0
            yield left[fresh], right[fresh], distance[fresh]


def _same(a: Hashes, b: Hashes) -> Iterator[tuple[Indices, Indices]]:
    """All pairs (i, j) with a[i] == b[j], at most about PAIRS of them at a time."""
    order = np.argsort(a, kind="stable")
    ranked = a[order]
    first = np.searchsorted(ranked, b, side="left")
    counts = np.searchsorted(ranked, b, side="right") - first
    ends = np.cumsum(counts)
    start = 0
    while start < len(b):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + PAIRS, side="right")))
        many = counts[start:stop]
        right = np.repeat(np.arange(start, stop), many)
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        yield order[np.repeat(first[start:stop], many) + within], right
        start = stop


def _twins(a: Hashes, b: Hashes, count: int) -> list[tuple[int, int, int]]:
    """Up to `count` pairs of equal hashes, with distance 0."""
    found: list[tuple[int, int, int]] = []
    places = {int(value): index for index, value in reversed(list(enumerate(a.tolist())))} if count else {}
    for index, value in enumerate(b.tolist()):
        if len(found) == count:
            break
        if value in places:
            found.append((places[value], index, 0))
    return found


def _likeness(a: ImageSet, b: ImageSet, left: int, right: int) -> float:
    """The correlation of two images' greys in [-1, 1]; of embeddings, their own."""
    one, other = (samples.read(torch.tensor([row]))[0] for samples, row in ((a, left), (b, right)))
    pair = [(greys(x) if x.ndim == 4 else x.float()).flatten() for x in (one, other)]
    centred = [x - x.mean() for x in pair]
    if torch.equal(centred[0], centred[1]):
        return 1.0  # flat copies too, whose correlation has no value
    return round(float(F.cosine_similarity(centred[0], centred[1], dim=0)), 4)


def _no_flags(prints: Prints) -> Flags:
    return np.zeros(len(prints.exact), bool)
