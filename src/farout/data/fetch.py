"""Fetching sets from the hosts that publish them: resumed where it broke off, checked, unpacked inside its folder.

A file is fetched to NAME.part and gets its name only when it is whole and its checksum is right; an archive is
unpacked beside its place and moved there at the end. So whatever has its final name is whole.
"""

import difflib
import hashlib
import http.client
import json
import os
import shutil
import ssl
import stat
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from farout.data.catalogue import ALIASES, SETS
from farout.data.sets import data_root
from farout.errors import ConfigError, DataError

Progress = Callable[[str, int, int | None], None]
"""Called with what is going on, the bytes that are done and, where known, how many there will be."""

MB = 1_000_000
CHUNK = 1 << 18
ATTEMPTS = 6
TIMEOUT = 60.0  # seconds without a byte
MAX_MEMBERS = 2_000_000  # files in one archive


@dataclass(frozen=True)
class Remote:
    """One file to fetch.

    `digest` is "md5:..." or "sha256:...", "" where none is published. `makes` is the path below the data root that is
    there when all is done: the file itself, or what its `archive` ("tar", "zip") holds, unpacked in `into`. `limit`
    and `unpacked` bound the bytes that are accepted, about twice what is expected.
    """

    url: str
    digest: str
    makes: str
    limit: int
    archive: str = ""
    into: str = ""
    unpacked: int = 0

    @property
    def file(self) -> str:
        return PurePosixPath(urllib.parse.urlsplit(self.url).path).name


@dataclass(frozen=True)
class Origin:
    """Where a set comes from, on which terms, and what to cite."""

    name: str
    remotes: tuple[Remote, ...]
    licence: str
    citation: str
    note: str = ""


_KRIZHEVSKY = "Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_STREET_VIEW = "http://ufldl.stanford.edu/housenumbers/"
_NO_LICENCE = "no licence stated; asks to be cited"


def _cifar(name: str, file: str, md5: str, makes: str) -> Origin:
    remote = Remote(_TORONTO + file, f"md5:{md5}", makes, 350 * MB, "tar", unpacked=400 * MB)
    return Origin(name, (remote,), _NO_LICENCE, _KRIZHEVSKY)


def _svhn(split: str, md5: str, limit: int) -> Remote:
    return Remote(f"{_STREET_VIEW}{split}_32x32.mat", f"md5:{md5}", f"{split}_32x32.mat", limit)


_NETZER = (
    "Netzer, Wang, Coates, Bissacco, Wu, Ng, Reading Digits in Natural Images with Unsupervised Feature Learning,"
    " NIPS workshop, 2011"
)

