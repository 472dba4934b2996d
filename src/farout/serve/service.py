"""What requests share: the detector and its thread, the readers, the limits, the metrics and the drift window."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from starlette.requests import Request
from torch import Tensor

from farout.detector import Detector
from farout.export import FORMATS, open_exported
from farout.scoring import Judge, open_judge
from farout.serve.batching import Answer, Batcher, answers_of
from farout.serve.drift import Drift
from farout.serve.intake import read_body, read_images
from farout.serve.limits import Gate, Limits, Refused, until
from farout.serve.metrics import Counter, Gauge, Histogram, render
from farout.serve.nearest import Gallery, NearExample

log = logging.getLogger("farout.serve")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Subject(NamedTuple):
    """What is served: a detector of whatever kind, λ, its card; calibration scores (n,) and examples if it has them."""

    judge: Judge
    threshold: float
    calibration: Tensor
    card: dict[str, Any]
    gallery: Gallery | None = None

    @classmethod
    def open(cls, detector: Any, device: str | None = None) -> Self:
        """A detector, its folder, or an exported file (whose calibration scores are hidden inside its graph)."""
        exported = not isinstance(detector, Detector) and Path(detector).suffix in {k.suffix for k in FORMATS.values()}
        if exported:
            card = open_exported(detector).card
            return cls(open_judge(detector, device), card["threshold"], torch.empty(0), card)
        opened = detector if isinstance(detector, Detector) else Detector.load(detector)
        opened.eval().require_fit()
        judge = open_judge(opened, device)
        gallery = None if isinstance(detector, Detector) else Gallery.open(detector, opened)
        return cls(judge, opened.threshold.item(), opened.calibration, opened.card(), gallery)


class Service:
    """A detector at work. `score` is the way of a request: gate, body, decode, batch, drift."""

    def __init__(self, subject: Subject, limits: Limits, max_batch: int, max_wait: float, window: int) -> None:
        self.subject, self.limits = subject, limits
        self.gate = Gate(limits.concurrency)
        self.drift = Drift(subject.calibration, subject.threshold, window)
        self.batcher = Batcher(subject.judge.ask, max_batch, max_wait, self._on_batch)
        self._report = self.drift.report()
        self.requests = Counter("farout_requests_total", "Requests by path and status.", ("path", "status"))
        self.seconds = Histogram("farout_request_seconds", "From the headers to the answer, POST /v1/score.", SECONDS)
        self.batch_sizes = Histogram("farout_batch_size", "Images that went through the detector at once.", SIZES)
        self.batch_seconds = Histogram("farout_batch_seconds", "The detector's time for a batch.", SECONDS)
        self.verdicts = Counter("farout_verdicts_total", "Images by verdict.", ("verdict",))
        for verdict in ("ID", "OOD"):
            self.verdicts.add(verdict, count=0)  # rates need a first value
        self.gauges = (
            Gauge("farout_requests_in_flight", "Scoring requests at work.", lambda: self.gate.inside),
            Gauge("farout_images_waiting", "Images that wait for the detector.", lambda: self.batcher.waiting),
            Gauge("farout_drift_window_scores", "Scores in the drift window.", lambda: self._report.seen),
            Gauge("farout_ood_share", "Share of OOD verdicts in the window.", lambda: self._report.ood_share),
            Gauge(
                "farout_expected_ood_share",
                "Share of the calibration scores that the threshold calls OOD.",
                lambda: self._report.expected_ood_share,
            ),
            Gauge(
                "farout_drift_ks_statistic",
                "Largest gap between the distributions of recent and calibration scores, 0 to 1.",
                lambda: self._report.ks_statistic,
            ),
            Gauge(
                "farout_drift_p_value",
                "Kolmogorov-Smirnov test of the window against the calibration scores; small = drift.",
                lambda: self._report.p_value,
            ),
        )

    def _on_batch(self, size: int, seconds: float) -> None:
        self.batch_sizes.observe(size)
        self.batch_seconds.observe(seconds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Threads up and the detector warm inside; what is queued is answered before they go."""
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="reader") as self._readers:
            judge = self.subject.judge
            blank = torch.zeros(judge.channels, judge.crop, judge.crop, dtype=torch.uint8)
            answers_of(judge.ask, [blank])  # the first run is slow, and shows what does not fit together
            async with self.batcher:
                yield

    async def score(self, request: Request, nearest: int = 0) -> tuple[list[Answer], list[list[NearExample]]]:
        """An answer for every image of the request, in its order, and its `nearest` examples; or Refused."""
        limits, loop = self.limits, asyncio.get_running_loop()
        with self.gate.enter():
            deadline = loop.time() + limits.seconds
            late = Refused(408, "slow_body", f"the body did not arrive within {limits.seconds:g} s", "body")
            async with until(deadline, late):
                body = await read_body(request, limits)
            late = Refused(504, "timeout", f"there was no answer within {limits.seconds:g} s; send fewer images")
            async with until(deadline, late):
                images = await loop.run_in_executor(self._readers, read_images, body, self.subject.judge, limits)
                answers, near = await self._ask(images, nearest)
        for answer in answers:
            self.drift.add(answer.score, answer.is_ood)
            self.verdicts.add("OOD" if answer.is_ood else "ID")
        return answers, near

    async def _ask(self, images: list[Tensor], nearest: int) -> tuple[list[Answer], list[list[NearExample]]]:
        gallery = self.subject.gallery
        try:
            answers = await asyncio.gather(*map(self.batcher.ask, images))
            near = await self.batcher.run(gallery.nearest, images, nearest) if nearest and gallery else []
        except Exception:
            log.exception("the detector failed")
            raise Refused(500, "detector_failed", "the detector failed on this batch; see the server's log") from None
        return answers, near

    def metrics(self) -> str:
        self._report = self.drift.report()  # once for all gauges
        counted = (self.requests, self.seconds, self.batch_sizes, self.batch_seconds, self.verdicts)
        return render([*counted, *self.gauges])
