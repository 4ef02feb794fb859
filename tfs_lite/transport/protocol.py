"""One connection on asyncio: bytes from the socket to HTTP/2, its output to the socket, streams to calls.

data_received -> Connection.receive -> on_request, on_data, ... -> Call
Call -> Connection -> wake -> (once for each turn of the loop) flush -> transport.write

greeting -> open -> draining (GOAWAY, calls go on) -> ending (our side is closed, the rest is thrown away) -> lost
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from tfs_lite.transport.grpc.call import (
    SHUTTING_DOWN,
    Call,
    OneRequestCall,
    UnaryCall,
)
from tfs_lite.transport.grpc.codes import DEADLINE_EXCEEDED, UNAVAILABLE
from tfs_lite.transport.grpc.common import Common
from tfs_lite.transport.grpc.head import RequestHead, RequestHeadParser
from tfs_lite.transport.grpc.streaming import ServerStreamCall, StreamedCall
from tfs_lite.transport.http2 import framing as frames
from tfs_lite.transport.http2.connection import DRAIN_PING, Connection
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.pings import PingPolicy
from tfs_lite.transport.table import CallKind
from tfs_lite.transport.watch import Act, ConnectionActivity, decide

logger = logging.getLogger(__name__)

CALLS: dict[CallKind, type[UnaryCall] | type[ServerStreamCall] | type[StreamedCall]] = {
    CallKind.UNARY: UnaryCall,
    CallKind.SERVER_STREAM: ServerStreamCall,
    CallKind.CLIENT_STREAM: StreamedCall,
    CallKind.BIDI_STREAM: StreamedCall,
}
KEEPALIVE_PING = b"alive? \n"
MAX_THROWN_AWAY = 16 << 20
"""Bytes that a client may still send on a connection that ends."""
_ENOUGH = 3
"""Bytes after which HTTP/2's preface cannot be taken for a request of HTTP/1."""
_TEXT = b"This port speaks gRPC over HTTP/2, not HTTP/1.\n"
_NOT_HTTP1 = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_TEXT), _TEXT)
)
_STALLED = "the rest of the request did not come"


class ConnectionOwner(Protocol):
    """The server, as its connections know it."""

    @property
    def common(self) -> Common: ...

    @property
    def heads(self) -> RequestHeadParser: ...

    def arrived(self, protocol: ServerProtocol) -> bool:
        """False: there is no place."""

    def left(self, protocol: ServerProtocol) -> None: ...


