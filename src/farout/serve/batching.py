"""Micro-batching: requests wait a moment for company, then one thread runs the detector on all of them."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from farout.detector import Judgement

T = TypeVar("T")


class Answer(NamedTuple):
    """A `Judgement` of one image in plain numbers; p_value is NaN without calibration scores."""

    label: int
    score: float
    is_ood: bool
    p_value: float
    probabilities: list[float]


class _Waiting(NamedTuple):
    image: Tensor
    since: float
    answer: asyncio.Future[Answer]


class Batcher:
    """Images (C, S, S) in, answers out; at most `max_batch` at once, the first of them waits at most `max_wait` s.

    While a batch runs, the next one gathers, so under load nobody waits for company. Used as `async with`; leaving
    it first answers what is queued.
    """

    def __init__(
        self,
        judge: Callable[[Tensor], Judgement],
        max_batch: int = 32,
        max_wait: float = 0.005,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        if max_batch < 1 or not max_wait >= 0:
            raise ValueError(f"a batch takes at least 1 image and 0 s, got max_batch={max_batch}, max_wait={max_wait}")
        self.judge, self.max_batch, self.max_wait, self.on_batch = judge, max_batch, max_wait, on_batch
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="detector")
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._queue.join()
        assert self._worker is not None
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)
        self._thread.shutdown()

    @property
    def running(self) -> bool:
        return self._worker is not None and not self._worker.done()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    async def ask(self, image: Tensor) -> Answer:
        """The answer for one image; an error of the detector is raised here."""
        if not self.running:
            raise RuntimeError("the batcher does not run; ask inside `async with`")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(image, loop.time(), loop.create_future())
        self._queue.put_nowait(waiting)
        return await waiting.answer

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Something else on the detector's thread, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _work(self) -> None:
        while True:
            batch = await self._gather(await self._queue.get())
            # Who gave up (a time limit, a closed connection) has cancelled its future.
            await self._answer([waiting for waiting in batch if not waiting.answer.done()])
            for _ in batch:
                self._queue.task_done()

    async def _gather(self, first: _Waiting) -> list[_Waiting]:
        batch = [first]
        while len(batch) < self.max_batch:
            if not self._queue.empty():
                batch.append(self._queue.get_nowait())
                continue
            try:
                async with asyncio.timeout_at(first.since + self.max_wait):
                    batch.append(await self._queue.get())
            except TimeoutError:
                break
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        start, loop = time.perf_counter(), asyncio.get_running_loop()
        images = [waiting.image for waiting in batch]
        try:
            answers = await loop.run_in_executor(self._thread, answers_of, self.judge, images)
        except Exception as error:
            for waiting in batch:
                _settle(waiting.answer, error)
            return
        for waiting, answer in zip(batch, answers, strict=True):
            _settle(waiting.answer, answer)
        self.on_batch(len(batch), time.perf_counter() - start)


def answers_of(judge: Callable[[Tensor], Judgement], images: list[Tensor]) -> list[Answer]:
    """The detector on a stack of images; NaN and infinities are its fault, and no verdict."""
    judged = judge(torch.stack(images))
    if not bool(judged.score.isfinite().all()):
        raise FloatingPointError("the detector gave a score that is not finite")
    return [Answer(*row) for row in zip(*(part.tolist() for part in judged), strict=True)]


def _settle(answer: asyncio.Future[Answer], outcome: Answer | Exception) -> None:
    if answer.done():  # given up meanwhile
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
