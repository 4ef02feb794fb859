"""One HTTP/1.1 connection: requests to the handler, and responses to bytes, in the order of the requests.

    data_received -> RequestReader -> requests, one after the other -> the handler -> the response -> the next

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
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from tfs_lite.server.http.known_heads import KnownHeads
from tfs_lite.server.http.message import CutShort, Handler, Request, Response, Stream
from tfs_lite.server.http.request_reader import MAX_UNPARSED_BYTES, RequestReader
from tfs_lite.server.http.response_head import CHUNKED, CLOSE, DateLine, header_lines, status_line
from tfs_lite.transport.backlog import Backlog
from tfs_lite.transport.condition import OneWaiter
from tfs_lite.transport.peer import peer_of
from tfs_lite.transport.table import Reply
from tfs_lite.transport.watch import bytes_on_their_way

logger = logging.getLogger(__name__)

MAX_UNTAKEN_BYTES = 64 * 1024
"""Bytes of a body that its handler has not taken yet; beyond it reading pauses."""
MAX_DISCARDED = 64 << 20
"""Bytes that a client may send while its connection lingers."""
IDLE, READ, WRITE, HANDSHAKE = 75.0, 60.0, 60.0, 10.0
JOINED_BYTES = 64 * 1024
"""A body up to this size leaves in one write with its head; a larger one is not copied."""
CUTS = ("idle", "slow_head", "slow_body", "slow_reader", "lingering", "malformed", "handshake", "too_many")
"""Why the server ends connections. ``lingering``: the client goes on sending what was refused."""
_MALFORMED = b'{"error":"Invalid HTTP request received."}'
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that a client is waited for: with nothing sent of a request (``idle``); with nothing sent of a body that
    has begun, or from the first byte of a head to its last (``read``); with nothing read of an answer (``write``);
    for all of a TLS handshake."""

    idle: float = IDLE
    read: float = READ
    write: float = WRITE
    handshake: float = HANDSHAKE


class ConnectionOwner(Protocol):
    """What a connection needs of its server. ``closes_connections``: every answer is the last on its connection;
    ``kept``: the lines of every other answer, which say how long it stays; ``drained``: connections that are made now
    are too late for predictions."""

    handler: Handler
    refusal: Callable[[Request], Response | None]
    waits: Waits
    closes_connections: bool
    kept: bytes
    drained: bool
    date: DateLine
    heads: KnownHeads
    backlog: Backlog

    def connected(self, connection: Connection) -> bool:
        """Whether there is room for it."""

    def disconnected(self, connection: Connection) -> None: ...

    def on_cut(self, kind: str, peer: object, why: str = "") -> None:
        """The server ends a connection. ``kind`` is one of :data:`CUTS`, ``peer`` the address of its socket."""


