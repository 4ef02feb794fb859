"""gzip and deflate for messages, as gRPC has them: deflate is the zlib format, and a message is one stream of it.

What a message becomes is bounded before it is made: a small message may say that it is a very large one.
"""

from __future__ import annotations

import zlib

from tfs_lite.transport.grpc.codes import INTERNAL, RESOURCE_EXHAUSTED
from tfs_lite.transport.grpc.messages import MessageFault

ENCODINGS = ("identity", "deflate", "gzip")
"""As in grpc-encoding and grpc-accept-encoding."""
_WBITS = {"deflate": zlib.MAX_WBITS, "gzip": zlib.MAX_WBITS + 16}


def inflate(data: bytes, encoding: str, max_bytes: int) -> bytes:
    """The message of ``data``, which came with the flag for compressed. ``encoding`` is one of :data:`ENCODINGS`.

    Takes time and memory for ``max_bytes`` at most; any thread, and others run meanwhile. No bytes at all are an empty
    message. MessageFault: RESOURCE_EXHAUSTED above ``max_bytes``; INTERNAL if the client named no encoding, and for
    data that is cut off, damaged, or goes on behind its end (a second gzip member too).
    """
    if encoding not in _WBITS:
        raise MessageFault(INTERNAL, "a message is flagged as compressed, but the call has no grpc-encoding")
    if not data:
        return b""
    stream = zlib.decompressobj(_WBITS[encoding])
    try:
        message = stream.decompress(data, max_bytes + 1)
    except zlib.error:
        raise MessageFault(INTERNAL, f"a message of {len(data)} bytes is not {encoding}, or is damaged") from None
    if len(message) > max_bytes:
        raise MessageFault(RESOURCE_EXHAUSTED, f"Decompressed message larger than max ({max_bytes} bytes)")
    if not stream.eof:
        raise MessageFault(INTERNAL, f"a message in {encoding} is cut off after {len(data)} bytes")
    if stream.unused_data:
        raise MessageFault(INTERNAL, f"{len(stream.unused_data)} bytes come behind the end of a message in {encoding}")
    return message


def deflate(data: bytes, encoding: str) -> bytes:
    """``data`` in one of :data:`ENCODINGS`; with ``identity`` it is ``data`` itself, to be sent without the flag."""
    if encoding == "identity":
        return data
    return zlib.compress(data, wbits=_WBITS[encoding])