# Checksums: CIFAR's are on its page; those of SVHN, DTD and Places365 are torchvision's; Tiny ImageNet's is the one
# that many public loaders agree on. No checksum of 300K_random_images.npy was found.
_TABLE = (
    _cifar("cifar10", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
    _cifar("cifar10-python", "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
    _cifar("cifar100", "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
    _cifar("cifar100-python", "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
    Origin(
        "svhn",
        (
            _svhn("test", "eb5a983be6a315427106f1b164d9cef3", 150 * MB),
            _svhn("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 400 * MB),
        ),
        "non-commercial use only",
        _NETZER,
    ),
    Origin(
        "svhn-extra",
        (_svhn("extra", "a93ce644f1a588dc4d68dda5feec44a7", 2600 * MB),),
        "non-commercial use only",
        _NETZER,
    ),
    Origin(
        "textures",
        (
            Remote(
                "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
                "md5:fff73e5086ae6bdbea199a49dfb8a4c1",
                "dtd",
                1300 * MB,
                "tar",
                unpacked=1500 * MB,
            ),
        ),
        "for research; images under their owners' terms",
        "Cimpoi, Maji, Kokkinos, Mohamed, Vedaldi, Describing Textures in the Wild, CVPR 2014",
    ),
    Origin(
        "tinyimagenet",
        (
            Remote(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                "tiny-imagenet-200",
                500 * MB,
                "zip",
                unpacked=1000 * MB,
            ),
        ),
        "ImageNet terms of access: non-commercial research and teaching",
        "Stanford CS231n, Tiny ImageNet; Deng et al., ImageNet: A Large-Scale Hierarchical Image Database, CVPR 2009",
    ),
    Origin(
        "places365",
        (
            Remote(
                "http://data.csail.mit.edu/places/places365/val_256.tar",
                "md5:e27b17d8d44f4af9a78502beb927f808",
                "places365/val_256",
                1100 * MB,
                "tar",
                "places365",
                1100 * MB,
            ),
        ),
        "images under their owners' terms; for research and teaching",
        "Zhou, Lapedriza, Khosla, Oliva, Torralba, Places: A 10 Million Image Database, IEEE TPAMI 2018",
        "All 36,500 validation images at 256 x 256; published test subsets differ from it.",
    ),
    Origin(
        "300k",
        (
            Remote(
                "https://people.eecs.berkeley.edu/~hendrycks/300K_random_images.npy",
                "",
                "300K_random_images.npy",
                1000 * MB,
            ),
        ),
        "images under their owners' terms",
        "Hendrycks, Mazeika, Dietterich, Deep Anomaly Detection with Outlier Exposure, ICLR 2019",
        "No checksum is published for it: compare the SHA-256 below with a copy you trust.",
    ),
)

ORIGINS: Mapping[str, Origin] = {origin.name: origin for origin in _TABLE}


@dataclass(frozen=True)
class Fetched:
    """One thing that is now on the disk; `sha256` of the fetched file, "" where it was there before."""

    path: Path
    sha256: str


def origin(name: str) -> Origin:
    """Where to get `name`, or an error that says how to get it by hand."""
    key = ALIASES.get(name.lower(), name.lower())
    if key in ORIGINS:
        return ORIGINS[key]
    if key in SETS:
        raise DataError(f"farout cannot fetch {key!r}: it has no lasting public address. To get it: {SETS[key].source}")
    close = difflib.get_close_matches(key, [*ORIGINS, *SETS, *ALIASES], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"to be fetched: {', '.join(ORIGINS)}"
    raise ConfigError(f"unknown data set {name!r}; {hint}")


def fetch(
    wanted: str | Origin,
    root: Path | str | None = None,
    *,
    keep: bool = False,
    progress: Progress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> list[Fetched]:
    """Fetch a set below `root` (default $FAROUT_DATA, else "data"); what is already there is left as it is.

    An archive is deleted once it is unpacked, unless `keep`. `pause` waits between attempts.

    >>> fetch("cifar10", "~/data")                                                  # doctest: +SKIP
    """
    place, known = data_root(root), origin(wanted) if isinstance(wanted, str) else wanted
    tell = progress or (lambda what, done, total: None)
    return [_fetch_one(remote, place, keep, tell, pause) for remote in known.remotes]


def _fetch_one(remote: Remote, root: Path, keep: bool, tell: Progress, pause: Callable[[float], None]) -> Fetched:
    final = root / remote.makes
    if final.exists():
        return Fetched(final, "")
    file = root / remote.file
    sha256 = download(remote.url, file, remote.digest, remote.limit, tell, pause)
    if remote.archive:
        unpack(file, final, remote, tell)
        if not keep:
            file.unlink()
    return Fetched(final, sha256)


def download(
    url: str,
    path: Path,
    digest: str,
    limit: int,
    tell: Progress = lambda what, done, total: None,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Fetch `url` to `path` and return its SHA-256; what an earlier call left in PATH.part is continued.

    A connection that breaks is taken up again, ATTEMPTS times in a row without a new byte; a server that cannot
    continue, or whose file has changed, starts it anew.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} is no web address; farout fetches http and https only")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and digest and _digest(path, digest) == digest:
        return _digest(path, "sha256:").partition(":")[2]
    part = _Part(path, url)
    failures, furthest, pieced, restarted = 0, part.size, False, False
    while failures < ATTEMPTS:
        pieced |= part.size > 0
        try:
            if not _receive(part, url, bool(digest), limit, tell):
                failures += 1
                continue
        except _Broken as broken:
            # To get further than ever is no failure: a long download may break many times.
            failures = 1 if part.size > furthest else failures + 1
            furthest = max(furthest, part.size)
            if failures == ATTEMPTS:
                raise DataError(
                    f"{url}: {broken}. {part.size:,} bytes are kept in {part.path}; the same command goes on from there"
                ) from None
            pause(min(2.0**failures, 30.0))
            continue
        found = _digest(part.path, digest) if digest else ""
        if found == digest:
            return part.finish(path)
        part.discard()
        if restarted or not pieced:
            raise DataError(
                f"{url} is not what was published: its checksum is {found}, expected {digest}; nothing is kept"
            )
        restarted = True  # the pieces may have been of two versions: once more from the start
    raise DataError(f"{url}: the server answers with ranges that do not fit; get the file by hand")


class _Broken(Exception):
    """The connection failed in a way that may pass."""


class _Part:
    """The unfinished file NAME.part, and beside it the version of the file (ETag or date) that its bytes are of."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path.with_name(f"{path.name}.part")
        self.note = path.with_name(f"{path.name}.part.json")
        self.url = url

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def version(self) -> str:
        """What If-Range may carry; "" where nothing is known of the bytes."""
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            return str(note["version"]) if note["url"] == self.url else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def begin(self, version: str) -> None:
        """A fresh start with a file of `version`."""
        self.path.unlink(missing_ok=True)
        self.note.write_text(json.dumps({"url": self.url, "version": version}), encoding="utf-8")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def finish(self, path: Path) -> str:
        """Flush, take the SHA-256, and give the file its name."""
        with self.path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        self.path.replace(path)
        self.note.unlink(missing_ok=True)
        return sha256


def _receive(part: _Part, url: str, checked: bool, limit: int, tell: Progress) -> bool:
    """One request, from where the part ends. False: what was there did not fit and was discarded; ask again."""
    version = part.version()
    if part.size and not version and not checked:
        part.discard()  # neither the server nor a checksum could tell whether the pieces belong together
    have = part.size
    headers = {"User-Agent": "farout", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if version:
            headers["If-Range"] = version
    try:
        with _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            start, total = _extent(answer)
            if start not in (0, have):
                part.discard()
                return False
            _check_room(url, part, start, total, limit)
            if start == 0:
                part.begin(_version(answer))
            _copy(answer, part, start, total, limit, url, tell)
    except urllib.error.HTTPError as error:
        return _refused(error, part, url, have)
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            raise DataError(f"{url}: no secure connection: {error.reason}") from None
        raise _Broken(f"cannot be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"broke off: {error or type(error).__name__}") from None
    return True


def _refused(error: urllib.error.HTTPError, part: _Part, url: str, have: int) -> bool:
    """What an answer of 4xx or 5xx means; 416 says that the part is whole, or longer than the file."""
    with error:
        if error.code == 416 and have:
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
                return True
            part.discard()
            return False
        if error.code >= 500 or error.code in (408, 429):
            raise _Broken(f"the server answers {error.code} {error.reason}")
    raise DataError(
        f"{url}: the server answers {error.code} {error.reason}; get the file by hand, or try later"
    ) from None


def _extent(answer: Any) -> tuple[int, int | None]:
    """Where the answer's bytes start in the file, and how long the file is if the server says."""
    length = answer.headers.get("Content-Length", "")
    if answer.status != 206:
        return 0, int(length) if length.isdigit() else None
    span, _, total = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    start = span.partition("-")[0]
    return int(start) if start.isdigit() else -1, int(total) if total.isdigit() else None


def _version(answer: Any) -> str:
    """A strong ETag, else the date; a weak ETag promises too little to put pieces together."""
    tag = str(answer.headers.get("ETag", ""))
    return tag if tag.startswith('"') else str(answer.headers.get("Last-Modified", ""))


def _check_room(url: str, part: _Part, start: int, total: int | None, limit: int) -> None:
    if total is not None and total > limit:
        raise DataError(f"{url} has {total:,} bytes, more than the {limit:,} that are accepted; it is not that file")
    free = shutil.disk_usage(part.path.parent).free
    if total is not None and total - start > free:
        raise DataError(f"{url} needs {total - start:,} bytes more, {part.path.parent} has {free:,} left; make room")


def _copy(answer: Any, part: _Part, start: int, total: int | None, limit: int, url: str, tell: Progress) -> None:
    done = start
    with part.path.open("ab") as file:
        while piece := answer.read(CHUNK):
            done += len(piece)
            if done > limit:
                file.close()
                part.discard()
                raise DataError(f"{url} sends more than the {limit:,} bytes that are accepted; nothing kept")
            _put(file, piece)
            tell(part.path.name.removesuffix(".part"), done, total)
    if total is not None and done < total:
        raise _Broken(f"broke off after {done:,} of {total:,} bytes")


def _put(file: IO[bytes], piece: bytes) -> None:
    """Write; what goes wrong on the disk is not the network's fault and no reason to try again."""
    try:
        file.write(piece)
    except OSError as error:
        raise DataError(f"cannot write {file.name}: {error}; make room, and the same command goes on") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to anything else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme != "https"):
            raise DataError(f"{req.full_url} leads to {newurl}, which is not safe to follow")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_Redirects())


def _digest(path: Path, like: str) -> str:
    """The file's checksum of the kind that `like` starts with, e.g. "md5:..."."""
    kind = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"


def unpack(archive: Path, final: Path, remote: Remote, tell: Progress = lambda what, done, total: None) -> None:
    """Unpack into a fresh folder beside the archive, then move what the archive holds to its place.

    Only plain files and folders are written, with default modes: a member that is a link, a device, or whose name
    leads out of the folder is refused, and so is an archive that grows beyond `remote.unpacked` bytes.
    """
    top = PurePosixPath(remote.makes).relative_to(remote.into)
    work = archive.with_name(f".{archive.name}.{os.getpid()}.unpacking")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        done = 0
        for name, content in _members(archive, remote.archive):
            done = _write(work / name, content, done, remote.unpacked, archive)
            tell(f"unpacking {archive.name}", done, None)
        if not (work / top).exists():
            raise DataError(
                f"{archive} does not hold {top}; it has {', '.join(sorted(os.listdir(work))[:5]) or 'nothing'}"
            )
        final.parent.mkdir(parents=True, exist_ok=True)
        (work / top).replace(final)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive} is damaged: {error}; delete it and fetch it again") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _members(archive: Path, kind: str) -> Iterator[tuple[Path, IO[bytes] | None]]:
    """Every member's checked name, and its content unless it is a folder."""
    opened = {"tar": _tar_members, "zip": _zip_members}[kind](archive)
    for count, (name, plain, content) in enumerate(opened):
        path = PurePosixPath(name)
        outside = (
            path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in "".join(path.parts[:1])
        )
        if outside or not plain or count >= MAX_MEMBERS:
            what = "leads out of its folder" if outside else "is a link or a device" if not plain else "is one too many"
            raise DataError(f"{archive}: the member {name!r} {what}; the archive is refused and nothing is unpacked")
        yield Path(*path.parts), content


def _tar_members(archive: Path) -> Iterator[tuple[str, bool, IO[bytes] | None]]:
    # Written by hand: tarfile's data filter is missing in early 3.11 releases, and it lets harmless links through.
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            yield member.name, member.isfile() or member.isdir(), tar.extractfile(member) if member.isfile() else None


def _zip_members(archive: Path) -> Iterator[tuple[str, bool, IO[bytes] | None]]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            if member.is_dir() or not plain:
                yield member.filename, plain, None
            else:
                with packed.open(member) as content:
                    yield member.filename, True, content


def _write(path: Path, content: IO[bytes] | None, done: int, limit: int, archive: Path) -> int:
    """One file or folder; returns the bytes unpacked so far."""
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
        return done
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while piece := content.read(CHUNK):
            done += len(piece)
            if done > limit:
                raise DataError(f"{archive} unpacks to more than the {limit:,} bytes that are accepted; it is refused")
            file.write(piece)
    return done
