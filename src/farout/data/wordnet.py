"""Sets whose folders are WordNet ids (n01443537): their words, and Tiny ImageNet's validation folder."""

from pathlib import Path

from farout.data.folders import FolderSet, inside
from farout.data.image_files import ImageFiles, Size
from farout.errors import DataError

WORD_FILES = ("words.txt", "LOC_synset_mapping.txt")


def words(folder: Path) -> dict[str, str]:
    """WordNet id to words ("goldfish, Carassius auratus"), from a list in `folder` or three levels above."""
    for place in (folder, *list(folder.resolve().parents)[:3]):
        for file in WORD_FILES:
            if (place / file).is_file():
                lines = (place / file).read_text(encoding="utf-8", errors="replace").splitlines()
                return {parts[0]: parts[1].strip() for line in lines if len(parts := line.split(maxsplit=1)) == 2}
    return {}


def read_wordnet_folders(folder: Path, name: str, size: Size = 32, corrupt: str = "raise") -> FolderSet | ImageFiles:
    """A folder of WordNet-id folders, their words as class names; or Tiny ImageNet's flat `val` folder."""
    annotations = folder / "val_annotations.txt"
    if annotations.is_file() and (folder / "images").is_dir():
        return _read_annotated(folder, annotations, name, size, corrupt)
    return FolderSet(name, folder, size, corrupt, words(folder))


def _read_annotated(folder: Path, annotations: Path, name: str, size: Size, corrupt: str) -> ImageFiles:
    folder = folder.resolve()
    lines = annotations.read_text(encoding="utf-8").splitlines()
    pairs = sorted(_pair(annotations, line) for line in lines if line.strip())
    known = folder.parent / "wnids.txt"  # all ids, so that the numbers are those of the training folders
    ids = sorted(set(known.read_text(encoding="utf-8").split() if known.is_file() else (wnid for _, wnid in pairs)))
    numbers = {wnid: number for number, wnid in enumerate(ids)}
    unknown = sorted({wnid for _, wnid in pairs} - set(ids))
    if unknown:
        raise DataError(f"{annotations} names classes that {known} does not have: {', '.join(unknown[:5])}")
    meanings = words(folder)
    classes = [meanings.get(wnid, wnid) for wnid in ids]
    files = [f"images/{file}" for file, _ in pairs]
    return ImageFiles(name, folder, files, [numbers[wnid] for _, wnid in pairs], classes, size, corrupt)


def _pair(annotations: Path, line: str) -> tuple[str, str]:
    fields = line.split()
    images = annotations.parent.resolve() / "images"
    if len(fields) < 2 or not inside(images / fields[0], images):
        raise DataError(f"{annotations}: expected `file class ...` with a file in {images}, found {line!r}")
    return fields[0], fields[1]