class Connection(OneWaiter, asyncio.Protocol):
    """On the event loop; nothing here blocks. The task that sends an answer waits while the client does not read."""

    __slots__ = (
        *("_begun", "_head_only", "_keep_alive", "_left", "_lingering", "_loop", "_may_continue", "_owner", "_reader"),
        *("_taken", "_taken_since", "_transport", "_wanted_since", "_work", "_write_timeout", "_written"),
        *("reading_paused", "used_at", "writing_paused"),
    )

    def __init__(self, owner: ConnectionOwner) -> None:
        super().__init__()
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader = RequestReader(owner.heads, owner.drained, self._want_body, self._check_reading)
        self.used_at = 0.0
        """When the last request was answered; 0 before the first."""
        self._wanted_since = 0.0  # when the handler began to wait for more of the body
        self.reading_paused = False
        # The response on its way out.
        self._begun = False  # a part of the response was sent
        self._keep_alive = True
        self._head_only = False
        self._may_continue = False  # the client waits for 100 before it sends the body
        self._work: asyncio.Task[None] | Reply[Any] | None = None  # None: it has not been started
        self.writing_paused = False
        """Whether the client has not read enough for more to be sent."""
        self._written = 0  # bytes of answers
        self._taken = -1  # how many of them the client's system had at the last check; -1: nothing waited for it
        self._taken_since = 0.0
        self._write_timeout = 0.0
        # The end.
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
        self._reader.peer = peer_of(transport)
        if not self._owner.connected(self):
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.disconnected(self)
        self._reader.clear()
        self._cancel()
        self.resume_writing()

    def eof_received(self) -> bool | None:
        """A client that has closed its side gets no more answers but those that are made at once: when its request has
        left the backlog the handler begins, and its task in the next turn of the loop."""
        if not self._transport.can_write_eof():  # TLS has no half-closed connections
            return False
        self._owner.backlog.put(partial(self._loop.call_soon, self._loop.call_soon, self._transport.close))
        return True

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        self.wake()

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
        """What came last is malformed. Requests before it that are complete are answered first."""
        reader = self._reader
        self._on_cut("malformed", reader.fault)
        if reader.incoming is not None and reader.incoming is reader.current:
            if not self._begun:
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
        self._begun, self._keep_alive = False, request.head.keep_alive
        self._may_continue, self._head_only = request.head.expects_continue, request.head.method == "HEAD"
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
        """In the next turn of the loop, so that refusals of pipelined requests do not nest."""
        if self._reader.current is request:
            self._go_on(refusal)

    def _go_on(self, answer: Any) -> None:
        """Sends an :data:`Answer`, when it is there."""
        if isinstance(answer, Response) and not self.writing_paused:
            self._finish(answer)
        elif isinstance(answer, Reply):
            self._work = answer
            answer.then(self._go_on)
        else:
            self._work = task = self._loop.create_task(self._answer(answer))
            if (close := getattr(answer, "close", None)) is not None:
                task.add_done_callback(lambda _: close())  # it may never have been awaited

    async def _answer(self, answer: Response | Awaitable[Response | Stream]) -> None:
        try:
            response = answer if isinstance(answer, Response) else await answer
            if isinstance(response, Stream):
                await self._send_stream(response)
                self._answered()
            else:
                await self._until_drained()
                self._finish(response)
        except asyncio.CancelledError:
            self._abandon()
        except CutShort:
            self._transport.abort()
        except Exception as error:
            self._fail(error)

    def _finish(self, response: Response) -> None:
        """Sends the whole response."""
        try:
            if not self._transport.is_closing():
                self._send(response)
        except ValueError as error:  # its headers
            self._fail(error)
        else:
            self._answered()

    def _fail(self, error: Exception) -> None:
        """The handler has made a mistake."""
        head = self._asked.head
        logger.error("%s %s failed", head.method, head.path, exc_info=error)
        if self._begun:
            self._transport.abort()
            return
        self._keep_alive = False
        self._send(Response(b"Internal Server Error", 500, "text/plain; charset=utf-8"))
        self._answered()

    @property
    def _asked(self) -> Request:
        """What is being answered."""
        assert self._reader.current is not None
        return self._reader.current

    def _abandon(self) -> None:
        """The handler was cancelled: the client has gone, was given up, or the loop ends."""
        self._reader.current = self._work = None
        if not (self._lingering or self._transport.is_closing()):
            self._transport.abort()

    def _answered(self) -> None:
        reader = self._reader
        reader.since = self.used_at = time.monotonic()
        self._work, self._write_timeout = None, 0.0
        if not self._keep_alive or self._lingering or self._transport.is_closing():
            reader.clear()
            reader.next()
            if not self._keep_alive:
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
        if self._may_continue and not self._begun:
            self._may_continue = False
            self._transport.write(_CONTINUE)

    def _send(self, response: Response) -> None:
        body = response.body
        empty = response.status in (204, 304)
        length = b"" if empty else b"content-length: %d\r\n" % len(body)
        head = self._head(response.status, response.headers, length)
        self._written += len(head) + len(body)
        if empty or self._head_only:
            self._transport.write(head)
        elif len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def _send_stream(self, stream: Stream) -> None:
        chunked = not self._asked.head.old
        self._write_timeout = stream.write_timeout or 0.0
        async with aclosing(cast("AsyncGenerator[bytes, None]", stream.chunks)) as chunks:
            data = self._head(stream.status, stream.headers, CHUNKED if chunked else b"")
            while True:
                try:
                    await self._write(data)
                    if self._head_only:
                        return
                    chunk = await anext(chunks, None)
                except asyncio.CancelledError as error:
                    chunk = await _throw(chunks, error)  # a deadline, say, which the stream makes its last chunk
                if chunk is None:
                    break
                data = b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked and chunk else chunk
        if chunked:
            await self._write(b"0\r\n\r\n")

    async def _write(self, data: bytes) -> None:
        """Returns when the client has read enough for more. CancelledError when it has gone."""
        if self._transport.is_closing():
            raise asyncio.CancelledError
        if data:
            self._written += len(data)
            self._transport.write(data)
        await self._until_drained()

    async def _until_drained(self) -> None:
        while self.writing_paused:
            await self.sleep()

    def _head(self, status: int, headers: dict[str, str], framing: bytes) -> bytes:
        lines, closes = header_lines(headers)
        if closes or self._owner.closes_connections:
            self._keep_alive = False
        self._begun = True
        close = self._owner.kept if self._keep_alive else b"" if closes else CLOSE
        marks = self._asked.marks
        return b"".join((status_line(status), self._owner.date.get(), framing, lines, marks, close, b"\r\n"))

    def _send_malformed(self) -> None:
        head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(_MALFORMED)
        request = self._reader.incoming
        body = b"" if request is not None and request.head.method == "HEAD" else _MALFORMED
        self._transport.write(b"".join((status_line(400), head, CLOSE, b"\r\n", body)))

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
            self._check_reader(now, self._write_timeout or waits.write)
        else:
            self._taken = -1
            if not transport.is_closing():
                self._check_sender(now, waits)

    def _check_reader(self, now: float, limit: float) -> None:
        taken = self._written - bytes_on_their_way(self._transport)
        if taken != self._taken:
            self._taken, self._taken_since = taken, now
        if now - self._taken_since >= limit:
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


async def _throw(chunks: AsyncGenerator[bytes, None], error: BaseException) -> bytes | None:
    """The chunk that answers the error; None means that there are no more."""
    try:
        return await chunks.athrow(error)
    except StopAsyncIteration:
        return None
