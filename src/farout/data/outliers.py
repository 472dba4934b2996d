"""Auxiliary outliers: keep out of the pool what belongs to the in-distribution classes."""

import difflib
from collections.abc import Iterable, Sequence

import torch

from farout.data.arrays import Subset
from farout.data.source import ImageSet
from farout.errors import ConfigError, DataError

SYNONYMS = {
    "airplane": "aeroplane, aircraft, airliner, warplane, military plane, biplane",
    "automobile": "auto, car, motorcar, sports car, sport car, convertible, limousine, limo, cab, taxi,"
    " taxicab, jeep, landrover, minivan, beach wagon, station wagon, estate car, race car, racing"
    " car, police car, model t, coupe, sedan, hatchback",
    "bird": "cock, rooster, hen, ostrich, finch, goldfinch, house finch, robin, jay, magpie, eagle, bald"
    " eagle, vulture, owl, grouse, peacock, quail, partridge, parrot, macaw, hummingbird, toucan,"
    " duck, goose, swan, black swan, stork, white stork, black stork, flamingo, heron, egret,"
    " pelican, penguin, king penguin, albatross, gull, sparrow, pigeon, dove, crow, raven,"
    " woodpecker, songbird, seabird",
    "cat": "kitten, domestic cat, house cat, tabby, tabby cat, tiger cat, persian cat, siamese cat, egyptian cat",
    "deer": "elk, moose, reindeer, caribou, stag, fawn, roe deer, red deer, fallow deer",
    "dog": "puppy, domestic dog, hound, sheepdog, shepherd dog, terrier, poodle, retriever, spaniel",
    "frog": "toad, bullfrog, tree frog, tailed frog, tailed toad, true frog",
    "horse": "pony, stallion, mare, foal, sorrel, racehorse, saddle horse, draft horse",
    "ship": "boat, container ship, cargo ship, ocean liner, liner, cruise ship, warship, pirate ship,"
    " aircraft carrier, speedboat, motorboat, lifeboat, fireboat, sailboat, schooner, yacht, yawl,"
    " catamaran, trimaran, ferry, gondola, canoe",
    "truck": "lorry, motortruck, pickup, pickup truck, trailer truck, tractor trailer, articulated lorry,"
    " fire truck, fire engine, garbage truck, dustcart, tow truck, wrecker, tipper truck, dump"
    " truck, delivery truck, moving van",
}
"""For each CIFAR-10 class, names that are the same thing or plainly a kind of it; far from complete."""


def auxiliary(outliers: ImageSet, id_classes: Sequence[str] = (), drop: Sequence[int | str] = ()) -> ImageSet:
    """`outliers` less the classes in `drop` and those whose names overlap `id_classes`; never empty.

    Overlap can only be seen in names, so a set without class names keeps all its images.
    """
    overlap = overlapping_classes(outliers.classes, id_classes) if outliers.labels is not None else []
    kept = without_classes(outliers, [*drop, *overlap]) if drop or overlap else outliers
    if len(kept) == 0:
        raise DataError(
            f"{outliers.name}: no outlier stays of {len(outliers)} once the dropped and overlapping classes"
            " are left out; drop fewer classes or take another set"
        )
    return kept


def without_classes(outliers: ImageSet, drop: Sequence[int | str]) -> ImageSet:
    """`outliers` less the classes in `drop`, each a number or a name (any of its comma-separated synonyms).

    Labels keep their numbers. Samples with label -1 stay.
    """
    if not drop:
        return outliers
    labels = outliers.labels
    if labels is None:
        raise ConfigError(f"{outliers.name} has no labels, so its classes cannot be dropped: {list(drop)}")
    known = len(outliers.classes) or int(labels.max() + 1 if len(labels) else 0)
    numbers = _numbers(outliers.name, outliers.classes, known, drop)
    keep = ~torch.isin(labels, torch.tensor(sorted(numbers), dtype=torch.int64))
    return Subset(outliers, keep.nonzero().flatten())


def overlapping_classes(outlier_classes: Sequence[str], id_classes: Sequence[str]) -> list[int]:
    """The numbers of the outlier classes whose names coincide with an ID class, ascending.

    Names coincide when one of their comma-separated synonyms is the same but for case, underscores, hyphens
    and a simple plural, or when `SYNONYMS` (CIFAR-10's ten classes only) says so. Names show no more: a
    Chihuahua is a dog, yet nothing in "Chihuahua" says so. Drop breeds and species by hand, with `drop`.
    """
    wanted: set[str] = set()
    for name in id_classes:
        forms = _forms(name)
        wanted |= forms
        for form in forms & SYNONYMS.keys():
            wanted |= _forms(SYNONYMS[form])
    return [number for number, name in enumerate(outlier_classes) if _forms(name) & wanted]


def _numbers(name: str, classes: Sequence[str], known: int, drop: Iterable[int | str]) -> set[int]:
    numbers: set[int] = set()
    unknown: list[str] = []
    for item in drop:
        if isinstance(item, int):
            matches = [item] if 0 <= item < known else []
        else:
            matches = [number for number, words in enumerate(classes) if _normal(item) in _forms(words)]
            matches += [number for number, words in enumerate(classes) if _forms(item) == _forms(words)]
        numbers.update(matches)
        unknown += [] if matches else [repr(item)]
    if unknown:
        raise ConfigError(f"{name} has no class {', '.join(unknown)}{_hint(unknown, classes)}; it has {known} classes")
    return numbers


def _hint(unknown: Sequence[str], classes: Sequence[str]) -> str:
    names = sorted({form for words in classes for form in _forms(words)})
    close = difflib.get_close_matches(unknown[0].strip("'\"").lower(), names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _forms(name: str) -> set[str]:
    return {_normal(part) for part in name.split(",") if part.strip()}


def _normal(name: str) -> str:
    """Lower case, single spaces, last word singular: "Fire_Engines" -> "fire engine"."""
    words = name.lower().replace("_", " ").replace("-", " ").split()
    return " ".join([*words[:-1], _singular(words[-1])]) if words else ""


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return word[:-1]
    return word
