"""One HTTP/1.1 connection: its requests go to the handler one after the other, and their answers back.

    data_received -> RequestReader -> the current request -> the handler -> its response -> ResponseWriter -> the next

A request is given to the handler when its head is complete and those before it are answered: a POST from the backlog
of the loop, or it is refused because too much waits there, any other in the next turn of the loop. Pipelined requests
wait, and beyond a bound reading pauses. A body is read as fast as its handler takes it. A malformed request ends the
connection after the answers to those before it, with 400 unless its own answer has begun.

    reading -> closing -> closed
            -> lingering: our side is closed, what the client still sends is discarded -> closed

A client that is refused before it has sent its whole body goes on sending. If the connection were closed at once, the
system would answer the late bytes with a reset, which overtakes the answer; therefore such a connection lingers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from tfs_lite.server.http.known_heads import KnownHeads
from tfs_lite.server.http.message import CutShort, Handler, Request, Response, StreamResponse
from tfs_lite.server.http.request_reader import MAX_UNPARSED_BYTES, RequestReader
from tfs_lite.server.http.response_writer import AnsweringServer, ResponseWriter
from tfs_lite.transport.backlog import Backlog
from tfs_lite.transport.peer import peer_of
from tfs_lite.transport.table import Reply

logger = logging.getLogger(__name__)

MAX_UNTAKEN_BYTES = 64 * 1024
"""Bytes of a body that its handler has not taken yet; beyond it reading pauses."""
MAX_DISCARDED = 64 << 20
"""Bytes that a client may send while its connection lingers."""
IDLE, READ, WRITE, HANDSHAKE = 75.0, 60.0, 60.0, 10.0
CUTS = ("idle", "slow_head", "slow_body", "slow_reader", "lingering", "malformed", "handshake", "too_many")
"""The reasons for which the server ends connections. ``lingering``: the client goes on sending what was refused."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that a client is waited for: with nothing sent of a request (``idle``); with nothing sent of a body that
    has begun, or from the first byte of a head to its last (``read``); with nothing read of an answer (``write``);
    for all of a TLS handshake."""

    idle: float = IDLE
    read: float = READ
    write: float = WRITE
    handshake: float = HANDSHAKE


class Http1ConnectionOwner(AnsweringServer, Protocol):
    """The functions that a connection needs of its server. ``drained``: connections that are made now are too late for
    predictions."""

    handler: Handler
    refusal: Callable[[Request], Response | None]
    waits: Waits
    drained: bool
    heads: KnownHeads
    backlog: Backlog

    def connected(self, connection: Http1Connection) -> bool:
        """Whether there is room for it."""

    def disconnected(self, connection: Http1Connection) -> None: ...

    def on_cut(self, kind: str, peer: object, why: str = "") -> None:
        """The server ends a connection. ``kind`` is one of :data:`CUTS`, ``peer`` the address of its socket."""


class Http1Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, on the event loop; nothing here blocks."""

    __slots__ = (
        *("_left", "_lingering", "_loop", "_may_continue", "_owner", "_reader", "_transport", "_wanted_since", "_work"),
        *("_writer", "reading_paused", "used_at"),
    )

    def __init__(self, owner: Http1ConnectionOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._writer: ResponseWriter
        self._reader = RequestReader(owner.heads, owner.drained, self._want_body, self._check_reading)
        self.used_at = 0.0
        """The moment when the last request was answered; 0 before the first."""
        self._wanted_since = 0.0  # when the handler began to wait for more of the body
        self.reading_paused = False
        self._may_continue = False  # the client waits for 100 before it sends the body
        self._work: asyncio.Task[None] | Reply[Any] | None = None  # None: it has not been started
        self._lingering = False
        self._left = MAX_DISCARDED

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._reader.current is not None

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The connection with the smallest value can be spared first: those that never had a request, the others that
        are idle, those that are busy; of each kind the one that is so for longest."""
        return self.busy, self.used_at > 0, self._reader.since

    # From the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = ResponseWriter(self._owner, self._transport)
        self._reader.peer = peer_of(transport)
        if not self._owner.connected(self):
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.disconnected(self)
        self._reader.clear()
        self._cancel()
        self._writer.resume()

    def eof_received(self) -> bool | None:
        """A client that has closed its side gets no more answers but those that are made at once: when its request has
        left the backlog the handler begins, and its task in the next turn of the loop."""
        if not self._transport.can_write_eof():  # TLS has no half-closed connections
            return False
        self._owner.backlog.put(partial(self._loop.call_soon, self._loop.call_soon, self._transport.close))
        return True

    def pause_writing(self) -> None:
        self._writer.paused = True

    def resume_writing(self) -> None:
        self._writer.resume()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.broken or self._lingering or self._transport.is_closing():
            self._discard(len(data))
            return
        before = reader.current
        is_sound = reader.receive(data)
        request, incoming = reader.current, reader.incoming
        if request is not None and request is not before:
            self._begin(request)
        if not is_sound:
            self._refuse()
        if reader.unparsed or (incoming is not None and incoming.body.held > MAX_UNTAKEN_BYTES):
            self._check_reading()

    def _refuse(self) -> None:
        """Refuses the last bytes, which are malformed. Requests before them that are complete are answered first."""
        reader = self._reader
        self._on_cut("malformed", reader.fault)
        if reader.incoming is not None and reader.incoming is reader.current:
            if not self._writer.begun:
                self._send_malformed()
            self._give_up()
        elif reader.fault_is_late:
            self._close()
        elif reader.current is None:
            self._send_malformed()
            self._close()

    def _give_up(self) -> None:
        """Cancels the handler, and closes the connection."""
        self._cancel()
        self._close()

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
        if not isinstance(self._work, asyncio.Task):
            self._reader.current = self._work = None

    def _check_reading(self) -> None:
        incoming, unparsed = self._reader.incoming, self._reader.unparsed
        body = 0 if incoming is None else incoming.body.held
        wanted = self._lingering or (body <= MAX_UNTAKEN_BYTES and len(unparsed) <= MAX_UNPARSED_BYTES)
        if wanted is self.reading_paused and not self._transport.is_closing():
            self.reading_paused = not wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # From requests to responses.

    def _begin(self, request: Request) -> None:
        self._writer.begun, self._may_continue = False, request.head.expects_continue
        self._reader.since = request.arrived
        if request.head.method != "POST":  # a probe, a page: no prediction
            self._loop.call_soon(self.start)
        elif (refusal := self._owner.refusal(request)) is None:
            self._owner.backlog.put(self.start)
        else:
            self._loop.call_soon(self._refuse_by_head, request, refusal)

    def start(self) -> None:
        """Calls the handler, unless the client has gone meanwhile."""
        request = self._reader.current
        if request is not None:
            try:
                answer = self._owner.handler(request)
            except Exception as error:
                self._fail(error)
            else:
                self._go_on(answer)

    def _refuse_by_head(self, request: Request, refusal: Response) -> None:
        """Refuses a request by its head in the next turn of the loop, so that refusals of pipelined requests do not
        nest."""
        if self._reader.current is request:
            self._go_on(refusal)

    def _go_on(self, answer: Any) -> None:
        """Sends an :data:`Answer`, when it is there."""
        if isinstance(answer, Response) and not self._writer.paused:
            self._finish(answer)
        elif isinstance(answer, Reply):
            self._work = answer
            answer.then(self._go_on)
        else:
            self._work = task = self._loop.create_task(self._answer(answer))
            if (close := getattr(answer, "close", None)) is not None:
                task.add_done_callback(lambda _: close())  # it may never have been awaited

    async def _answer(self, answer: Response | Awaitable[Response | StreamResponse]) -> None:
        try:
            response = answer if isinstance(answer, Response) else await answer
            if isinstance(response, StreamResponse):
                await self._writer.send_stream(self._asked, response)
                self._answered()
            else:
                await self._writer.until_resumed()
                self._finish(response)
        except asyncio.CancelledError:
            self._abandon()
        except CutShort:
            self._transport.abort()
        except Exception as error:
            self._fail(error)

    def _finish(self, response: Response) -> None:
        """Sends the whole response."""
        request = self._reader.current
        try:
            if request is not None and not self._transport.is_closing():
                self._writer.send(request, response)
        except ValueError as error:  # its headers
            self._fail(error)
        else:
            self._answered()

    def _fail(self, error: Exception) -> None:
        """The handler has made a mistake."""
        request = self._asked
        logger.error("%s %s failed", request.head.method, request.head.path, exc_info=error)
        if self._writer.begun:
            self._transport.abort()
            return
        self._writer.send(request, Response(b"Internal Server Error", 500, "text/plain; charset=utf-8"), is_last=True)
        self._answered()

    @property
    def _asked(self) -> Request:
        """The request that is being answered."""
        assert self._reader.current is not None
        return self._reader.current

    def _abandon(self) -> None:
        """The handler was cancelled: the client has gone, was given up, or the loop ends."""
        self._reader.current = self._work = None
        if not (self._lingering or self._transport.is_closing()):
            self._transport.abort()

    def _answered(self) -> None:
        reader, writer = self._reader, self._writer
        reader.since = self.used_at = time.monotonic()
        self._work, writer.timeout = None, 0.0
        if not writer.keep_alive or self._lingering or self._transport.is_closing():
            reader.clear()
            reader.next()
            if not writer.keep_alive:
                self._close()
            return
        request = reader.next()
        if request is not None:
            self._begin(request)
        elif reader.broken:
            self._send_malformed()
            self._close()
        if reader.unparsed:
            self._loop.call_soon(self._read_on)
        elif self.reading_paused:
            self._check_reading()

    def _read_on(self) -> None:
        """Reads what was kept unparsed."""
        reader = self._reader
        if reader.unparsed and not (reader.waiting or reader.broken):
            data, reader.unparsed = reader.unparsed, b""
            self.data_received(data)
            self._check_reading()

    def _want_body(self) -> None:
        """The handler waits for more of the body."""
        self._wanted_since = time.monotonic()
        if self._may_continue and not self._writer.begun:
            self._may_continue = False
            self._writer.send_continue()

    def _send_malformed(self) -> None:
        self._writer.send_malformed(self._reader.incoming)

    # The end.

    def close_if_idle(self) -> None:
        """Closes the connection unless a request is being answered."""
        if not self.busy:
            self._close()

    def evict(self) -> None:
        """Makes room for another connection."""
        self._on_cut("too_many", "the request on it was being answered" if self.busy else "")
        self.abort()

    def abort(self) -> None:
        """Closes the connection without sending anything more."""
        self._transport.abort()

    def check_timeouts(self, now: float) -> None:
        """Called periodically. A client that goes on reading its answer, or sending a body, has no timeout."""
        waits, transport = self._owner.waits, self._transport
        if self._lingering:
            if now - self._reader.since >= waits.read:
                self._on_cut("lingering")
                transport.abort()
            return
        if transport.get_write_buffer_size():
            self._check_reader(now, self._writer.timeout or waits.write)
        else:
            self._writer.nothing_waits()
            if not transport.is_closing():
                self._check_sender(now, waits)

    def _check_reader(self, now: float, limit: float) -> None:
        if self._writer.is_stuck(now, limit):
            request = self._reader.current
            path = "" if request is None else f" on {request.head.path:.200}"
            self._on_cut("slow_reader", f"the client has read nothing of its answer{path} for {limit:g} s")
            self._transport.abort()

    def _check_sender(self, now: float, waits: Waits) -> None:
        reader = self._reader
        request, silent = reader.incoming, now - reader.since
        if reader.current is not None:
            if (
                request is not None
                and request is reader.current
                and request.body.wanted
                and now - self._wanted_since >= waits.read
            ):
                self._on_cut("slow_body", f"nothing of the body for {request.head.path:.200} came for {waits.read:g} s")
                request.body.cut(f"nothing came for {waits.read:g} s")
        elif request is not None or reader.in_message:
            if silent >= waits.read:
                kind, what = ("slow_head", "the head of a request") if request is None else ("slow_body", "a body")
                self._on_cut(kind, f"{what} was not whole after {waits.read:g} s")
                self._close()
        elif silent >= waits.idle:
            self._on_cut("idle")
            self._close()

    def _on_cut(self, kind: str, why: str = "") -> None:
        self._owner.on_cut(kind, self._transport.get_extra_info("peername"), why)

    def _close(self) -> None:
        """Closes the connection when everything is sent; it lingers where the client is in the middle of a request."""
        transport = self._transport
        if self._lingering or transport.is_closing():
            transport.close()
        elif (self._reader.incoming is not None or self._reader.broken) and transport.can_write_eof():
            self._lingering, self._reader.since = True, time.monotonic()
            self._check_reading()
            transport.write_eof()
        else:
            transport.close()

    def _discard(self, size: int) -> None:
        self._left -= size
        if self._lingering and self._left < 0:
            self._transport.abort()
