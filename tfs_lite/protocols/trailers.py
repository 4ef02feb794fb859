"""The trailers that our server sends our client in addition to gRPC's answer. Other clients ignore it."""

from __future__ import annotations

from urllib.parse import quote, unquote

APPLIED = "tfs-lite-applied"
"""A text that says what a reload has changed."""
MAX_CHARACTERS = 600
_PLAIN = " []:,;()/"


def encode_trailer(text: str) -> str:
    """Encodes a text as printable ASCII, percent-encoded if needed, cut to a length that every client accepts."""
    shown = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
    return quote(shown, safe=_PLAIN)


def decode_trailer(text: str) -> str:
    return unquote(text)
