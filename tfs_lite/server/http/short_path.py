"""The short path of small requests whose body arrives together with their head, which most predictions do.

Such a request needs no waiting and no streaming, so it is answered without ASGI, with the bytes of the wire. The
application says which requests it answers this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tfs_lite.core.servable import ModelRef
from tfs_lite.server.http.head_checks import Header
from tfs_lite.server.http.replies import BodyFormat, answer_format, body_format

MAX_BUFFERED_BYTES = 16 * 1024
"""Of the body. Larger ones seldom arrive at once."""
CACHED_FORMATS, MAX_CACHED_LENGTH = 64, 128
"""Pairs of Content-Type and Accept that are cached, and the most bytes of such a pair."""
_CLOSE = b"connection: close\r\n"


class BufferedRequest:
    """A POST. On the event loop. Each header occurs once, its name in lower case. The application sets
    ``on_disconnect`` to be told when the client disconnects."""

    __slots__ = ("body", "disconnected", "fields", "keep_alive", "on_disconnect", "ref", "target")

    def __init__(self, target: str, fields: Mapping[bytes, bytes], ref: ModelRef) -> None:
        self.target = target
        self.fields = fields
        self.ref = ref
        self.body = b""
        self.keep_alive = True
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.fields.items()}

    @property
    def formats(self) -> tuple[BodyFormat, BodyFormat]:
        """The formats of the body and of the answer."""
        sent, wanted = self.fields.get(b"content-type", b""), self.fields.get(b"accept", b"")
        cached = len(sent) + len(wanted) <= MAX_CACHED_LENGTH
        return _cached_formats(sent, wanted) if cached else _read_formats(sent, wanted)

    def disconnect(self) -> None:
        """The client has disconnected; its answer is not sent."""
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()


class Answer(NamedTuple):
    """``head``: the lines of its headers, each with its line end."""

    status: int
    head: bytes
    body: bytes

    def render(self, defaults: Sequence[Header], keep_alive: bool) -> bytes:
        """The bytes of the wire. ``defaults``: the headers of every answer."""
        lines = [name + b": " + value + b"\r\n" for name, value in defaults]
        return b"".join(
            (STATUS_LINE[self.status], *lines, self.head, b"\r\n" if keep_alive else _CLOSE + b"\r\n", self.body)
        )


def success(body: bytes, format: BodyFormat) -> Answer:
    return Answer(200, b"content-length: %d\r\ncontent-type: %s\r\n" % (len(body), format.media_type.encode()), body)


def answer_of(response: Response) -> Answer:
    head = b"".join([name + b": " + value + b"\r\n" for name, value in response.raw_headers])
    return Answer(response.status_code, head, bytes(response.body))


class ShortPathApp(Protocol):
    """An ASGI application with a short path."""

    def short_path_model(self, target: str) -> ModelRef | None:
        """The model of a POST to this target; None if the request cannot take the short path."""

    async def answer_buffered(self, request: BufferedRequest) -> Answer:
        """The same answer as over ASGI. Raises only CancelledError."""


def buffered_request(
    app: ShortPathApp, method: bytes, target: bytes, fields: Mapping[bytes, bytes]
) -> BufferedRequest | None:
    """The request, if it can take the short path once its body is complete. ``fields`` has all of its headers."""
    size = fields.get(b"content-length")
    if size is None or method != b"POST" or int(size) > MAX_BUFFERED_BYTES:
        return None
    if b"content-encoding" in fields or b"expect" in fields:
        return None
    text = target.decode("latin-1")
    ref = app.short_path_model(text)
    return None if ref is None else BufferedRequest(text, fields, ref)


def _read_formats(sent: bytes, wanted: bytes) -> tuple[BodyFormat, BodyFormat]:
    headers = {"content-type": sent.decode("latin-1"), "accept": wanted.decode("latin-1")}
    return body_format(headers), answer_format(headers)


_cached_formats = lru_cache(CACHED_FORMATS)(_read_formats)
