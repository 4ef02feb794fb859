"""Translates an exception of a handler to a gRPC code and a text that fits into a header."""

from __future__ import annotations

import logging
from urllib.parse import quote

from tfs_lite.core.status import ServingError, Status, StatusCode

logger = logging.getLogger(__name__)

MAX_DETAILS = 1024
MAX_ENCODED_DETAILS = 4096
"""Longer error texts are cut: they travel in a header, percent-encoded, and clients take 8 KB of headers."""
_MOST_ENCODED = 12
"""Bytes of a character: four in UTF-8, each as a percent sign and two digits."""
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
INTERNAL = Status(StatusCode.INTERNAL, "internal error")


def explain(path: str, error: Exception) -> tuple[int, str]:
    """The code and the truncated text. An exception other than ServingError is logged and not shown to the client."""
    if isinstance(error, ServingError):
        status = error.status
    else:
        logger.exception("%s failed", path, exc_info=error)
        status = INTERNAL
    return int(status.code), truncate(status.message)


def truncate(message: str) -> str:
    """Truncates a text to what fits into a header."""
    cut = message[:MAX_DETAILS]
    while len(cut) * _MOST_ENCODED > MAX_ENCODED_DETAILS and len(quote(cut, safe=_PLAIN)) > MAX_ENCODED_DETAILS:
        cut = cut[: len(cut) // 2]
    return message if cut == message else cut + "...TRUNCATED"
