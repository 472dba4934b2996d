"""Ctrl-C and SIGTERM ask the loop to stop at the next step; a second one stops at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from farout.errors import FaroutError


class Interrupted(FaroutError):
    """Training was stopped on request, after its state was saved."""


class Interrupts:
    """Within this block the first SIGINT or SIGTERM only sets `requested`."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python cannot set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
