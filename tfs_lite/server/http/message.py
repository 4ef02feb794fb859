"""The messages that a handler gets and gives: a request, whose body may still be arriving, and a response, whole or as
a stream.

    Connection -> Request -> handler -> Response (whole) or StreamResponse (in chunks) -> Connection

A handler that is a coroutine runs in a task of its own. When the client goes, or the server gives the request up, that
task is cancelled, or the reply that the handler has returned.
Everything here is used on the event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from random import getrandbits
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from tfs_lite.core import request_context
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.status import invalid_argument
from tfs_lite.transport.condition import OneWaiter
from tfs_lite.transport.peer import UNKNOWN, Peer
from tfs_lite.transport.table import EVERYTHING, Reply

MARKS = frozenset(name.encode() for name in request_context.MARKS)
Header: TypeAlias = tuple[bytes, bytes]
"""Name in lower case, and value."""


class Headers:
    """The headers of a request. Names are given in lower case; of a header that was sent twice, the first counts."""

    __slots__ = ("fields",)

    def __init__(self, headers: Sequence[Header] = ()) -> None:
        self.fields = dict(reversed(headers))
        """The bytes of the wire by name."""

    def find(self, name: str) -> str | None:
        value = self.fields.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    def get(self, name: str, default: str = "") -> str:
        value = self.find(name)
        return default if value is None else value

    def __contains__(self, name: str) -> bool:
        return name.encode("latin-1") in self.fields


class BodyCut(Exception):
    """The rest of a body is not waited for; the text says why."""


class IncomingBody(OneWaiter):
    """The bytes of a request's body, in the order in which they come. ``complete``: all have come; ``held``: bytes that
    were not taken yet. The connection calls ``feed`` and ``end``; it reads no more while ``held`` is above its bound,
    until ``on_taken`` says that there is room again. ``on_wanted`` is called when a handler waits for more, and
    ``on_end`` when all have come."""

    __slots__ = ("_chunks", "_cut", "complete", "held", "on_end", "on_taken", "on_wanted")

    def __init__(
        self, on_wanted: Callable[[], None] = ignore, on_taken: Callable[[], None] = ignore, whole: bytes | None = None
    ) -> None:
        """``whole``: a body that has come already."""
        self.complete = whole is not None
        self.held = len(whole or b"")
        self.on_wanted = on_wanted
        self.on_taken = on_taken
        self.on_end: Callable[[], None] = ignore
        self._chunks = [whole] if whole else []
        self._cut = ""
        self._waiter = None

    @property
    def wanted(self) -> bool:
        """Whether a handler waits for more."""
        return self._waiter is not None

    def feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self.held += len(data)
        self.wake()

    def end(self) -> None:
        self.complete = True
        on_end, self.on_end = self.on_end, ignore
        on_end()
        self.wake()

    def cut(self, why: str) -> None:
        """The handler gets no more of it."""
        self._cut = why
        self.wake()

    async def next(self) -> bytes:
        """Bytes that follow those from before; empty at the end. Raises :class:`BodyCut`. One caller at a time."""
        while not self._chunks:
            if self._cut:
                raise BodyCut(self._cut)
            if self.complete:
                return b""
            self.on_wanted()
            await self.sleep()
        return self.take()

    def take(self) -> bytes:
        """Returns the bytes that have come and were not taken yet, without waiting."""
        data = b"".join(self._chunks)
        self._chunks.clear()
        self.held = 0
        self.on_taken()
        return data

    def put_back(self, data: bytes) -> None:
        """Undoes ``take``, before more has come."""
        self._chunks, self.held = [data] if data else [], len(data)


class HttpHead:
    """The facts in the head of a request. ``target`` is as it was sent, in origin form: the percent-encoded path, and
    the query if there is one. Requests whose heads have the same bytes share one, so it is not changed."""

    __slots__ = (
        *("expects_continue", "headers", "keep_alive", "length", "marked", "method", "old", "path", "query"),
        "target",
    )

    def __init__(self, method: str, target: str, headers: Headers, keep_alive: bool = True, old: bool = False) -> None:
        self.method = method
        self.target = target
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.keep_alive = keep_alive
        self.old = old
        """HTTP/1.0, which knows neither chunks nor 100."""
        self.length = None if b"transfer-encoding" in headers.fields else int(headers.fields.get(b"content-length", 0))
        """Bytes of the body; None: the chunks will tell."""
        self.marked = not MARKS.isdisjoint(headers.fields)
        """Whether it has one of the headers that say more of the request (:class:`Carrier`)."""
        self.expects_continue = not old and headers.fields.get(b"expect", b"").lower() == b"100-continue"


class Request:
    """``arrived`` is when the head was complete, in seconds of ``time.monotonic``. ``after_drain``: its connection was
    made after the drain of the server, too late for a prediction. ``peer`` is the other end of the connection;
    ``grant`` is what it was found to be allowed, where it was checked. ``marks``: lines for the head of the answer,
    whatever the answer is. It is the :class:`Carrier` of a prediction."""

    __slots__ = ("after_drain", "arrived", "body", "grant", "head", "headers", "marks", "peer")

    names_requests = True

    def __init__(
        self, head: HttpHead, body: IncomingBody, arrived: float, after_drain: bool = False, peer: Peer = UNKNOWN
    ) -> None:
        self.head = head
        self.headers = head.headers
        self.body = body
        self.arrived = arrived
        self.after_drain = after_drain
        self.peer = peer
        self.grant = EVERYTHING
        self.marks = b""

    @property
    def marked(self) -> bool:
        return self.head.marked

    def header(self, name: str) -> str | None:
        return self.headers.find(name)

    def fields(self, known: Collection[str]) -> dict[str, str]:
        """The fields of the query; of one that comes twice, the last counts. INVALID_ARGUMENT for one that is not
        known."""
        fields = dict(parse_qsl(self.head.query, keep_blank_values=True, errors="replace"))
        for name in fields:
            if name not in known:
                raise invalid_argument(f"the query has the field {name[:50]!r}; this page knows: {', '.join(known)}")
        return fields

    def mark_with_new_id(self) -> None:
        if not self.marks:
            self.marks = b"x-request-id: %016x\r\n" % getrandbits(64)

    def mark(self, name: str, value: str) -> None:
        line = f"{name}: {value}\r\n".encode()
        if not self.marks.startswith(line):
            self.marks += line

    @property
    def caller(self) -> str:
        """The caller's name for people: the operator's name, else the address."""
        return self.grant.name or self.peer.address


class Response:
    """A whole answer. ``headers`` are those of the handler, names in lower case; the connection adds the length, the
    date and what keep-alive needs. ``connection: close`` among them ends the connection after the answer."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, body: bytes = b"", status: int = 200, media_type: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.body = body
        self.status = status
        self.headers = {"content-type": media_type} if media_type else {}
        if headers:
            self.headers.update(headers)


class StreamResponse:
    """An answer in chunks, each sent as soon as the client has read enough of those before. ``chunks`` runs in the
    handler's task and is closed when everything is sent, the client has gone, or it has read nothing for
    ``write_timeout`` seconds (None: as long as for every answer). When the task is cancelled while the client reads,
    CancelledError is raised in ``chunks``, which may answer it with a last chunk. It raises nothing else than that
    and :class:`CutShort`."""

    __slots__ = ("chunks", "headers", "status", "write_timeout")

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        status: int = 200,
        media_type: str = "",
        headers: Mapping[str, str] | None = None,
        write_timeout: float | None = None,
    ) -> None:
        self.chunks = chunks
        self.status = status
        self.headers = {"content-type": media_type} if media_type else {}
        if headers:
            self.headers.update(headers)
        self.write_timeout = write_timeout


class CutShort(Exception):
    """Ends the connection in the middle of a stream, so that the client sees that the answer is not whole."""


Answer: TypeAlias = Response | Reply[Any] | Awaitable[Response | StreamResponse]
"""A response that is ready; one that is on its way, as an answer; or a coroutine, which runs as a task."""
Handler: TypeAlias = Callable[[Request], Answer]
