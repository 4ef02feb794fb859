"""Cross-origin requests: the fixed headers of TensorFlow Serving, and its answer to the question before a request."""

from __future__ import annotations

HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}
"""On every REST answer when cross-origin requests are allowed."""


def preflight_status(origin: str | None) -> int:
    """The HTTP status of an OPTIONS request, allowed or not: a browser looks at the headers beside it."""
    return 200 if origin and ("http://" in origin or "https://" in origin) else 400
