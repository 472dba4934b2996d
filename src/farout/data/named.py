"""A set by name: one that farout makes itself, or one that is looked for on the disk."""

from pathlib import Path

import torch

from farout.data.demo import DEMO_SETS
from farout.data.image_files import Size
from farout.data.sets import Report, check_set, open_set
from farout.data.source import ImageSet


def open_named(
    name: str, *, root: str | None = None, split: str = "train", size: Size = 32, corrupt: str = "raise"
) -> ImageSet:
    """The set called `name`: demo/..., a public set under `root`, or a path to a folder or an array file."""
    if name in DEMO_SETS:
        return DEMO_SETS[name](split)
    return open_set(name, root=root, split=split, size=size, corrupt=corrupt)


def check_named(name: str, *, root: str | None = None, split: str = "train") -> Report:
    """Read all of a set once and say what was found; a set that farout makes is made."""
    if name not in DEMO_SETS:
        return check_set(name, root=root, split=split)
    made = DEMO_SETS[name](split)
    samples, _ = made.read(torch.arange(len(made)))
    return Report(name, split, Path("(made by farout)"), len(made), None, tuple(samples.shape[1:]), made.classes, ())
