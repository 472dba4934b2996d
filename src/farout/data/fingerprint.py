"""Fingerprints: how well an image's power spectrum alone tells auxiliary outliers from ID images.

Cameras, resampling and recoding leave their mark on the spectrum of every image of a set. Where ID and auxiliary sets
have different marks, a network can learn these instead of what the images show; it then looks good on held-out
outliers of the same origin and fails on others. A linear classifier that sees nothing but the spectrum says how much
there is to learn that way. Spectra follow content too (a sky is smooth), so this is a hint about origin and no proof.
"""

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from farout import seeds
from farout.data.source import ImageSet
from farout.errors import ConfigError, DataError
from farout.metrics import auroc
from farout.types import Row

CHUNK = 256  # images held at a time: of 224 x 224 their greys take 50 MB, the transforms 100 MB
FLOOR = 1 / 12  # the power that rounding to whole grey levels leaves at every frequency
LEAST = 100  # images of a set to fit on half of
UNSEEN = "auxiliary, unseen half"


def spectrum(images: Tensor) -> Tensor:
    """The log mean power of each ring of frequencies, uint8 (N, C, H, W) -> (N, R).

        log(mean over the ring of |FFT(g − mean g)|² / HW + 1/12),  g the mean over channels, in [0, 255]

    Ring r = 1 .. R has the frequencies of rounded length r, in cycles per shorter side. R is the ring of the spectrum's
    corner: 23 for 32 x 32, where rings beyond 16 are cut by the spectrum's border, and none is left out.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise DataError(
            f"a spectrum is taken of uint8 images (N, C, H, W), got {tuple(images.shape)} of "
            f"{str(images.dtype).removeprefix('torch.')}"
        )
    ring = _rings(*images.shape[2:])
    if not len(images):
        return torch.empty(0, int(ring.max()))
    return torch.cat([_log_power(batch, ring) for batch in images.split(CHUNK)])


def fingerprint(
    id_set: ImageSet, outliers: ImageSet, tests: Mapping[str, ImageSet], count: int = 3000, seed: int = 0
) -> list[Row]:
    """AUROC of a logistic regression on spectra that tells `outliers` from `id_set`; 0.5 = they give nothing away.

    It is fitted on a random half of up to `count` images of each. The first row is about the other halves; the rest
    set up to `count` images of each test set against the unseen ID half. There, above 0.5 means that the spectra are
    more like those of the outliers than ID images' are, below 0.5 less. A row is {set, auroc, count}, `count` being
    the OOD images looked at. Two halves of 1,500 leave a standard error of about 0.01.

    >>> fingerprint(open_set("cifar10"), open_set("tinyimagenet"), {})                  # doctest: +SKIP
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if count < LEAST:
        raise ConfigError(f"count={count} images are too few to fit on half of them; take {LEAST} or more")
    _check(id_set, "ID set", LEAST, like=id_set)
    _check(outliers, "auxiliary set", LEAST, like=id_set)
    for samples in tests.values():
        _check(samples, "test set", 1, like=id_set)
    known, known_unseen = _halves(_spectra(id_set, count, seed, 0))
    other, other_unseen = _halves(_spectra(outliers, count, seed, 1))
    labels = torch.cat([torch.ones(len(known)), torch.zeros(len(other))])
    judge = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    judge.fit(torch.cat([known, other]).numpy(), labels.numpy())
    id_scores = judge.decision_function(known_unseen.numpy())

    def row(name: str, features: Tensor) -> Row:
        area = auroc(id_scores=id_scores, ood_scores=judge.decision_function(features.numpy()))
        return {"set": name, "auroc": round(area, 4), "count": len(features)}

    # Each test set has a stream of its own: what else is asked for does not change its number.
    streams = {name: 2 + zlib.crc32(name.encode()) for name in tests}
    found = [row(name, _spectra(samples, count, seed, streams[name])) for name, samples in tests.items()]
    return [row(UNSEEN, other_unseen), *found]


def verdict(area: float) -> str:
    """What the AUROC of the auxiliary set's unseen half means for training, in one sentence."""
    if area < 0.6:
        return "the spectrum hardly tells auxiliary outliers from ID images"
    if area <= 0.7:
        return "the spectrum gives away something about auxiliary outliers, and not much"
    return (
        "the network can tell auxiliary outliers by their spectrum alone, whatever they show: try "
        "data.outlier_augment=wide and validate on synthetic outliers, data.validation=[outliers,synthetic]"
    )


def _rings(height: int, width: int) -> Tensor:
    """The ring (H, W) of each frequency, as torch.fft orders them; ring 0 is not used.

    One step is one cycle per shorter side, so that the same wave is in the same ring along both axes.
    """
    shorter = min(height, width)
    if shorter < 2:
        raise DataError(f"images of {height}x{width} have no spectrum; take 2x2 pixels or more")
    down, across = (torch.fft.fftfreq(side, dtype=torch.float64) * shorter for side in (height, width))
    return torch.hypot(down[:, None], across[None, :]).round().long()


def _log_power(batch: Tensor, ring: Tensor) -> Tensor:
    grey = batch.float().mean(dim=1)
    grey -= grey.mean(dim=(1, 2), keepdim=True)
    power = torch.fft.fft2(grey).abs().square().flatten(1) / ring.numel()
    sums = torch.zeros(len(batch), int(ring.max()) + 1).index_add_(1, ring.flatten(), power)
    return (sums / ring.flatten().bincount() + FLOOR).log()[:, 1:]


def _spectra(samples: ImageSet, count: int, seed: int, stream: int) -> Tensor:
    """The spectra of `count` random samples, or of all in random order where there are fewer."""
    rows = torch.randperm(len(samples), generator=seeds.generator(seed, stream))[:count]
    return torch.cat([spectrum(samples.read(part)[0]) for part in rows.split(CHUNK)])


def _halves(features: Tensor) -> tuple[Tensor, Tensor]:
    cut = math.ceil(len(features) / 2)
    return features[:cut], features[cut:]


def _check(samples: ImageSet, role: str, least: int, like: ImageSet) -> None:
    """A DataError unless there are at least `least` images, of the size of those of `like`."""
    if len(samples) < least:
        raise DataError(f"the {role} {samples.name} has {len(samples)} images; a fingerprint needs {least} or more")
    sizes = [each.read(torch.tensor([0]))[0].shape[2:] for each in (samples, like)]
    if not sizes[0]:
        raise DataError(f"the {role} {samples.name} holds embeddings; a fingerprint is taken of images")
    if sizes[0] != sizes[1]:
        shown = ["x".join(map(str, size)) for size in sizes]
        raise DataError(
            f"images of the {role} {samples.name} are {shown[0]}, those of {like.name} {shown[1]}; only spectra of one "
            "size can be compared: bring the images to the same size"
        )
