"""The HTTP side: models, routes, errors and headers; everything else is in `service`."""

import base64
import hashlib
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farout import __version__
from farout.serve.batching import Answer
from farout.serve.drift import DriftReport
from farout.serve.intake import FORM_SCHEMA, ScoreRequest, place
from farout.serve.limits import Limits, Refused
from farout.serve.metrics import CONTENT_TYPE
from farout.serve.nearest import NearExample
from farout.serve.service import Service, Subject

BINS = 40
PATHS = ("/", "/v1/score", "/v1/detector", "/v1/drift", "/healthz", "/readyz", "/metrics", "/openapi.json")


class ClassProbability(BaseModel):
    label: str
    probability: float


class ImageResult(BaseModel):
    """What the detector says of one image."""

    verdict: Literal["ID", "OOD"]
    """OOD where the score is below the threshold."""
    label: str
    """The most likely class; it means little if the verdict is OOD."""
    score: float
    """Higher = more in-distribution."""
    p_value: float | None
    """Share of ID images that score this low; null if the detector carries no calibration scores."""
    probabilities: list[ClassProbability]
    """Most likely first; they sum to 1 over all classes, and say nothing of being OOD."""
    nearest: list[NearExample] | None = None
    """The nearest of the detector's examples, nearest first; null unless asked for and carried."""


class ScoreResponse(BaseModel):
    """One result for each image, in the request's order."""

    results: list[ImageResult]
    threshold: float


class Bins(BaseModel):
    """How the calibration scores lie: counts[i] of them between edges[i] and edges[i + 1]."""

    count: int
    edges: list[float]
    counts: list[int]


class DetectorInfo(BaseModel):
    """What is served."""

    classes: list[str]
    score: str
    threshold: float
    image_size: int
    channels: int
    calibration: Bins | None
    examples: int
    """How many ID examples it carries, for ?nearest=."""
    max_images: int
    max_body_bytes: int
    max_pixels: int
    version: str


class DriftResponse(BaseModel):
    """The recent scores beside the calibration scores; null where there is nothing to compare."""

    seen: int
    ood_share: float | None
    expected_ood_share: float | None
    ks_statistic: float | None
    p_value: float | None


class Status(BaseModel):
    status: str


class Problem(BaseModel):
    """Why there is no answer: `code` for programs, `message` for people, `where` in the request."""

    code: str
    message: str
    where: str | None = None


class ProblemResponse(BaseModel):
    error: Problem


PROBLEMS = {
    400: "The body is not JSON, or not a form.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is neither JSON nor a form.",
    422: "An image cannot be read or is too large, there are none or too many of them, or a field is wrong.",
    500: "The detector failed.",
    503: "Too many requests are at work; Retry-After says when to come back.",
    504: "The detector did not answer in time.",
}
BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {"schema": FORM_SCHEMA},
        "application/json": {"schema": ScoreRequest.model_json_schema()},
    },
}


def create_app(
    detector: Any,
    *,
    limits: Limits | None = None,
    max_batch: int = 32,
    max_wait: float = 0.005,
    window: int = 1000,
    device: str | None = None,
) -> FastAPI:
    """An ASGI application that serves `detector`: a Detector, its folder, or an exported file.

    `max_wait` (s) is how long the first image of a batch waits for company; `window` the scores in the drift test.
    """
    service = Service(Subject.open(detector, device), limits or Limits(), max_batch, max_wait, window)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    # The usual pages under /docs load scripts from elsewhere; /openapi.json says the same.
    app = FastAPI(title="farout", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(Observed, service=service)
    for kind, answer in (
        (Refused, _refused),
        (HTTPException, _http_error),
        (RequestValidationError, _invalid),
        (ClientDisconnect, _gone),
    ):
        app.add_exception_handler(kind, answer)
    _add_scoring(app, service)
    _add_looking(app, service)
    return app


def _add_scoring(app: FastAPI, service: Service) -> None:
    classes = service.subject.judge.classes
    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": ProblemResponse, "description": why} for status, why in PROBLEMS.items()
    }

    @app.post("/v1/score", responses=problems, openapi_extra={"requestBody": BODY})
    async def score(
        request: Request,
        top: Annotated[int | None, Query(ge=1, description="How many classes to list.")] = None,
        nearest: Annotated[int, Query(ge=0, le=20, description="How many of the detector's examples to show.")] = 0,
    ) -> ScoreResponse:
        """Judge images: files called `images` in a form, or base64 in JSON."""
        answers, near = await service.score(request, nearest)
        results = [result_of(answer, classes, top) for answer in answers]
        for result, examples in zip(results, near, strict=False):
            result.nearest = examples
        return ScoreResponse(results=results, threshold=service.subject.threshold)


