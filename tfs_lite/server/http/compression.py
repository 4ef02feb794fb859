"""gzip both ways: request bodies are decompressed in chunks, so that a bound holds; answers are compressed quickly.

All functions are slow for large bodies and run on any thread; zlib releases the interpreter lock.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator

from tfs_lite.core.status import StatusCode, invalid_argument
from tfs_lite.server.http.replies import HttpError

CHUNK_IN = 1 << 16
"""Bytes given to zlib at once; small, because zlib copies what it has not used yet."""
CHUNK_OUT = 1 << 20
MAX_MEMBERS = 10_000
"""A gzip body may consist of several members, and each has a cost even when it is empty."""
SMALLEST_ANSWER = 1024
"""Bytes. Shorter answers are not worth compressing."""
LEVEL = 1
_GZIP = 31  # zlib's window bits for the gzip format
_NAMES = ("gzip", "x-gzip")


def is_gzip(content_encoding: str) -> bool:
    """Whether a body with that header is gzip; False for none and for identity. HttpError 415 for others."""
    applied = [name for name in _tokens(content_encoding) if name and name != "identity"]
    if not applied:
        return False
    if len(applied) == 1 and applied[0] in _NAMES:
        return True
    raise HttpError(
        StatusCode.INVALID_ARGUMENT,
        f"Content-Encoding {content_encoding[:100]!r} is not supported, expected gzip or identity",
        415,
        {"Accept-Encoding": "gzip, identity"},
    )


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the client accepts gzip, by the most specific item of the header."""
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameter = item.partition(";")
        weights[name.strip()] = _weight(parameter)
    for name in (*_NAMES, "*"):
        if name in weights:
            return weights[name] > 0
    return False


def unpack(blocks: Iterable[bytes | bytearray], on_bytes: Callable[[int], None]) -> list[bytes]:
    """Decompresses the blocks to chunks of at most ``CHUNK_OUT`` bytes. ``on_bytes`` is told the size of each chunk
    before the next is made, and raises to stop. INVALID_ARGUMENT for gzip that is damaged or ends too early."""
    chunks = []
    for chunk in _members(blocks):
        on_bytes(len(chunk))
        chunks.append(chunk)
    return chunks


def pack(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=LEVEL, mtime=0)


def _members(blocks: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    member, members, begun = zlib.decompressobj(_GZIP), 1, False
    for rest in _slices(blocks):
        begun = True
        while True:
            if member.eof:
                if not rest:
                    break
                member, members = zlib.decompressobj(_GZIP), members + 1
                if members > MAX_MEMBERS:
                    raise invalid_argument(f"the gzip body consists of more than {MAX_MEMBERS} members")
            chunk = _decompress(member, rest)
            if chunk:
                yield chunk
            rest = member.unused_data if member.eof else member.unconsumed_tail
            if not rest and len(chunk) < CHUNK_OUT:  # otherwise zlib may hold more
                break
    if begun and not member.eof:
        raise invalid_argument("the gzip body ends too early")


def _decompress(member: zlib._Decompress, data: bytes | memoryview) -> bytes:
    try:
        return member.decompress(data, CHUNK_OUT)
    except zlib.error as error:
        raise invalid_argument(f"the body is not valid gzip, as its Content-Encoding says it is: {error}") from None


def _slices(blocks: Iterable[bytes | bytearray]) -> Iterator[bytes | memoryview]:
    for block in blocks:
        view = memoryview(block)
        for start in range(0, len(view), CHUNK_IN):
            yield view[start : start + CHUNK_IN]


def _tokens(header: str) -> list[str]:
    return [token.strip() for token in header.lower().split(",")]


def _weight(parameter: str) -> float:
    """The q of an item; 1 when it is missing or malformed."""
    name, _, value = parameter.partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 1.0
