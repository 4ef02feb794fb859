"""Bodies of the KServe V2 protocol over HTTP: gzip and deflate both ways, and work on large ones away from the loop.

Requests are read by the :class:`BodyReader` that all of HTTP shares; it knows gzip. What deflate (zlib's format) adds
is here, within the same bounds. Answers are packed with the first of the encodings that the client names and we have.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.server.http.bodies import BodyReader, ClientDisconnected
from tfs_lite.server.http.calls import Call
from tfs_lite.server.http.compression import LEVEL, PIECE_IN, PIECE_OUT, SMALLEST_ANSWER
from tfs_lite.server.http.heap_trimmer import HeapTrimmer
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.runtime.event_loop import BackgroundRunner

T = TypeVar("T")

_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, compresslevel=LEVEL, mtime=0),
    "x-gzip": lambda data: gzip.compress(data, compresslevel=LEVEL, mtime=0),
    "deflate": lambda data: zlib.compress(data, LEVEL),
}
_ENCODING = b"content-encoding"


class V2Bodies:
    """On the event loop. ``max_bytes`` is the bound of ``bodies`` on one body, packed and unpacked; ``slow`` runs what
    takes long."""

    def __init__(self, bodies: BodyReader, slow: BackgroundRunner, heap: HeapTrimmer, max_bytes: int) -> None:
        self._bodies = bodies
        self._slow = slow
        self._heap = heap
        self._max_bytes = max_bytes

    async def read(self, request: Request, call: Call | None, parse: Callable[[bytes], T]) -> T:
        """What ``parse`` makes of the whole body, unpacked; on a thread if it is large. From then on the client's going
        ends ``call``. HttpError 501 for an encoding that is not known; the others are those of BodyReader."""
        deflated = _is_deflated(request.headers.get("content-encoding", ""))
        plain = _without_encoding(request) if deflated else request
        with await self._bodies.read(plain) as body, _Growth(self._bodies, self._max_bytes) as growth:
            if call is not None:
                call.watch(request.receive)

            def work() -> T:
                return parse(_inflate(body.take(), growth.grow) if deflated else body.take())

            try:
                return await self.run(body.packed or deflated or body.size > COMFORTABLE_BYTES, work)
            finally:
                self._heap.note(max(body.size, body.unpacked_size, growth.size))

    async def run(self, large: bool, work: Callable[[], T]) -> T:
        """On the loop if that takes no time, else on a thread. Work that nobody waits for any more is not begun."""
        if not large:
            return work()
        wanted = True

        def if_wanted() -> T:
            if not wanted:
                raise ClientDisconnected
            return work()

        try:
            return await self._slow.run(if_wanted)
        finally:
            wanted = False

    async def pack(self, response: Response, accept_encoding: str) -> None:
        """Packs an answer that is worth it in the way that the client likes best; leaves it as it is when the threads
        are busy."""
        data = bytes(response.body)
        if len(data) <= SMALLEST_ANSWER:
            return
        response.headers["Vary"] = "Accept-Encoding"
        encoding = _wanted_encoding(accept_encoding)
        if encoding is None:
            return
        try:
            packed = await self.run(len(data) > COMFORTABLE_BYTES, lambda: _PACKERS[encoding](data))
        except ServingError:
            return
        response.body = packed
        response.headers["Content-Encoding"] = encoding
        response.headers["Content-Length"] = str(len(packed))


class _Growth:
    """The room that the unpacked bytes of one body take, given back at the end of its ``with`` block. ``grow`` may be
    called on any thread, also after that."""

    def __init__(self, bodies: BodyReader, max_bytes: int) -> None:
        self._bodies = bodies
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # guards the two below
        self.size = 0
        self._closed = False

    def grow(self, size: int) -> None:
        """HttpError 413 past the bound, UNAVAILABLE without room, ClientGone when nobody waits any more."""
        with self._lock:
            if self._closed:
                raise ClientDisconnected
            if self.size + size > self._max_bytes:
                raise HttpError(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"the request body is larger than {self._max_bytes} bytes, which is the most that is taken "
                    "(after unpacking)",
                    413,
                )
            self._bodies.hold(size)
            self.size += size

    def __enter__(self) -> _Growth:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
        self._bodies.give(self.size)


def _inflate(data: bytes, on_bytes: Callable[[int], None]) -> bytes:
    """``on_bytes`` hears of each piece's size before the next is made, and raises to stop it."""
    stream, pieces = zlib.decompressobj(), []
    view = memoryview(data)
    try:
        for start in range(0, len(view), PIECE_IN):
            rest: bytes | memoryview = view[start : start + PIECE_IN]
            while True:
                piece = stream.decompress(rest, PIECE_OUT)
                on_bytes(len(piece))
                pieces.append(piece)
                rest = stream.unconsumed_tail
                if not rest and len(piece) < PIECE_OUT:  # otherwise zlib may hold more
                    break
    except zlib.error as error:
        raise invalid_argument(f"the body is not valid deflate, as its Content-Encoding says it is: {error}") from None
    if view and not stream.eof:
        raise invalid_argument("the deflate body ends too early")
    return b"".join(pieces)


def _is_deflated(content_encoding: str) -> bool:
    """False for the encodings that BodyReader knows. HttpError 501 for those that nobody does."""
    names = [name.strip() for name in content_encoding.lower().split(",")]
    applied = [name for name in names if name and name != "identity"]
    if applied and (len(applied) > 1 or applied[0] not in _PACKERS):
        raise HttpError(
            StatusCode.UNIMPLEMENTED,
            f"Content-Encoding {content_encoding[:100]!r} is not supported, expected gzip, deflate or identity",
            501,
            {"Accept-Encoding": "gzip, deflate, identity"},
        )
    return applied == ["deflate"]


def _without_encoding(request: Request) -> Request:
    headers = [(name, value) for name, value in request.scope["headers"] if name != _ENCODING]
    return Request({**request.scope, "headers": headers}, request.receive)


def _wanted_encoding(accept_encoding: str) -> str | None:
    """The first that is known; None where the client prefers the answer as it is."""
    for item in accept_encoding.lower().split(","):
        name, _, parameter = item.partition(";")
        name = name.strip()
        if _is_refused(parameter):
            continue
        if name == "identity":
            return None
        if name in _PACKERS:
            return name
        if name == "*":
            return "gzip"
    return None


def _is_refused(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    try:
        return name.strip() == "q" and float(value) <= 0
    except ValueError:
        return False