def _add_looking(app: FastAPI, service: Service) -> None:
    page, policy = load_page()

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/v1/detector")
    async def detector() -> DetectorInfo:
        """Classes, threshold, calibration scores and limits."""
        return info_of(service)

    @app.get("/v1/drift")
    async def drift() -> DriftResponse:
        """Whether what came recently still looks like the calibration data."""
        report: DriftReport = service.drift.report()
        return DriftResponse(**report._asdict())

    @app.get("/healthz")
    async def healthz() -> Status:
        """The process is alive."""
        return Status(status="ok")

    @app.get("/readyz", responses={503: {"model": ProblemResponse, "description": "Starting or stopping."}})
    async def readyz() -> Status:
        """The detector is loaded and warm, and takes requests."""
        if not service.batcher.running:
            raise Refused(503, "not_ready", "the detector is not running", headers={"Retry-After": "1"})
        return Status(status="ready")

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics(), headers={"Content-Type": CONTENT_TYPE})


def result_of(answer: Answer, classes: tuple[str, ...], top: int | None = None) -> ImageResult:
    """An answer in words; the `top` most likely classes, or all of them."""
    names = classes or tuple(map(str, range(len(answer.probabilities))))
    ranked = sorted(zip(names, answer.probabilities, strict=True), key=lambda pair: -pair[1])
    return ImageResult(
        verdict="OOD" if answer.is_ood else "ID",
        label=names[answer.label],
        score=answer.score,
        p_value=None if math.isnan(answer.p_value) else answer.p_value,
        probabilities=[ClassProbability(label=name, probability=value) for name, value in ranked[:top]],
    )


def info_of(service: Service) -> DetectorInfo:
    subject, limits = service.subject, service.limits
    return DetectorInfo(
        classes=list(subject.judge.classes),
        score=subject.card["score"]["name"],
        threshold=subject.threshold,
        image_size=subject.judge.crop,
        channels=subject.judge.channels,
        calibration=bins_of(service.drift.calibration),
        examples=len(subject.gallery.labels) if subject.gallery else 0,
        max_images=limits.images,
        max_body_bytes=limits.body_bytes,
        max_pixels=limits.pixels,
        version=__version__,
    )


def bins_of(scores: Any) -> Bins | None:
    """A histogram of the calibration scores (n,), if there are any."""
    if not len(scores):
        return None
    counts, edges = np.histogram(scores, bins=BINS)
    return Bins(count=len(scores), edges=edges.tolist(), counts=counts.tolist())


def load_page() -> tuple[str, str]:
    """The page, and the policy that lets it run its own script and style, ask this server, and nothing else."""
    page = files("farout.serve").joinpath("page.html").read_text(encoding="utf-8")

    def allowed(tag: str) -> str:
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inside)
        return " ".join(f"'sha256-{one}'" for one in hashes)

    policy = (
        f"default-src 'none'; script-src {allowed('script')}; style-src {allowed('style')}; img-src blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


class Observed:
    """Counts requests by path and status, times scoring, and gives every answer its safety headers."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": _with_safety(message["headers"])}
            await send(message)

        path = scope["path"] if scope["path"] in PATHS else "other"  # few paths, however many are tried
        try:
            await self.app(scope, receive, send_observed)
        finally:
            self.service.requests.add(path, str(status))
            if path == "/v1/score":
                self.service.seconds.observe(time.perf_counter() - start)


SAFETY = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


def _with_safety(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    named = {name.lower() for name, _ in headers}
    return [*headers, *(pair for pair in SAFETY if pair[0] not in named)]


def _problem(status: int, problem: Problem, headers: Any = None) -> JSONResponse:
    return JSONResponse(ProblemResponse(error=problem).model_dump(), status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    problem = Problem(code=error.code, message=str(error), where=error.where)
    return _problem(error.status, problem, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _problem(error.status_code, Problem(code="http_error", message=message), error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = place(first["loc"])
    return _problem(422, Problem(code="bad_request", message=f"{where}: {first['msg']}", where=where))


async def _gone(request: Request, error: Exception) -> Response:
    return _problem(400, Problem(code="gone", message="the client went away before its body was whole"))
