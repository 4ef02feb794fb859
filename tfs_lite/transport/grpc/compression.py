"""Compressed messages as gRPC defines them: gzip, and deflate, which is the zlib format; one stream for each message.

A small message may claim to be a very large one, so the size of the result is bounded while it is inflated.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor

from tfs_lite.transport.grpc.codes import INTERNAL, RESOURCE_EXHAUSTED, UNAVAILABLE
from tfs_lite.transport.grpc.messages import MessageFault, named

ENCODINGS = ("identity", "deflate", "gzip")
"""The encodings that grpc-encoding and grpc-accept-encoding may name."""
MAX_INLINE_IN = 256 * 1024
"""Bytes of a compressed message that is inflated on the event loop ..."""
MAX_INLINE_OUT = 1024 * 1024
"""... unless it becomes larger than this, which takes about a millisecond."""
INFLATE_THREADS = 2
_WBITS = {"deflate": zlib.MAX_WBITS, "gzip": zlib.MAX_WBITS + 16}


def inflate(data: bytes, encoding: str, max_bytes: int, flag: str = "") -> bytes:
    """The message that ``data``, flagged as compressed, stands for. ``encoding`` is one of :data:`ENCODINGS`, ``flag``
    the name of the bound.

    Takes time and memory for at most ``max_bytes``; any thread, and without holding the GIL. Empty ``data`` is an empty
    message. MessageFault: RESOURCE_EXHAUSTED above ``max_bytes``; INTERNAL if the client named no encoding, and for
    data that is cut off, damaged, or continues after its end (a second gzip member too).
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
        text = f"Decompressed message larger than max ({max_bytes} bytes)"
        raise MessageFault(RESOURCE_EXHAUSTED, named(text, flag))
    if not stream.eof:
        raise MessageFault(INTERNAL, f"a message in {encoding} is cut off after {len(data)} bytes")
    if stream.unused_data:
        raise MessageFault(INTERNAL, f"{len(stream.unused_data)} bytes come behind the end of a message in {encoding}")
    return message


class Inflater:
    """Inflates messages for the event loop: small ones at once, large ones on threads, which start when needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_message: int, flag: str = "") -> None:
        self._loop = loop
        self._flag = flag
        self._max_message = max_message
        self._threads: ThreadPoolExecutor | None = None

    async def inflate(self, data: bytes, encoding: str) -> bytes:
        """Inflates ``data`` as the function :func:`inflate` does, with the largest message as bound."""
        bound = min(self._max_message, MAX_INLINE_OUT)
        if len(data) <= MAX_INLINE_IN:
            try:
                return inflate(data, encoding, bound, self._flag)
            except MessageFault as fault:
                if fault.code != RESOURCE_EXHAUSTED or bound == self._max_message:
                    raise
        if self._threads is None:
            self._threads = ThreadPoolExecutor(INFLATE_THREADS, thread_name_prefix="grpc-inflate")
        try:
            return await self._loop.run_in_executor(
                self._threads, inflate, data, encoding, self._max_message, self._flag
            )
        except RuntimeError as error:  # the system has no thread to give
            raise MessageFault(UNAVAILABLE, f"a message in {encoding} cannot be inflated now: {error}") from None

    def close(self) -> None:
        """Waits for messages that are being inflated: part of a second for the largest."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
