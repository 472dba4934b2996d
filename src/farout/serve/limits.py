"""What one request, and all of them together, may ask of the server; and how a refusal is worded."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields

from starlette.types import Message, Receive

from farout.errors import ConfigError, FaroutError


class Refused(FaroutError):
    """A request without an answer: HTTP `status`, `code` for programs, a message for people, `where` it went wrong."""

    def __init__(
        self, status: int, code: str, message: str, where: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.where, self.headers = status, code, where, dict(headers or {})


@dataclass(frozen=True)
class Limits:
    """Body bytes, pixels an image, images a request, requests at once, seconds a request.

    Bodies are held in memory, so `concurrency` x `body_bytes` bounds them.
    """

    body_bytes: int = 10_000_000
    pixels: int = 25_000_000
    images: int = 32
    concurrency: int = 64
    seconds: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not (value := getattr(self, field.name)) > 0:
                raise ConfigError(f"the limit {field.name} must be positive, got {value}")


class Gate:
    """Lets `room` requests in at once; the next one is told to come back."""

    def __init__(self, room: int) -> None:
        self.room, self.inside = room, 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        if self.inside >= self.room:
            message = f"the server already works on {self.room} requests; try again in a second"
            raise Refused(503, "busy", message, headers={"Retry-After": "1"})
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


def counted(receive: Receive, declared: str | None, most: int) -> Receive:
    """`receive` that refuses a body of more than `most` bytes: by its declared length, else once that many came."""

    def refuse() -> Refused:
        return Refused(413, "body_too_large", f"the body has more than {most:,} bytes; send smaller or fewer images")

    if declared is not None and declared.isdecimal() and int(declared) > most:
        raise refuse()
    came = 0

    async def receive_counted() -> Message:
        nonlocal came
        message = await receive()
        came += len(message.get("body", b""))
        if came > most:
            raise refuse()
        return message

    return receive_counted


@asynccontextmanager
async def until(deadline: float, late: Refused) -> AsyncIterator[None]:
    """Raise `late` if the block has not ended when the loop's clock shows `deadline`."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise late from None
