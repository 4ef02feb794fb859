"""Content-Encoding both ways: request bodies are decompressed in chunks, so that a bound holds; answers are compressed
quickly, with the first known encoding that the client names.

All functions but the choice are slow for large bodies and run on any thread; zlib releases the interpreter lock.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator

from tfs_lite.core.status import StatusCode, invalid_argument
from tfs_lite.server.http.replies import HttpError

CHUNK_IN = 1 << 16
"""Bytes given to zlib at once; small, because zlib copies what it has not used yet."""
CHUNK_OUT = 1 << 20
MAX_MEMBERS = 10_000
"""A gzip body may consist of several members, and each has a cost even when it is empty."""
LEVEL = 1
GZIP = ("gzip", "x-gzip")
ENCODINGS = (*GZIP, "deflate")
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""zlib's window bits, which choose the format; deflate means zlib's own."""


def body_encoding(content_encoding: str, refusal: StatusCode) -> str | None:
    """The encoding of a body with that header; None for identity. HttpError for an unknown one: 415 where ``refusal``
    is INVALID_ARGUMENT, else 501."""
    names = [name.strip() for name in content_encoding.lower().split(",")]
    applied = [name for name in names if name and name != "identity"]
    if not applied:
        return None
    if len(applied) == 1 and applied[0] in ENCODINGS:
        return applied[0]
    raise HttpError(
        refusal,
        f"Content-Encoding {content_encoding[:100]!r} is not supported, expected gzip, deflate or identity",
        415 if refusal is StatusCode.INVALID_ARGUMENT else 501,
        {"accept-encoding": "gzip, deflate, identity"},
    )


def answer_encoding(accept_encoding: str, offered: Collection[str] = ENCODINGS) -> str | None:
    """The first offered encoding that the client names; None where it prefers the plain answer. ``*`` means gzip."""
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameter = item.partition(";")
        weights[name.strip()] = _weight(parameter)
    for name, weight in weights.items():
        encoding = "gzip" if name == "*" else name
        if weight > 0 and name == "identity":
            return None
        if weight > 0 and encoding in offered and weights.get(encoding, 1.0) > 0:
            return encoding
    return None


def compress(data: bytes, encoding: str) -> bytes:
    return zlib.compress(data, LEVEL) if encoding == "deflate" else gzip.compress(data, compresslevel=LEVEL, mtime=0)


def decompress(blocks: Iterable[bytes | bytearray], encoding: str, on_bytes: Callable[[int], None]) -> list[bytes]:
    """Decompresses the blocks to chunks of at most ``CHUNK_OUT`` bytes. ``on_bytes`` is told the size of each chunk
    before the next is made, and raises to stop. INVALID_ARGUMENT for data that is damaged or ends too early."""
    chunks = []
    try:
        for chunk in _chunks(blocks, encoding):
            on_bytes(len(chunk))
            chunks.append(chunk)
    except zlib.error as error:
        raise invalid_argument(
            f"the body is not valid {_shown(encoding)}, as its Content-Encoding says it is: {error}"
        ) from None
    return chunks


def _chunks(blocks: Iterable[bytes | bytearray], encoding: str) -> Iterator[bytes]:
    """The decompressed chunks. Bytes after the end of a deflate body are ignored; bytes after a gzip member begin
    another member."""
    window = _WINDOW[encoding]
    stream, members, begun = zlib.decompressobj(window), 1, False
    for rest in _slices(blocks):
        begun = True
        while True:
            if stream.eof:
                if not rest or encoding == "deflate":
                    break
                stream, members = zlib.decompressobj(window), members + 1
                if members > MAX_MEMBERS:
                    raise invalid_argument(f"the gzip body consists of more than {MAX_MEMBERS} members")
            chunk = stream.decompress(rest, CHUNK_OUT)
            if chunk:
                yield chunk
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            if not rest and len(chunk) < CHUNK_OUT:  # otherwise zlib may hold more
                break
    if begun and not stream.eof:
        raise invalid_argument(f"the {_shown(encoding)} body ends too early")


def _slices(blocks: Iterable[bytes | bytearray]) -> Iterator[bytes | memoryview]:
    for block in blocks:
        view = memoryview(block)
        for start in range(0, len(view), CHUNK_IN):
            yield view[start : start + CHUNK_IN]


def _shown(encoding: str) -> str:
    return encoding.removeprefix("x-")


def _weight(parameter: str) -> float:
    """The q of an item; 1 when it is missing or malformed."""
    name, _, value = parameter.partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 1.0
