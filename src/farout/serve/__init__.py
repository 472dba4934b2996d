"""A detector behind HTTP: images in, verdicts out, with limits, metrics, a drift signal and a small page.

POST /v1/score -> intake (read, decode) -> batching (one thread runs the detector) -> drift, metrics -> JSON
"""

from farout.serve.app import create_app
from farout.serve.limits import Limits

__all__ = ["Limits", "create_app"]
