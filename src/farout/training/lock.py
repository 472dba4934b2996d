"""One process a run folder: the second is refused, and a lock whose process died is free."""

import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self

from farout.errors import FaroutError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: runs are not locked there
    fcntl = None


class LockedError(FaroutError):
    """Another process trains in this folder."""


GRACE = (0.01, 0.05, 0.2)  # seconds between tries: who only asks whether a folder is in use has its lock for a moment
POLL = 0.2  # seconds between two tries of one who waits


class RunLock:
    """Within this block the folder is this process's own.

    The lock is the kernel's, on the file `.lock`: it ends with its process, however that ends, and does not pass to
    forked data loaders, which may live on for a moment. What the file says is only for people.
    """

    _held: set[Path] = set()  # noqa: RUF012  # record locks do not hold within one process

    def __init__(self, folder: Path) -> None:
        self.path = folder.resolve() / ".lock"
        self._descriptor = -1
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        if self.path in self._held:
            raise LockedError(f"this process already trains in {self.path.parent}; choose another --run folder")
        self._made = [folder for folder in self.path.parents if not folder.exists()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._held.add(self.path)
        return self

    def _take(self) -> None:
        try:
            taken = _try(self._descriptor)
            for seconds in () if taken else GRACE:
                time.sleep(seconds)
                taken = taken or _try(self._descriptor)
        except OSError as error:
            warnings.warn(f"{self.path.parent} cannot be locked ({error}): start no second run there", stacklevel=3)
            taken = True
        if not taken:
            raise LockedError(
                f"{self.path.parent} is in use by {self._owner()}; wait for it, stop it, or choose another --run folder"
            )
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat("T", "seconds")}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(about).encode(), 0)

    def _owner(self) -> str:
        try:
            about = json.loads(os.pread(self._descriptor, 1000, 0))
            return f"process {about['pid']} on {about['host']} since {about['since']}"
        except (ValueError, TypeError, KeyError):
            return "another process"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.discard(self.path)
        os.ftruncate(self._descriptor, 0)  # the file stays: removing it could take it from under a waiting process
        os.close(self._descriptor)
        if self._made and list(self.path.parent.iterdir()) == [self.path]:
            self._leave_no_trace()

    def _leave_no_trace(self) -> None:
        """What failed before it wrote anything leaves no folder behind."""
        self.path.unlink()
        for folder in self._made:
            if any(folder.iterdir()):
                return
            folder.rmdir()


def _try(descriptor: int) -> bool:
    """Take the kernel's lock if nobody has it."""
    if fcntl is None:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # which of the two depends on the system
        return False
    return True


def in_use(folder: Path) -> bool:
    """Whether a living process has the folder's lock."""
    path = folder.resolve() / ".lock"
    if path in RunLock._held:  # and closing the file again would give the lock up
        return True
    if not path.exists():
        return False
    descriptor = os.open(path, os.O_RDWR)
    try:
        return not _try(descriptor)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)


@contextmanager
def patient(folder: Path, tell: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """The folder's lock, after whoever has it now; `tell` is told once that there is a wait."""
    told = False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(RunLock(folder))
                break
            except LockedError as error:
                if not told:
                    tell(f"waiting: {str(error).partition(';')[0]}")
                told = True
                time.sleep(POLL)
        yield
