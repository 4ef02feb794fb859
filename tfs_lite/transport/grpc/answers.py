"""The header blocks of answers: what opens one, what ends it, and what is said instead of one.

A block is complete and the same for every connection (see :mod:`hpack_writer`), so the usual ones are made once. gRPC's
PROTOCOL-HTTP2 says what belongs into them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from tfs_lite.transport.grpc.compression import ENCODINGS
from tfs_lite.transport.http2.hpack_writer import literal, status

MAX_MESSAGE = 4096
"""Bytes of an encoded grpc-message. Many clients take 8 KiB of headers, and lose the status too above that."""

_TO_ESCAPE = re.compile(rb"[^ -$&-~]|\A | \Z")
"""All but printable ASCII, the percent sign itself, and spaces that a client would have to drop at either end."""
_HALF_ESCAPE = re.compile(rb"%[0-9A-F]?\Z")
_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[ -~]*")
_RESERVED = frozenset(("grpc-status", "grpc-message", "grpc-encoding", "content-type", "content-length")) | frozenset(
    ("te", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "upgrade")
)
"""gRPC and HTTP/2 say these themselves, or not at all."""

OPENING = (
    status(200)
    + literal(b"content-type", b"application/grpc")
    + literal(b"grpc-accept-encoding", ",".join(ENCODINGS).encode())
)
"""Before the first message of a call."""
OK_TRAILERS = literal(b"grpc-status", b"0")
"""Behind the last one of a call that went well."""

_ALONE = status(200) + literal(b"content-type", b"application/grpc")
_OPENINGS = {"identity": OPENING} | {
    encoding: OPENING + literal(b"grpc-encoding", encoding.encode()) for encoding in ENCODINGS if encoding != "identity"
}


def opening(encoding: str) -> bytes:
    """As OPENING, for messages that are (or may be) compressed. KeyError: not one of :data:`compression.ENCODINGS`."""
    return _OPENINGS[encoding]


def trailers(code: int, message: str = "", extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """What ends a call: its gRPC status and metadata.

    ``message`` is any text; what is beyond 4 KiB when encoded is left out. ``extra``: names in lower case, values in
    printable ASCII (base64 where the name ends in ``-bin``), spaces at their ends are dropped. ValueError: an ``extra``
    with anything else in it, or with a name that is not the caller's to set.
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
    """As ``trailers``, for a call that is over before an answer was opened: one block for both."""
    return _ALONE + trailers(code, message, extra)


def plain(http_status: int, **headers: str) -> bytes:
    """An answer in HTTP, without body, to what is not gRPC at all. An underscore in a name stands for a hyphen.
    ValueError: as in :func:`trailers`."""
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
