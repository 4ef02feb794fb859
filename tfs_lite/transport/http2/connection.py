"""HTTP/2 for servers (RFC 9113), without I/O: bytes in, bytes out, and events for the owner.

    receive(bytes) -> frames -> Events: on_request -> on_data* -> (on_data with ended | on_reset)
    answer | headers, data*, headers(end) | reset, then release -> outgoing -> take() -> the socket

A client that breaks a rule of a stream loses the stream; one that breaks a rule of the connection, or exceeds a limit,
loses the connection. All on one event loop; nothing here blocks.

Choices where the RFC leaves one: HEADERS with a number that was passed over is PROTOCOL_ERROR; DATA on a stream that
ended is answered with RST_STREAM; data that still arrives for a stream that the server has reset is counted and
discarded; priorities have no effect; data is credited to the connection's window as soon as it arrives, and to the
stream's when its owner has consumed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tfs_lite.transport.http2 import framing as frames
from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode, StreamFault
from tfs_lite.transport.http2.fields import check_trailers
from tfs_lite.transport.http2.framing import (
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    NUMBER,
    PRIORITY_SIZE,
    STREAM_MASK,
    FrameReader,
    our_settings,
    read_settings,
    strip_padding,
)
from tfs_lite.transport.http2.hpack_reader import BlockReader, Fields
from tfs_lite.transport.http2.rate_limit import RateLimits
from tfs_lite.transport.http2.receive_window import ReceiveWindow
from tfs_lite.transport.http2.send_queue import SendQueue
from tfs_lite.transport.http2.streams import ClosedStreams, Stream, fault_of_data
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers

DRAIN_PING = b"draining"


class ParsedHead(Protocol):
    """The owner's reading of the header fields of a request."""

    @property
    def fault(self) -> str | None:
        """Why the request is malformed; None if it is not."""

    @property
    def length(self) -> int:
        """The value of ``content-length``; -1 without one."""


T = TypeVar("T", bound=ParsedHead)
T_contra = TypeVar("T_contra", bound=ParsedHead, contravariant=True)


class Events(Protocol[T_contra]):
    """The owner's callbacks, called from within the connection's methods; they must not raise."""

    def refusal(self, head: T_contra) -> bytes | None:
        """The header block that answers a request which is refused by its head; None for one that is taken, which then
        comes as ``on_request``."""

    def on_request(self, stream: Stream, head: T_contra, ended: bool) -> None: ...

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        """Trailers arrive as ``b""`` with ``ended``."""

    def on_reset(self, stream: Stream, code: int) -> None:
        """The stream was ended by the client, a fault, or the end of the connection. Nothing more arrives or can be
        sent; it counts until ``release``."""

    def on_writable(self, stream: Stream) -> None:
        """Called when everything that was queued on the stream has left."""

    def on_ping(self) -> bool:
        """The client has sent PING. Returns whether it may, so soon."""

    def on_ping_ack(self, payload: bytes) -> None: ...


