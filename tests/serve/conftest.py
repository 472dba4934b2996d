"""What the serving tests share: a tiny calibrated detector, encoded images, and an application to ask."""

import io
import threading
from contextlib import asynccontextmanager

import pytest
import torch
from PIL import Image

from farout.data.named import open_named
from farout.detector import Detector

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
httpx = pytest.importorskip("httpx", reason="the tests of serving ask through httpx")


@pytest.fixture(scope="session")
def detector(tiny_run) -> Detector:
    return Detector.load(tiny_run.folder / "detector")


def png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def samples() -> torch.Tensor:
    """uint8 (12, 1, 8, 8), digits and cut-outs of a flower."""
    return torch.cat(
        [open_named(name, split="test").read(torch.arange(6))[0] for name in ("demo/digits", "demo/flower")]
    )


@pytest.fixture(scope="session")
def pictures(samples) -> list[bytes]:
    """The same as PNG files."""
    return [png(image[0]) for image in samples]


@pytest.fixture
def serving(detector):
    """An application that runs, and a client to ask it, without a socket."""
    from farout.serve import create_app

    @asynccontextmanager
    async def start(judge=detector, **options):
        app = create_app(judge, **options)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
        async with app.router.lifespan_context(app), client:
            yield client, app.state.service

    return start


@pytest.fixture(scope="session")
def listening():
    """Start an application on a free port of the loopback, in a thread; all of them stop at the end."""
    uvicorn = pytest.importorskip("uvicorn")
    started = []

    def listen(app):
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=10))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        started.append((server, thread))
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}", server, thread

    yield listen
    for server, thread in started:
        server.should_exit = True
        thread.join()
