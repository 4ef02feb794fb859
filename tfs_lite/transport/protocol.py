"""One connection on asyncio: it passes bytes between the socket and HTTP/2, and streams to calls.

data_received -> Http2Connection.receive -> on_request, on_data, ... -> Call
Call -> Http2Connection -> wake -> flush (once for each turn of the loop) -> transport.write

preface -> open -> draining (GOAWAY, calls go on) -> ending (our side is closed, input is discarded) -> lost
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from tfs_lite.transport.grpc.call import SHUTTING_DOWN, Call, Common, OneRequestCall, UnaryCall
from tfs_lite.transport.grpc.codes import DEADLINE_EXCEEDED, UNAVAILABLE
from tfs_lite.transport.grpc.head import RequestHead, RequestHeadParser
from tfs_lite.transport.grpc.streaming import ServerStreamCall, StreamedCall
from tfs_lite.transport.http2 import framing as frames
from tfs_lite.transport.http2.connection import DRAIN_PING, Http2Connection
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.peer import UNKNOWN, peer_of
from tfs_lite.transport.pings import PingPolicy
from tfs_lite.transport.table import CallContext, CallKind
from tfs_lite.transport.watch import Act, ConnectionActivity, decide

logger = logging.getLogger(__name__)

CALLS: dict[CallKind, type[UnaryCall] | type[ServerStreamCall] | type[StreamedCall]] = {
    CallKind.UNARY: UnaryCall,
    CallKind.SERVER_STREAM: ServerStreamCall,
    CallKind.CLIENT_STREAM: StreamedCall,
    CallKind.BIDI_STREAM: StreamedCall,
}
KEEPALIVE_PING = b"alive? \n"
MAX_DISCARDED = 16 << 20
"""Bytes that a client may still send on a connection that ends."""
_MIN_PREFACE = 3
"""Bytes after which HTTP/2's preface differs from every request of HTTP/1."""
_TEXT = b"This port speaks gRPC over HTTP/2, not HTTP/1.\n"
_NOT_HTTP1 = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_TEXT), _TEXT)
)
_STALLED = "the rest of the request did not come"


class ConnectionOwner(Protocol):
    """The services that a connection needs of its server."""

    @property
    def common(self) -> Common: ...

    @property
    def head_parser(self) -> RequestHeadParser: ...

    def connected(self, protocol: ServerProtocol) -> bool:
        """Whether there is room for it."""

    def disconnected(self, protocol: ServerProtocol) -> None: ...


