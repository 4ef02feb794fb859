"""HTTP/2 for servers (RFC 9113), without I/O: bytes in, bytes out, and the owner is told what came.

    receive(bytes) -> frames -> Events: on_request -> on_data* -> (on_data with ended | on_reset)
    answer | headers, data*, headers(end) | reset, then release -> outgoing -> take() -> the socket

A rule that the client breaks on a stream costs it that stream, one of the connection costs it the connection, as the
RFC says; so does more of what is for nothing than the limits allow. All on one event loop; nothing here waits.

Choices where the RFC leaves one: HEADERS with a number that was passed is PROTOCOL_ERROR; DATA on a stream that ended
is answered with RST_STREAM; what still comes for a stream that we reset is counted and thrown away; priorities mean
nothing; contents count as used up for the connection's window as soon as they come, for the stream's when its owner
says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from tfs_lite.transport.http2 import framing as frames
from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode, StreamFault
from tfs_lite.transport.http2.events import Events, T
from tfs_lite.transport.http2.fields import check_trailers
from tfs_lite.transport.http2.framing import NUMBER, PRIORITY_SIZE, STREAM_MASK, FrameReader, bare
from tfs_lite.transport.http2.hpack_reader import BlockReader, Fields
from tfs_lite.transport.http2.rate_limit import Budgets
from tfs_lite.transport.http2.receive_window import ReceiveWindow
from tfs_lite.transport.http2.send_queue import SendQueue
from tfs_lite.transport.http2.settings import (
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    our_settings,
    read_settings,
)
from tfs_lite.transport.http2.streams import ClosedStreams, Stream, fault_of_data
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers

DRAIN_PING = b"draining"


class Connection(Generic[T]):
    """``start`` -> ``receive``, ``take`` and the rest in any order -> ``close``, or a fault of the client's.

    ``closing`` is None, then for good the kind under which the end of the connection is counted, with the sentence
    ``why``; its last output holds GOAWAY. ``busy``: places taken by streams. ``opened``: the client has sent its
    preface and SETTINGS. ``partial_since``: since when a frame or a header block has been incomplete.
    """

    def __init__(
        self,
        limits: Limits,
        numbers: Numbers,
        events: Events[T],
        parse: Callable[[Fields | None], T],
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._numbers = numbers
        self._events = events
        self._clock = clock
        self._blocks: BlockReader[T] = BlockReader(parse, limits.max_header_list)
        self.outgoing = SendQueue(limits, numbers, wake, events.on_room, self._on_gone, self._on_flood)
        self.answer = self.outgoing.answer
        self.streams: dict[int, Stream] = {}
        self.busy = 0
        self.last_stream = 0
        self.closing: str | None = None
        self.why = ""
        self.last_received = clock()
        self._graves = ClosedStreams()
        self._final: int | None = None
        self._allowance = ReceiveWindow(limits, self._control)
        self.credit, self.widen = self._allowance.credit, self._allowance.widen
        self._budgets = Budgets(limits, clock)
        self._spend = self._budgets.spend
        handlers = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
        )
        self._reader = FrameReader(limits, handlers, self._spend, self.last_received)

    @property
    def opened(self) -> bool:
        return self._reader.opened

    @property
    def partial_since(self) -> float | None:
        return self._reader.partial_since

    # What the owner does.

    def start(self) -> None:
        self.outgoing.control(our_settings(self._limits))
        extra = self._limits.connection_window - frames.DEFAULT_WINDOW
        if extra > 0:
            self.outgoing.control(frames.window_update(0, extra))

    def receive(self, data: bytes) -> None:
        """What has come, cut anywhere. After a fault of the client's ``closing`` is set, and nothing more is read."""
        if self.closing is not None:
            return
        self._numbers.bytes_received += len(data)
        self.last_received = self._clock()
        try:
            self._reader.feed(data, self.last_received)
        except ConnectionFault as fault:
            self._fail(fault)

    def headers(self, stream: Stream, block: bytes, end: bool = False) -> None:
        self.outgoing.headers(stream, block, end)

    def data(self, stream: Stream, payload: bytes) -> None:
        self.outgoing.data(stream, payload)

    def take(self) -> list[bytes | memoryview]:
        return self.outgoing.take()

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Ends the stream without a word to the owner. Nothing if it has ended."""
        if not stream.dead and stream.id in self.streams:
            self._numbers.resets_sent += 1
            self._graves.bury(stream.id, stream.receive_window)
            self._kill(stream)
            self._control(frames.rst_stream(stream.id, code))

    def release(self, stream: Stream) -> None:
        """The owner has done everything for it; its place is free when the last byte has left."""
        if not stream.released:
            stream.released = True
            if stream.dead or not stream.queue:
                self._free()

    def goaway_soon(self) -> None:
        """No more calls, please; what was sent before the echo to this, still counts."""
        self._control(frames.goaway(STREAM_MASK, ErrorCode.NO_ERROR) + frames.ping(DRAIN_PING))

    def goaway(self, why: bytes = b"") -> None:
        """Streams that begin from now on are not looked at; clients take them elsewhere."""
        if self._final is None:
            self._final = self.last_stream
            self._control(frames.goaway(self.last_stream, ErrorCode.NO_ERROR, why))

    def close(self, code: ErrorCode, why: str, kind: str) -> None:
        """GOAWAY, and every stream is dead."""
        self._fail(ConnectionFault(code, why, kind))

    # Frames of requests.

    def _on_headers(self, flags: int, number: int, block: bytes) -> None:
        """A whole header block."""
        if number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that no client can have")
        ended = flags & frames.END_STREAM != 0
        stream = self.streams.get(number)
        if stream is not None:
            self._on_trailers(stream, block, ended)
        elif number > self.last_stream:
            self._on_request(number, block, ended)
        else:
            self._blocks.read_fields(block)
            if number not in self._graves:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that was passed or has ended")
            self._spend("oddments")

    def _on_request(self, number: int, block: bytes, ended: bool) -> None:
        self.last_stream = number
        opening = self._blocks.read(block)
        if self._final is not None:
            self._graves.bury(number, self._limits.stream_window)
            return
        if self.busy >= self._limits.max_streams:
            self._numbers.refused += 1
            self._graves.bury(number, self._limits.stream_window)
            self._refuse(number, ErrorCode.REFUSED_STREAM)
            return
        if opening.fault is not None or (ended and opening.length > 0):
            self._graves.bury(number, self._limits.stream_window)
            self._refuse(number, ErrorCode.PROTOCOL_ERROR)
            return
        stream = Stream(number, self.outgoing.initial_window, self._limits.stream_window)
        stream.ended = ended
        stream.expects = opening.length
        self.streams[number] = stream
        self.busy += 1
        self._numbers.streams += 1
        self._events.on_request(stream, opening, ended)

    def _on_trailers(self, stream: Stream, block: bytes, ended: bool) -> None:
        fields = self._blocks.read_fields(block)
        if stream.ended:
            self._fault(stream, StreamFault(ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM"))
        elif not ended or fields is None or check_trailers(fields) is not None or stream.expects > 0:
            self._fault(stream, StreamFault(ErrorCode.PROTOCOL_ERROR, "malformed trailers"))
        else:
            self._end(stream, b"")

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        size = len(payload)
        self._allowance.took(size)
        data = bare(flags & frames.PADDED, payload) if flags & frames.PADDED else payload
        stream = self.streams.get(number)
        if stream is None:
            self._on_late_data(number, size)
            return
        ended = flags & frames.END_STREAM != 0
        stream.receive_window -= size
        if stream.ended or stream.receive_window < 0 or stream.expects >= 0:
            fault = fault_of_data(stream, len(data), ended)
            if fault is not None:
                self._fault(stream, fault)
                return
        if len(data) != size:
            self.credit(stream, size - len(data))
        if ended:
            self._end(stream, data)
            return
        if not data:
            self._spend("empties")
        self._events.on_data(stream, data, False)

    def _on_late_data(self, number: int, size: int) -> None:
        if number > self.last_stream or number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on a stream that was not begun")
        if number not in self._graves:
            self._refuse(number, ErrorCode.STREAM_CLOSED)
        elif not self._graves.expect(number, size):
            self._spend("oddments")

    def _end(self, stream: Stream, data: bytes) -> None:
        stream.ended = True
        self._events.on_data(stream, data, True)

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a size other than 4")
        if number == 0 or number > self.last_stream or number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on a stream that was not begun")
        self._numbers.resets_received += 1
        self._spend("resets")
        stream = self.streams.get(number)
        if stream is not None:
            self._kill(stream)
            self._events.on_reset(stream, NUMBER.unpack(payload)[0])

    # Frames of the connection.

    def _on_priority(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != PRIORITY_SIZE:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a size other than 5")
        self._spend("oddments")

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with contents")
            self._spend("settings")
            return
        found = read_settings(payload)
        self._spend("settings")
        self._reader.opened = True
        for key, value in dict(found).items():  # the last value of each: to go through all would be work for nothing
            if key == INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif key == MAX_FRAME_SIZE:
                self.outgoing.max_frame = min(value, max(frames.DEFAULT_MAX_FRAME, self._limits.write_high_water))
            elif key == HEADER_TABLE_SIZE:
                self.outgoing.owes_size_update = True
        self._control(frames.SETTINGS_ACK)

    def _resize_windows(self, size: int) -> None:
        change = size - self.outgoing.initial_window
        self.outgoing.initial_window = size
        for stream in self.streams.values():
            if not self.outgoing.widen_stream(stream, change):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS widen a window beyond 2^31-1")

    def _on_push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING of a size other than 8")
        if flags & frames.ACK:
            self._spend("pings")
            self._events.on_ping_ack(payload)
            return
        if not self._events.on_ping():
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings", "too_many_pings")
        self._budgets.spend_earned("pings", self.outgoing.answers_sent)
        self._control(frames.ping(payload, ack=True))

    def _on_goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of less than 8 bytes")
        self._spend("oddments")

    def _on_window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a size other than 4")
        increment = NUMBER.unpack(payload)[0] & STREAM_MASK
        self._budgets.spend_earned("updates", self.outgoing.answers_sent)
        if number == 0:
            if increment == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            if not self.outgoing.widen(increment):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is beyond 2^31-1")
            return
        if number > self.last_stream or number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that was not begun")
        stream = self.streams.get(number)
        if stream is None:
            return
        if increment == 0:
            self._fault(stream, StreamFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0"))
        elif not self.outgoing.widen_stream(stream, increment):
            self._fault(stream, StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is beyond 2^31-1"))

    # Ends.

    def _fault(self, stream: Stream, fault: StreamFault) -> None:
        self._spend("faults")
        self.reset(stream, fault.code)
        self._events.on_reset(stream, fault.code)

    def _refuse(self, number: int, code: ErrorCode) -> None:
        """A stream that the owner never hears of, or has long forgotten."""
        self._spend("faults")
        self._numbers.resets_sent += 1
        self._control(frames.rst_stream(number, code))

    def _kill(self, stream: Stream) -> None:
        del self.streams[stream.id]
        stream.dead = True
        waited = bool(stream.queue)
        self.outgoing.forget(stream)
        if stream.released and waited:
            self._free()

    def _on_gone(self, stream: Stream) -> None:
        """The last byte of an answer has left. A client that goes on sending is told that there is no need."""
        self._budgets.earn_reset()
        if stream.ended:
            del self.streams[stream.id]
        else:
            self.reset(stream, ErrorCode.NO_ERROR)
        if stream.released:
            self._free()

    def _on_flood(self) -> None:
        self._fail(ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "answers are not read", "slow_reader"))

    def _free(self) -> None:
        self.busy -= 1
        self._numbers.streams -= 1

    def _fail(self, fault: ConnectionFault) -> None:
        if self.closing is not None:
            return
        self.closing, self.why = fault.kind, fault.why
        self._reader.stopped = True
        last = self.last_stream if self._final is None else self._final
        self.outgoing.control(frames.goaway(last, fault.code, fault.why.encode("ascii", "replace")))
        for stream in list(self.streams.values()):
            if not stream.dead:
                self._kill(stream)
                self._events.on_reset(stream, fault.code)

    def _control(self, frame: bytes) -> None:
        self.outgoing.control(frame)
        if self.outgoing.control_waiting > self._limits.max_control_queue:
            self._fail(ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "control frames are not read", "slow_reader"))
