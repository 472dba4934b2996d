"""serve: a detector behind HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from farout.cli.app import app, detector_folder


@app.command()
def serve(
    detector: Annotated[Path, typer.Argument(help="A detector's folder, a run's, or an exported .onnx or .pt2 file.")],
    host: Annotated[str, typer.Option(help="The address to listen on; there is no password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    max_batch: Annotated[int, typer.Option(min=1, help="Images through the detector at once.")] = 32,
    max_wait_ms: Annotated[float, typer.Option(min=0, help="How long an image waits for company.")] = 5.0,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Largest body of a request.")] = 10.0,
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest image, width x height.")] = 25_000_000,
    max_images: Annotated[int, typer.Option(min=1, help="Images in a request.")] = 32,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once; more are told to retry.")] = 64,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for a request, its body included.")] = 10.0,
    window: Annotated[int, typer.Option(min=20, help="Recent scores in the drift test.")] = 1000,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the CPU by default.")] = None,
) -> None:
    """Serve verdicts over HTTP: POST /v1/score, a page at /, /metrics, /healthz, /readyz, /openapi.json.

    Example: `farout serve runs/demo/dal/s0 --port 8000`
    """
    from farout.errors import MissingExtraError

    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "serve", "`farout serve`") from None
    from farout.serve import Limits, create_app

    limits = Limits(int(max_body_mb * 1e6), max_pixels, max_images, concurrency, timeout)
    application = create_app(
        detector_folder(detector),
        limits=limits,
        max_batch=max_batch,
        max_wait=max_wait_ms / 1000,
        window=window,
        device=device,
    )
    # Once told to stop, uvicorn takes no new requests and waits this long for those at work.
    grace = int(timeout) + 5
    uvicorn.run(application, host=host, port=port, access_log=False, timeout_graceful_shutdown=grace)
