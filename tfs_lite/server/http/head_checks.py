"""What the head of an HTTP request must be like, beyond what the parser sees to. Pure.

The parser refuses bad characters, lengths that are none or come twice, and a length beside chunks. What is left are
heads that a proxy before us may have read otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAX_HEAD_BYTES = 64 * 1024
"""Of a head, and of whatever else is no body: trailers, for one."""
MAX_HEADERS = 256

Header = tuple[bytes, bytes]


class BadHead(Exception):
    """The request is not to be trusted: nobody answers it, and its connection is closed."""


def check_head(version: str, headers: Sequence[Header], fields: Mapping[bytes, bytes]) -> None:
    """Raises BadHead. Names are in lower case; ``fields`` are the same headers, the last of each name."""
    if version not in ("1.1", "1.0"):
        raise BadHead(f"HTTP/{version}")
    if version == "1.1" and b"host" not in fields:
        raise BadHead("no Host")
    if len(fields) != len(headers) and sum(name == b"host" for name, _ in headers) > 1:
        raise BadHead("several Hosts")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (version == "1.0" or coding.strip().lower() != b"chunked"):
        raise BadHead("a Transfer-Encoding other than chunked")


def without_upgrade(method: bytes, target: bytes, headers: Sequence[Header]) -> bytes:
    """The same head without the wish for another protocol. BadHead for CONNECT, which is nothing else."""
    if method == b"CONNECT":
        raise BadHead("CONNECT")
    lines = [name + b": " + value for name, value in headers if name != b"upgrade"]
    return b"\r\n".join([method + b" " + target + b" HTTP/1.1", *lines, b"", b""])
