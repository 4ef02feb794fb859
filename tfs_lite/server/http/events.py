"""Server-sent events: one JSON text each."""

from __future__ import annotations

EVENT_TYPE = "text/event-stream; charset=utf-8"
_SEPARATORS = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))
"""Ends of lines to some clients, though not to the specification."""
_ESCAPES = tuple((separator.encode(), escape) for separator, escape in _SEPARATORS)


def event(body: bytes) -> bytes:
    """``body`` is JSON without line breaks. Other separators of lines, which can only be inside its strings, are
    written as escapes."""
    if not body.isascii():
        for separator, escape in _ESCAPES:
            body = body.replace(separator, escape)
    return b"data: " + body + b"\n\n"
