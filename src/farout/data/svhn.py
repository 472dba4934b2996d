"""Street View House Numbers, cropped digits: `{train,test,extra}_32x32.mat`."""

import zlib
from pathlib import Path

import numpy as np
import torch

from farout.data.arrays import ArraySet
from farout.data.mat import read_mat
from farout.errors import DataError

CLASSES = tuple("0123456789")

MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    "extra_32x32.mat": "a93ce644f1a588dc4d68dda5feec44a7",
}


def read_svhn(path: Path, name: str = "svhn") -> ArraySet:
    """One SVHN file: X (32, 32, 3, N) to images (N, 3, 32, 32); y, where the file writes digit 0 as 10."""
    try:
        fields = read_mat(path, ("X", "y"))
        with np.errstate(invalid="ignore"):  # a NaN becomes a number that is no digit, and is refused as such
            images, digits = fields["X"], np.ravel(fields["y"]).astype(np.int64)
    except (OSError, ValueError, KeyError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as an SVHN file: {type(error).__name__}: {error}; download it again"
        ) from error
    if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(digits)):
        raise DataError(
            f"{path} is not an SVHN file: X is {images.shape} of {images.dtype}, expected"
            f" (32, 32, 3, {len(digits)}) of uint8"
        )
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(3, 2, 0, 1)))
    return ArraySet(name, pixels, np.where(digits == 10, 0, digits), CLASSES)
