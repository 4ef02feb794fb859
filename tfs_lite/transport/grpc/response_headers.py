"""The header blocks of responses: headers, trailers, both in one (Trailers-Only), and responses in plain HTTP.

A block is the same bytes on every connection (see :mod:`hpack_writer`), so the usual ones are made once. Their contents
are those of gRPC's PROTOCOL-HTTP2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from tfs_lite.transport.grpc.compression import ENCODINGS
from tfs_lite.transport.http2.hpack_writer import literal, status

MAX_MESSAGE = 4096
"""Bytes of an encoded grpc-message. Many clients accept 8 KiB of headers, and lose the status too above that."""

KEPT_MESSAGES = 256
"""How many encoded messages are kept: a server that refuses much says the same to many."""

_TO_ESCAPE = re.compile(rb"[^ -$&-~]|\A | \Z")
"""All but printable ASCII, the percent sign, and spaces at either end, which a client would have to drop."""
_HALF_ESCAPE = re.compile(rb"%[0-9A-F]?\Z")
_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[ -~]*")
_RESERVED = frozenset(("grpc-status", "grpc-message", "grpc-encoding", "content-type", "content-length")) | frozenset(
    ("te", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "upgrade")
)
"""Names that gRPC and HTTP/2 use themselves, or forbid."""

RESPONSE_HEADERS = (
    status(200)
    + literal(b"content-type", b"application/grpc")
    + literal(b"grpc-accept-encoding", ",".join(ENCODINGS).encode())
)
"""Sent before the first message of a call; messages are never compressed."""
OK_TRAILERS = literal(b"grpc-status", b"0")
"""Sent after the last message of a call that succeeded."""

_TRAILERS_ONLY = status(200) + literal(b"content-type", b"application/grpc")


def trailers(code: int, message: str = "", extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """The block that ends a call: its gRPC status and metadata.

    ``message`` is any text; it is cut at 4 KiB when encoded. ``extra`` has names in lower case and values in printable
    ASCII (base64 where the name ends in ``-bin``); spaces at their ends are dropped. ValueError: an ``extra`` contains
    anything else, or a name that gRPC uses itself.
    """
    if not (code or message or extra):
        return OK_TRAILERS
    block = literal(b"grpc-status", b"%d" % code)
    if message:
        block += literal(b"grpc-message", _percent_encoded(message))
    for name, value in extra:
        block += _custom(name, value)
    return block


def trailers_only(code: int, message: str = "", extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """Makes one header block, headers and trailers, for a call that ends before its response headers were sent."""
    return _TRAILERS_ONLY + trailers(code, message, extra)


def plain(http_status: int, **headers: str) -> bytes:
    """An HTTP response without body, for requests that are not gRPC. An underscore in a name stands for a hyphen.
    ValueError as in :func:`trailers`."""
    block = status(http_status)
    for name, value in headers.items():
        block += _custom(name.replace("_", "-"), value)
    return block


def _custom(name: str, value: str) -> bytes:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise ValueError(f"{name!r} is not a name for metadata: expected a-z 0-9 _ - . and none that gRPC uses itself")
    if not _VALUE.fullmatch(value):
        raise ValueError(f"metadata {name!r}: expected printable ASCII, got {value[:80]!r}")
    return literal(name.encode(), value.strip(" ").encode())


@lru_cache(KEPT_MESSAGES)
def _percent_encoded(message: str) -> bytes:
    data = message[: MAX_MESSAGE + 1].encode(errors="replace")
    encoded = _TO_ESCAPE.sub(_escape, data)
    if len(encoded) <= MAX_MESSAGE:
        return encoded
    whole = _HALF_ESCAPE.sub(b"", encoded[:MAX_MESSAGE])
    data = unquote_to_bytes(whole).decode(errors="ignore").rstrip(" ").encode()
    return _TO_ESCAPE.sub(_escape, data)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