class ServerProtocol(asyncio.Protocol):
    """Made for each connection. All on the event loop; nothing here waits."""

    __slots__ = (
        "_first",
        "_flushing",
        "_house",
        "_kind",
        "_left",
        "_loop",
        "_peer",
        "_pings",
        "_transport",
        "_vitals",
        "_written",
        "common",
        "connection",
    )

    def __init__(self, house: ConnectionOwner) -> None:
        self._house = house
        self.common = house.common
        self._loop = house.common.loop
        self._transport: asyncio.Transport | None = None
        self._peer: object = None
        self.connection: Connection[RequestHead] = Connection(
            self.common.limits, self.common.numbers, self, house.heads.read, self._loop.time, self._wake
        )
        self._pings = PingPolicy(self.common.limits)
        self._first: bytes | None = b""
        """What came before it was clear that this is HTTP/2; None: it is."""
        self._flushing: asyncio.Handle | None = None
        self._kind = "client"
        self._left = MAX_THROWN_AWAY
        self._written = 0
        self._vitals = ConnectionActivity(self.common.limits, self._loop.time())

    # From the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = transport.get_extra_info("peername")
        numbers = self.common.numbers
        numbers.connections += 1
        self._transport.set_write_buffer_limits(high=self.common.limits.write_high_water)
        tls = transport.get_extra_info("ssl_object")
        if not self._house.arrived(self):
            self.abort("drained" if self.common.draining else "too_many")
        elif tls is not None and tls.selected_alpn_protocol() != "h2":
            self._close("no_http2", say=False)

    def data_received(self, data: bytes) -> None:
        if self._vitals.ending:
            self._throw_away(len(data))
            return
        try:
            if self._first is not None:
                data = self._greet(data)
            self.connection.receive(data)
            if self.connection.closing is not None:
                self._end()
        except Exception as error:
            self.broken(error)

    def eof_received(self) -> bool | None:
        """A client that has closed its side takes no answer."""
        return False

    def pause_writing(self) -> None:
        self.connection.outgoing.pause()

    def resume_writing(self) -> None:
        self.connection.outgoing.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._vitals.ending = True
        self._unschedule()
        self.connection.close(ErrorCode.NO_ERROR, "", self._kind)
        self._unschedule()  # what the end of the connection has to say, nobody hears
        numbers = self.common.numbers
        numbers.connections -= 1
        kind = self.connection.closing or self._kind
        numbers.closed[kind] += 1
        self.common.complaints.about(kind, self._peer, self.connection.why)
        self._house.left(self)

    def _greet(self, data: bytes) -> bytes:
        """What there is for HTTP/2 to read. A client of HTTP/1 is told in its own words what this port is."""
        first = (self._first or b"") + data
        if len(first) < _ENOUGH and frames.PREFACE.startswith(first):
            self._first = first
            return b""
        self._first = None
        word = first[:8].partition(b" ")[0]
        if not frames.PREFACE.startswith(first[:_ENOUGH]) and word.isalpha() and word.isupper():
            self._write([_NOT_HTTP1])
            self._close("no_http2", say=False)
            return b""
        self.connection.start()
        return first

    # To the socket.

    def _wake(self) -> None:
        if self._flushing is None and not self._vitals.ending:
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        connection = self.connection
        try:
            while output := connection.take():
                self._write(output)
            if connection.closing is not None or (self._vitals.finished and not connection.busy):
                self._end()
        except Exception as error:
            self.broken(error)
            self.abort("internal")

    def _write(self, output: list[bytes | memoryview]) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            data = output[0] if len(output) == 1 else b"".join(output)
            self._written += len(data)
            transport.write(data)

    def _end(self) -> None:
        """Sends what is left, closes our side, and waits for the client to close its own: closed at once, what it may
        still send would be answered with a reset, which could overtake the last answers."""
        if self._vitals.ending:
            return
        self._vitals.ending = True
        self._unschedule()
        self._write(self.connection.outgoing.take_last())
        self.connection.close(ErrorCode.NO_ERROR, "", self._vitals.draining or self._kind)
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

    def _unschedule(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None

    def _throw_away(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            self.abort(self._kind)

    # From HTTP/2.

    def on_request(self, stream: Stream, opening: RequestHead, ended: bool) -> None:
        try:
            row = opening.row
            if opening.answer is not None or row is None:
                self._answer_at_once(stream, opening)
                return
            call = CALLS[row.kind](self, row, stream, opening)
            stream.call = call
            call.begin()
            if ended:
                call.data(b"", True)
        except Exception as error:
            self.broken(error)

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        call: Call | None = stream.call
        if call is not None:
            try:
                call.data(data, ended)
            except Exception as error:
                self.broken(error)

    def on_reset(self, stream: Stream, code: int) -> None:
        call: Call | None = stream.call
        if call is not None:
            call.reset()

    def on_room(self, stream: Stream) -> None:
        call: Call | None = stream.call
        if call is not None:
            call.on_room()

    def on_ping(self) -> bool:
        connection = self.connection
        return self._pings.allows(self._loop.time(), connection.outgoing.answers_sent, connection.busy > 0)

    def on_ping_ack(self, payload: bytes) -> None:
        if payload == DRAIN_PING and self._vitals.draining:
            self._finish()

    def _answer_at_once(self, stream: Stream, opening: RequestHead) -> None:
        path = opening.row.path if opening.row is not None else ""
        self.common.numbers.calls[path, opening.status] += 1
        self.connection.headers(stream, opening.answer or b"", True)
        self.connection.release(stream)

    # From calls.

    def broken(self, error: BaseException) -> None:
        logger.error("a gRPC connection has failed in the server itself", exc_info=error)
        self.connection.close(ErrorCode.INTERNAL_ERROR, "internal error", "internal")
        self._wake()

    def call_over(self) -> None:
        if self._vitals.finished:
            self._wake()

    # From the server and its watch.

    @property
    def idle_since(self) -> float | None:
        """Since when nothing has come, if there is no call inside; None: it cannot be spared, or it ends anyway."""
        return None if self.connection.busy or self._vitals.ending else self.connection.last_received

    @property
    def used(self) -> bool:
        """Whether there ever was a call."""
        return self.connection.last_stream > 0

    def drain(self, kind: str) -> None:
        """No more calls, please: those inside go on, and the connection ends with them."""
        if self._vitals.draining or self._vitals.ending:
            return
        self._vitals.draining, self._vitals.draining_since = kind, self._loop.time()
        if self.connection.opened:
            self.connection.goaway_soon()
        else:
            self._close(kind)

    def cut(self) -> None:
        """The calls inside are cancelled, and told so."""
        for stream in list(self.connection.streams.values()):
            if stream.call is not None:
                stream.call.abort(UNAVAILABLE, SHUTTING_DOWN)
        self._close(self._vitals.draining or "drained")

    def abort(self, kind: str) -> None:
        """Without another word."""
        if self.connection.closing is None:
            self._kind = kind
        if self._transport is not None:
            self._transport.abort()

    def evict(self) -> None:
        """Another connection takes its place."""
        self._close("too_many")
        if self._transport is not None:
            self._transport.close()

    def look(self, now: float) -> None:
        try:
            self._look(now)
        except Exception as error:
            self.broken(error)

    def _look(self, now: float) -> None:
        if self.connection.closing is not None:
            self._end()
        limits = self.common.limits
        buffered = self._transport.get_write_buffer_size() if self._transport is not None else 0
        verdict = decide(self._vitals.view(now, self.connection, self._written, buffered), limits)
        if verdict is not None:
            act, kind = verdict
            if act is Act.CUT:
                self.abort(kind)
            elif act is Act.CLOSE:
                self._close(kind)
            elif act is Act.FINISH:
                self._finish()
            elif act is Act.DRAIN:
                self.drain(kind)
            else:
                self._vitals.pinged = now
                self.connection.outgoing.control(frames.ping(KEEPALIVE_PING))
        for stream in list(self.connection.streams.values()):
            call = stream.call
            if isinstance(call, OneRequestCall) and call.heard and now - call.heard >= limits.request_timeout:
                call.abort(DEADLINE_EXCEEDED, _STALLED)

    def _finish(self) -> None:
        """What was on its way is here; calls that still come are not taken."""
        if not self._vitals.finished:
            self._vitals.finished = True
            self.connection.goaway()
            self._wake()

    def _close(self, kind: str, say: bool = True) -> None:
        """Every call is over, and the connection ends; with ``say`` by GOAWAY, if it ever was HTTP/2."""
        self._kind = kind
        if say and self._first is None:
            self.connection.close(ErrorCode.NO_ERROR, "", kind)
        self._end()