class Http2Connection(Generic[T]):
    """One HTTP/2 connection without I/O: ``start`` -> ``receive``, ``take`` and the rest in any order -> ``close``, or
    a fault of the client.

    ``closing`` is None until the connection ends; then it is the kind under which the end is counted, ``why`` a
    sentence, and the last output contains GOAWAY. ``busy`` counts streams. ``opened``: the client has sent its preface
    and SETTINGS. ``partial_since``: since when a frame or a header block has been incomplete.
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
        self.outgoing = SendQueue(
            limits,
            numbers,
            wake=wake,
            on_writable=events.on_writable,
            on_finished=self._on_finished,
            on_overflow=self._on_overflow,
        )
        self.answer, self.headers, self.data = self.outgoing.answer, self.outgoing.headers, self.outgoing.data
        self.take = self.outgoing.take
        self.streams: dict[int, Stream] = {}
        self.busy = 0
        self.last_stream = 0
        self.closing: str | None = None
        self.why = ""
        self.last_received = clock()
        self._answered = 0
        self._answered_early: list[int] = []
        """Streams that were answered by their heads in what is being read."""
        self._closed_streams = ClosedStreams(limits.max_streams)
        self._final: int | None = None
        self._receive_window = ReceiveWindow(limits, self._control)
        self.credit, self.widen = self._receive_window.credit, self._receive_window.widen
        self._rates = RateLimits(limits, clock)
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
        self._reader = FrameReader(limits, handlers, self._rates, self.last_received)

    @property
    def opened(self) -> bool:
        return self._reader.opened

    @property
    def partial_since(self) -> float | None:
        return self._reader.partial_since

    # What the owner calls.

    def start(self) -> None:
        self.outgoing.control(our_settings(self._limits))
        extra = self._limits.connection_window - frames.DEFAULT_WINDOW
        if extra > 0:
            self.outgoing.control(frames.window_update(0, extra))

    def receive(self, data: bytes) -> None:
        """Reads input, cut anywhere. After a fault of the client ``closing`` is set, and nothing more is read."""
        if self.closing is not None:
            return
        self._numbers.bytes_received += len(data)
        self.last_received = self._clock()
        try:
            self._reader.feed(data, self.last_received)
        except ConnectionFault as fault:
            self._fail(fault)
        if self._answered_early:
            self._stop_early()

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Resets the stream without telling the owner, unless it has ended."""
        if not stream.dead and stream.id in self.streams:
            self._numbers.resets_sent += 1
            self._closed_streams.remember(stream.id, stream.receive_window)
            self._kill(stream)
            self._control(frames.rst_stream(stream.id, code))

    def release(self, stream: Stream) -> None:
        """The owner has finished with the stream, which no longer counts when its last byte has left."""
        if not stream.released:
            stream.released = True
            if stream.dead or not stream.queue:
                self._free()

    def goaway_soon(self) -> None:
        """Asks for no more requests; those that were sent before the client's answer to the PING are still taken."""
        self._control(frames.goaway(STREAM_MASK, ErrorCode.NO_ERROR) + frames.ping(DRAIN_PING))

    def goaway(self, why: bytes = b"") -> None:
        """Ignores streams that begin from now on; GOAWAY tells the client which those are."""
        if self._final is None:
            self._final = self.last_stream
            self._control(frames.goaway(self.last_stream, ErrorCode.NO_ERROR, why))

    def close(self, code: ErrorCode, why: str, kind: str) -> None:
        """Ends every stream, and sends GOAWAY."""
        self._fail(ConnectionFault(code, why, kind))

    # Frames of requests.

    def _on_headers(self, flags: int, number: int, block: bytes) -> None:
        """Handles a whole header block."""
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
            if number not in self._closed_streams:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that was passed or has ended")
            self._rates.take("unexpected_frames")

    def _on_request(self, number: int, block: bytes, ended: bool) -> None:
        self.last_stream = number
        head = self._blocks.read(block)
        if self._final is not None:
            self._closed_streams.remember(number, self._limits.stream_window)
            return
        if self.busy >= self._limits.max_streams:
            self._numbers.refused += 1
            self._closed_streams.remember(number, self._limits.stream_window)
            self._refuse(number, ErrorCode.REFUSED_STREAM)
            return
        if head.fault is not None or (ended and head.length > 0):
            self._closed_streams.remember(number, self._limits.stream_window)
            self._refuse(number, ErrorCode.PROTOCOL_ERROR)
            return
        block_of_refusal = None if self.outgoing.paused else self._events.refusal(head)
        if block_of_refusal is not None:
            self._answer_by_head(number, block_of_refusal, ended)
            return
        stream = Stream(number, self.outgoing.initial_window, self._limits.stream_window)
        stream.ended = ended
        stream.expects = head.length
        self.streams[number] = stream
        self.busy += 1
        self._numbers.streams += 1
        self._events.on_request(stream, head, ended)

    def _answer_by_head(self, number: int, answer: bytes, ended: bool) -> None:
        """A client whose request does not end with what is being read is told to stop. Not done for one that does not
        read, since its answers would pile up."""
        self._answered += 1
        self.outgoing.headers_only(number, answer)
        if not ended:
            self._closed_streams.remember(number, self._limits.stream_window)
            self._answered_early.append(number)

    def _on_trailers(self, stream: Stream, block: bytes, ended: bool) -> None:
        fields = self._blocks.read_fields(block)
        if stream.ended:
            self._fault(stream, StreamFault(ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM"))
        elif not ended or fields is None or check_trailers(fields) is not None or stream.expects > 0:
            self._fault(stream, StreamFault(ErrorCode.PROTOCOL_ERROR, "malformed trailers"))
        else:
            stream.ended = True
            self._events.on_data(stream, b"", True)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        size = len(payload)
        self._receive_window.received(size)
        data = strip_padding(flags & frames.PADDED, payload) if flags & frames.PADDED else payload
        stream = self.streams.get(number)
        ended = flags & frames.END_STREAM != 0
        if stream is None:
            self._on_late_data(number, size, ended)
            return
        stream.receive_window -= size
        if stream.ended or stream.receive_window < 0 or stream.expects >= 0:
            fault = fault_of_data(stream, len(data), ended)
            if fault is not None:
                self._fault(stream, fault)
                return
        if len(data) != size:
            self.credit(stream, size - len(data))
        if ended:
            stream.ended = True
        elif not data:
            self._rates.take("empty_frames")
        self._events.on_data(stream, data, ended)

    def _on_late_data(self, number: int, size: int, ended: bool) -> None:
        if number > self.last_stream or number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on a stream that was not begun")
        if number not in self._closed_streams:
            self._refuse(number, ErrorCode.STREAM_CLOSED)
        elif not self._closed_streams.accept(number, size, ended):
            self._rates.take("unexpected_frames")

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a size other than 4")
        if number == 0 or number > self.last_stream or number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on a stream that was not begun")
        self._numbers.resets_received += 1
        self._rates.take_refilled("resets", self._answered)
        stream = self.streams.get(number)
        if stream is None:
            self._closed_streams.forget(number)
        else:
            self._kill(stream)
            self._events.on_reset(stream, NUMBER.unpack(payload)[0])

    # Frames of the connection.

    def _on_priority(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != PRIORITY_SIZE:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a size other than 5")
        self._rates.take("unexpected_frames")

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with contents")
            self._rates.take("settings")
            return
        found = read_settings(payload)
        self._rates.take("settings")
        self._reader.opened = True
        for key, value in dict(found).items():  # only the last value of each has an effect
            if key == INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif key == MAX_FRAME_SIZE:
                self.outgoing.max_frame = min(value, max(frames.DEFAULT_MAX_FRAME, self._limits.write_high_water))
            elif key == HEADER_TABLE_SIZE:
                self.outgoing.needs_size_update = True
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
            self._rates.take("pings")
            self._events.on_ping_ack(payload)
            return
        if not self._events.on_ping():
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings", "too_many_pings")
        self._rates.take_refilled("pings", self.outgoing.frames_sent)
        self._control(frames.ping(payload, ack=True))

    def _on_goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of less than 8 bytes")
        self._rates.take("unexpected_frames")

    def _on_window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a size other than 4")
        increment = NUMBER.unpack(payload)[0] & STREAM_MASK
        self._rates.take_refilled("window_updates", self.outgoing.frames_sent)
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
        self._rates.take("stream_errors")
        self.reset(stream, fault.code)
        self._events.on_reset(stream, fault.code)

    def _refuse(self, number: int, code: ErrorCode) -> None:
        """Resets a stream that the owner does not know, or no more."""
        self._rates.take("stream_errors")
        self._numbers.resets_sent += 1
        self._control(frames.rst_stream(number, code))

    def _kill(self, stream: Stream) -> None:
        del self.streams[stream.id]
        stream.dead = True
        waited = bool(stream.queue)
        self.outgoing.discard(stream)
        if stream.released and waited:
            self._free()

    def _on_finished(self, stream: Stream) -> None:
        """The last byte of an answer has left. A client that is still sending is told to stop."""
        self._answered += 1
        if stream.ended:
            del self.streams[stream.id]
        else:
            self.reset(stream, ErrorCode.NO_ERROR)
        if stream.released:
            self._free()

    def _stop_early(self) -> None:
        early, self._answered_early = self._answered_early, []
        for number in early:
            if number in self._closed_streams and self.closing is None:
                self._numbers.resets_sent += 1
                self._control(frames.rst_stream(number, ErrorCode.NO_ERROR))

    def _on_overflow(self) -> None:
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
        if self.outgoing.control_queued > self._limits.max_control_queue:
            self._fail(ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "control frames are not read", "slow_reader"))
