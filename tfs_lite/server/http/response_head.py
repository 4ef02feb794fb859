"""The bytes of a response's head. Pure, but for the date."""

from __future__ import annotations

import http
import re
import time
from email.utils import formatdate
from functools import lru_cache

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}
CACHED_HEADS = 256
CLOSE = b"connection: close\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
_ODD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class DateLine:
    """The header ``date``, made once a second. One thread."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def get(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._line


def status_line(status: int) -> bytes:
    return STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n".encode()


def header_lines(headers: dict[str, str]) -> tuple[bytes, bool]:
    """The lines of these headers, and whether one of them ends the connection. ValueError for a value that would end
    its line."""
    return _cached_lines(tuple(headers.items()))


@lru_cache(CACHED_HEADS)
def _cached_lines(headers: tuple[tuple[str, str], ...]) -> tuple[bytes, bool]:
    if any(_ODD_VALUE.search(value) for _, value in headers):
        raise ValueError("a header of a response has a control character in its value")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")
    return lines, any(name == "connection" and value.lower() == "close" for name, value in headers)