class ServerProtocol(asyncio.Protocol):
    """One for each connection. All on the event loop; nothing here blocks."""

    __slots__ = (
        "_activity",
        "_address",
        "_discardable",
        "_end_kind",
        "_flushing",
        "_loop",
        "_owner",
        "_pings",
        "_preface",
        "_transport",
        "_written",
        "common",
        "connection",
        "peer",
    )

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self.common = owner.common
        self._loop = owner.common.loop
        self._transport: asyncio.Transport | None = None
        self._address: object = None
        self.peer = UNKNOWN
        self.connection: Http2Connection[RequestHead] = Http2Connection(
            self.common.limits, self.common.numbers, self, owner.head_parser.read, self._loop.time, self._wake
        )
        self._pings = PingPolicy(self.common.limits)
        self._preface: bytes | None = b""
        """The first bytes while it is not certain that this is HTTP/2; None afterwards."""
        self._flushing = False
        """Whether it is to flush soon."""
        self._end_kind = "client"
        self._discardable = MAX_DISCARDED
        self._written = 0
        self._activity = ConnectionActivity(self.common.limits, self._loop.time())

    # From the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = transport.get_extra_info("peername")
        self.peer = peer_of(transport)
        numbers = self.common.numbers
        numbers.connections += 1
        self._transport.set_write_buffer_limits(high=self.common.limits.write_high_water)
        tls = transport.get_extra_info("ssl_object")
        if not self._owner.connected(self):
            self.abort("drained" if self.common.draining else "too_many")
        elif tls is not None and tls.selected_alpn_protocol() != "h2":
            self._close("no_http2", say=False)

    def data_received(self, data: bytes) -> None:
        if self._activity.ending:
            self._discard(len(data))
            return
        try:
            if self._preface is not None:
                data = self._read_preface(data)
            self.connection.receive(data)
            if self.connection.closing is not None:
                self._end()
        except Exception as error:
            self.fail(error)

    def eof_received(self) -> bool | None:
        """A client that has closed its side gets no more answers."""
        return False

    def pause_writing(self) -> None:
        self.connection.outgoing.pause()

    def resume_writing(self) -> None:
        self.connection.outgoing.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._activity.ending = True
        self.connection.close(ErrorCode.NO_ERROR, "", self._end_kind)
        self._flushing = False  # nothing can be written any more
        numbers = self.common.numbers
        numbers.connections -= 1
        kind = self.connection.closing or self._end_kind
        numbers.closed[kind] += 1
        self.common.log.connection_ended(kind, self._address, self.connection.why)
        self._owner.disconnected(self)

    def _read_preface(self, data: bytes) -> bytes:
        """Returns what HTTP/2 is to read. A client of HTTP/1 gets an answer in HTTP/1 that says what this port is."""
        first = (self._preface or b"") + data
        if len(first) < _MIN_PREFACE and frames.PREFACE.startswith(first):
            self._preface = first
            return b""
        self._preface = None
        word = first[:8].partition(b" ")[0]
        if not frames.PREFACE.startswith(first[:_MIN_PREFACE]) and word.isalpha() and word.isupper():
            self._write([_NOT_HTTP1])
            self._close("no_http2", say=False)
            return b""
        self.connection.start()
        return first

    # To the socket.

    def _wake(self) -> None:
        if not self._flushing and not self._activity.ending:
            self._flushing = True
            self.common.soon(self._flush)

    def _flush(self) -> None:
        if not self._flushing:
            return
        self._flushing = False
        connection = self.connection
        try:
            while output := connection.take():
                self._write(output)
            if connection.closing is not None or (self._activity.finished and not connection.busy):
                self._end()
        except Exception as error:
            self.fail(error)
            self.abort("internal")

    def _write(self, output: list[bytes | memoryview]) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            data = output[0] if len(output) == 1 else b"".join(output)
            self._written += len(data)
            transport.write(data)

    def _end(self) -> None:
        """Sends the remaining output, closes the server's side, and waits for the client to close its own. Closing the
        socket at once would answer further input with a TCP reset, which could overtake the last answers."""
        if self._activity.ending:
            return
        self._activity.ending = True
        self._flushing = False
        self._write(self.connection.outgoing.take_last())
        self.connection.close(ErrorCode.NO_ERROR, "", self._activity.draining or self._end_kind)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the client has gone
            transport.abort()

    def _discard(self, size: int) -> None:
        self._discardable -= size
        if self._discardable < 0:
            self.abort(self._end_kind)

    # From HTTP/2.

    def refusal(self, head: RequestHead) -> bytes | None:
        return self.common.refusal(head)

    def on_request(self, stream: Stream, head: RequestHead, ended: bool) -> None:
        try:
            method = head.method
            if head.answer is not None or method is None:
                self._answer_at_once(stream, head)
                return
            call = CALLS[method.kind](self, method, stream, head)
            stream.call = call
            call.begin()
            if ended:
                call.receive(b"", True)
        except Exception as error:
            self.fail(error)

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        call: Call | None = stream.call
        if call is not None:
            try:
                call.receive(data, ended)
            except Exception as error:
                self.fail(error)

    def on_reset(self, stream: Stream, code: int) -> None:
        call: Call | None = stream.call
        if call is not None:
            call.reset()

    def on_writable(self, stream: Stream) -> None:
        call: Call | None = stream.call
        if call is not None:
            call.on_writable()

    def on_ping(self) -> bool:
        connection = self.connection
        return self._pings.allows(self._loop.time(), connection.outgoing.frames_sent, connection.busy > 0)

    def on_ping_ack(self, payload: bytes) -> None:
        if payload == DRAIN_PING and self._activity.draining:
            self._finish()

    def _answer_at_once(self, stream: Stream, head: RequestHead) -> None:
        path = head.method.path if head.method is not None else ""
        if path:
            self.common.hooks.unread(path, head.status, head.text, 1, CallContext(None, head.metadata, peer=self.peer))
        self.common.numbers.calls[path, head.status] += 1
        self.connection.headers(stream, head.answer or b"", True)
        self.connection.release(stream)

    # From calls.

    def fail(self, error: BaseException) -> None:
        logger.error("a gRPC connection has failed in the server itself", exc_info=error)
        self.connection.close(ErrorCode.INTERNAL_ERROR, "internal error", "internal")
        self._wake()

    def call_closed(self) -> None:
        if self._activity.finished:
            self._wake()

    # From the server and its watch.

    @property
    def idle_since(self) -> float | None:
        """The time since when nothing has arrived; None while there are calls, or if the connection is ending
        anyway."""
        return None if self.connection.busy or self._activity.ending else self.connection.last_received

    @property
    def used(self) -> bool:
        """Whether there ever was a call."""
        return self.connection.last_stream > 0

    def drain(self, kind: str) -> None:
        """Asks the client for no more calls. Those that have begun go on, and the connection ends with them."""
        if self._activity.draining or self._activity.ending:
            return
        self._activity.draining, self._activity.draining_since = kind, self._loop.time()
        if self.connection.opened:
            self.connection.goaway_soon()
        else:
            self._close(kind)

    def cancel(self) -> None:
        """Ends the calls with UNAVAILABLE, cancels their handlers, and closes."""
        for stream in list(self.connection.streams.values()):
            if stream.call is not None:
                stream.call.abort(UNAVAILABLE, SHUTTING_DOWN)
        self._close(self._activity.draining or "drained")

    def abort(self, kind: str) -> None:
        """Closes the socket without sending anything more."""
        if self.connection.closing is None:
            self._end_kind = kind
        if self._transport is not None:
            self._transport.abort()

    def evict(self) -> None:
        """Makes room for another connection."""
        self._close("too_many")
        if self._transport is not None:
            self._transport.close()

    def check_timeouts(self, now: float) -> None:
        try:
            self._check_timeouts(now)
        except Exception as error:
            self.fail(error)

    def _check_timeouts(self, now: float) -> None:
        if self.connection.closing is not None:
            self._end()
        limits = self.common.limits
        due = decide(self._activity.view(now, self.connection, self._written, self._transport), limits)
        if due is not None:
            act, kind = due
            if act is Act.ABORT:
                self.abort(kind)
            elif act is Act.CLOSE:
                self._close(kind)
            elif act is Act.FINISH:
                self._finish()
            elif act is Act.DRAIN:
                self.drain(kind)
            else:
                self._activity.pinged = now
                self.connection.outgoing.control(frames.ping(KEEPALIVE_PING))
        for stream in list(self.connection.streams.values()):
            call = stream.call
            waiting_since = call.waiting_since if isinstance(call, OneRequestCall) else 0.0
            if waiting_since and now - waiting_since >= limits.request_timeout:
                call.abort(DEADLINE_EXCEEDED, _STALLED)

    def _finish(self) -> None:
        """Ignores calls from now on: those that were on their way have arrived."""
        if not self._activity.finished:
            self._activity.finished = True
            self.connection.goaway()
            self._wake()

    def _close(self, kind: str, say: bool = True) -> None:
        """Ends every call and the connection; with ``say`` by GOAWAY, if the client speaks HTTP/2."""
        self._end_kind = kind
        if say and self._preface is None:
            self.connection.close(ErrorCode.NO_ERROR, "", kind)
        self._end()
