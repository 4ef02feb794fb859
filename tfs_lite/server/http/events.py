"""Server-sent events, each with one JSON text. A failure behind the first event is the last event."""

from __future__ import annotations

EVENT_TYPE = "text/event-stream; charset=utf-8"
_SEPARATORS = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))
"""Line ends to some clients, though not to the specification."""
_ESCAPES = tuple((separator.encode(), escape) for separator, escape in _SEPARATORS)


def event(body: bytes) -> bytes:
    """``body`` is JSON without line breaks. Other line separators, which only its strings can hold, are escaped."""
    if not body.isascii():
        for separator, escape in _ESCAPES:
            body = body.replace(separator, escape)
    return b"data: " + body + b"\n\n"
