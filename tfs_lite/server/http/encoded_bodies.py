"""Request and answer bodies with a Content-Encoding of gzip or deflate, for the V2 protocol and OpenAI's API.

Requests are read by the :class:`BodyReader` of all APIs, which knows gzip; this file adds deflate (zlib's format)
within the same bounds. Answers are compressed with the first known encoding that the client names.
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
from tfs_lite.server.http.bodies import BodyReader
from tfs_lite.server.http.calls import HttpCall
from tfs_lite.server.http.compression import CHUNK_IN, CHUNK_OUT, LEVEL, SMALLEST_ANSWER
from tfs_lite.server.http.replies import ClientDisconnected, HttpError
from tfs_lite.server.http.resources import HttpResources

T = TypeVar("T")

_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, compresslevel=LEVEL, mtime=0),
    "x-gzip": lambda data: gzip.compress(data, compresslevel=LEVEL, mtime=0),
    "deflate": lambda data: zlib.compress(data, LEVEL),
}
_ENCODING = b"content-encoding"


class EncodedBodies:
    """On the event loop."""

    def __init__(self, http: HttpResources) -> None:
        self._http = http

    async def read(self, request: Request, call: HttpCall | None, parse: Callable[[bytes], T]) -> T:
        """Parses the whole body, decompressed; on a thread if it is large. Once the body is there, a disconnect ends
        ``call``. HttpError 501 for an unknown encoding, and the errors of BodyReader."""
        http = self._http
        deflated = _is_deflated(request.headers.get("content-encoding", ""))
        plain = _without_encoding(request) if deflated else request
        with await http.bodies.read(plain) as body, _Inflated(http.bodies) as inflated:
            if call is not None:
                call.watch(request.receive)

            def work() -> T:
                return parse(_inflate(body.take(), inflated.grow) if deflated else body.take())

            try:
                return await http.run(body.gzipped or deflated or body.size > COMFORTABLE_BYTES, work)
            finally:
                http.heap.note(max(body.size, inflated.size))

    async def pack(self, response: Response, accept_encoding: str) -> None:
        """Compresses an answer that is worth it with the encoding that the client prefers; leaves it as it is when all
        threads are busy."""
        data = bytes(response.body)
        if len(data) <= SMALLEST_ANSWER:
            return
        response.headers["Vary"] = "Accept-Encoding"
        encoding = _wanted_encoding(accept_encoding)
        if encoding is None:
            return
        try:
            packed = await self._http.run(len(data) > COMFORTABLE_BYTES, lambda: _PACKERS[encoding](data))
        except ServingError:
            return
        response.body = packed
        response.headers["Content-Encoding"] = encoding
        response.headers["Content-Length"] = str(len(packed))


class _Inflated:
    """The budget that the inflated bytes of one body take, released at the end of its ``with`` block. ``grow`` may be
    called on any thread, even after the block."""

    def __init__(self, bodies: BodyReader) -> None:
        self._bodies = bodies
        self._lock = threading.Lock()  # guards the two below
        self.size = 0
        self._closed = False

    def grow(self, size: int) -> None:
        """HttpError 413 past the bound, UNAVAILABLE past the budget, ClientDisconnected after the block."""
        with self._lock:
            if self._closed:
                raise ClientDisconnected
            if self.size + size > self._bodies.max_bytes:
                raise HttpError(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"the request body is larger than {self._bodies.max_bytes} bytes, which is the most that is taken "
                    "(after unpacking)",
                    413,
                )
            self._bodies.acquire(size)
            self.size += size

    def __enter__(self) -> _Inflated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
        self._bodies.release(self.size)


def _inflate(data: bytes, on_bytes: Callable[[int], None]) -> bytes:
    """``on_bytes`` is told the size of each chunk before the next is made, and raises to stop."""
    stream, chunks = zlib.decompressobj(), []
    view = memoryview(data)
    try:
        for start in range(0, len(view), CHUNK_IN):
            rest: bytes | memoryview = view[start : start + CHUNK_IN]
            while True:
                chunk = stream.decompress(rest, CHUNK_OUT)
                on_bytes(len(chunk))
                chunks.append(chunk)
                rest = stream.unconsumed_tail
                if not rest and len(chunk) < CHUNK_OUT:  # otherwise zlib may hold more
                    break
    except zlib.error as error:
        raise invalid_argument(f"the body is not valid deflate, as its Content-Encoding says it is: {error}") from None
    if view and not stream.eof:
        raise invalid_argument("the deflate body ends too early")
    return b"".join(chunks)


def _is_deflated(content_encoding: str) -> bool:
    """False for the encodings that BodyReader knows. HttpError 501 for unknown ones."""
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
    """The first known encoding; None where the client prefers the plain answer."""
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
