"""Checks of the head of an HTTP request beyond those of the parser. Pure.

The parser refuses bad characters, malformed or repeated lengths, and a length together with chunks. These checks refuse
heads that a proxy in front of the server may have read differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tfs_lite.server.http.message import Header

MAX_HEAD_BYTES = 64 * 1024
"""The most bytes of a head, and of other bytes outside a body, such as trailers."""
MAX_HEADERS = 256

_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)


class BadHead(Exception):
    """The head cannot be trusted, so its connection is closed."""


def check_head(version: str, headers: Sequence[Header], fields: Mapping[bytes, bytes]) -> None:
    """Raises BadHead. Names are in lower case; ``fields`` are the same headers, one of each name."""
    if version not in ("1.1", "1.0"):
        raise BadHead(f"HTTP/{version}")
    if version == "1.1" and b"host" not in fields:
        raise BadHead("no Host")
    if len(fields) != len(headers):
        names = [name for name, _ in headers]
        if names.count(b"host") > 1:
            raise BadHead("several Hosts")
        if names.count(b"transfer-encoding") > 1:
            raise BadHead("several Transfer-Encodings")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (version == "1.0" or coding.strip().lower() != b"chunked"):
        raise BadHead("a Transfer-Encoding other than chunked")


def origin_form(target: bytes) -> bytes:
    """The path and query of a target that is sent with scheme and host, as clients do for a proxy (RFC 9112 3.2.2);
    any other target as it is."""
    found = None if target.startswith(b"/") else _ABSOLUTE.match(target)
    if found is None:
        return target
    rest = target[found.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def without_upgrade(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> bytes:
    """The same head without ``Upgrade``. BadHead for CONNECT."""
    if method == b"CONNECT":
        raise BadHead("CONNECT")
    lines = [name + b": " + value for name, value in headers if name != b"upgrade"]
    return b"\r\n".join([b"%b %b HTTP/%b" % (method, target, version.encode()), *lines, b"", b""])
