"""Small requests whose body came together with their head, and answers to them as the bytes of the wire.

Most predictions are such. There is nothing to wait for and nothing to stream, so they are answered without what ASGI
has for that; an application that can do so says which requests it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tfs_lite.core.servable import ModelRef
from tfs_lite.server.http.head_checks import Header
from tfs_lite.server.http.replies import BodyFormat, answer_form, body_format

MAX_WHOLE_BYTES = 16 * 1024
"""Of the body. Larger ones seldom come in one piece."""
KNOWN_WISHES, WISH_LENGTH = 64, 128
"""So many pairs of Content-Type and Accept are known at once, if those have no more bytes."""
_CLOSE = b"connection: close\r\n"


class BufferedRequest:
    """A POST. On the event loop. Each header is there once, its name in lower case. Whoever answers sets ``on_gone``,
    to hear that the client has gone; nobody reads the answer then."""

    __slots__ = ("body", "fields", "gone", "keep_alive", "on_gone", "ref", "target")

    def __init__(self, target: str, fields: Mapping[bytes, bytes], ref: ModelRef) -> None:
        self.target = target
        self.fields = fields
        self.ref = ref
        self.body = b""
        self.keep_alive = True
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.fields.items()}

    @property
    def forms(self) -> tuple[BodyFormat, BodyFormat]:
        """Of the body, of the answer."""
        sent, wanted = self.fields.get(b"content-type", b""), self.fields.get(b"accept", b"")
        return _forms(sent, wanted) if len(sent) + len(wanted) <= WISH_LENGTH else _read_forms(sent, wanted)

    def leave(self) -> None:
        """The client has gone."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()


class Answer(NamedTuple):
    """``head``: the lines of its headers, each with its end."""

    status: int
    head: bytes
    body: bytes

    def render(self, defaults: Sequence[Header], keep_alive: bool) -> bytes:
        """The bytes of the wire. ``defaults`` are headers of every answer."""
        lines = [name + b": " + value + b"\r\n" for name, value in defaults]
        return b"".join(
            (STATUS_LINE[self.status], *lines, self.head, b"\r\n" if keep_alive else _CLOSE + b"\r\n", self.body)
        )


def success(body: bytes, form: BodyFormat) -> Answer:
    return Answer(200, b"content-length: %d\r\ncontent-type: %s\r\n" % (len(body), form.media_type.encode()), body)


def answer_of(response: Response) -> Answer:
    head = b"".join([name + b": " + value + b"\r\n" for name, value in response.raw_headers])
    return Answer(response.status_code, head, bytes(response.body))


class WholeApp(Protocol):
    """An ASGI application with a short way."""

    def takes_whole(self, target: str) -> ModelRef | None:
        """The model that a POST to this target asks; None: the request has to take the long way."""

    async def answer_whole(self, request: BufferedRequest) -> Answer:
        """The answer that the long way gives. Raises nothing but CancelledError."""


def read_whole(app: WholeApp, method: bytes, target: bytes, fields: Mapping[bytes, bytes]) -> BufferedRequest | None:
    """A request that may take the short way once its body is there. ``fields`` has all of its headers."""
    size = fields.get(b"content-length")
    if size is None or method != b"POST" or int(size) > MAX_WHOLE_BYTES:
        return None
    if b"content-encoding" in fields or b"expect" in fields:
        return None
    text = target.decode("latin-1")
    ref = app.takes_whole(text)
    return None if ref is None else BufferedRequest(text, fields, ref)


def _read_forms(sent: bytes, wanted: bytes) -> tuple[BodyFormat, BodyFormat]:
    headers = {"content-type": sent.decode("latin-1"), "accept": wanted.decode("latin-1")}
    return body_format(headers), answer_form(headers)


_forms = lru_cache(KNOWN_WISHES)(_read_forms)
