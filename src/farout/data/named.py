"""A set by name: one that farout makes itself, or one that is looked for on the disk."""

from farout.data.demo import DEMO_SETS
from farout.data.source import ImageSet


def open_named(
    name: str, *, root: str | None = None, split: str = "train", size: int = 32, corrupt: str = "raise"
) -> ImageSet:
    """The set called `name`: demo/..., a public set under `root`, or a path to a folder or an array file."""
    if name in DEMO_SETS:
        return DEMO_SETS[name](split)
    from farout.data.sets import open_set

    return open_set(name, root=root, split=split, size=size, corrupt=corrupt)
