"""What our server tells our client beside the answer of a call, in gRPC's trailers. Other clients never look there."""

from __future__ import annotations

from urllib.parse import quote, unquote

APPLIED = "tfs-lite-applied"
"""What a reload changed, in words."""
MAX_CHARACTERS = 600
_PLAIN = " []:,;()/"


def encode_trailer(text: str) -> str:
    """Printable ASCII, percent-encoded where needed, cut to a length that every client takes."""
    shown = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
    return quote(shown, safe=_PLAIN)


def decode_trailer(text: str) -> str:
    return unquote(text)
