"""What leaves on a connection: control frames at once, answers as windows and socket allow, streams in fair turns.

    frames -> [out] -> take() -> the socket
    contents that no window has room for, or that the socket has not -> the stream's queue -> in turn -> [out]

At most about ``write_high_water`` bytes of contents lie in ``out``; the rest stays with its stream, so that whoever
makes answers can be told to wait. Everything here is on one event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct

from tfs_lite.transport.http2.framing import (
    CONTINUATION,
    DATA,
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_SIZE,
    HEADERS,
    MAX_WINDOW,
    frame,
)
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers

_MESSAGE_HEAD = Struct(">BHBBIBI")
"""Of a DATA frame, followed by gRPC's prefix: not compressed, and the length."""
_PREFIX = Struct(">BI")
_SIZE_UPDATE = b"\x20"
"""HPACK: our table has no room. We never use it; a client that changes its bound is owed the word all the same."""


MAX_GONE = 64
"""Dead streams in the line, or as many as others; then all of them leave it."""


class SendQueue:
    """``wake`` is called when output comes to be, ``on_room(stream)`` when all that waited on a stream has left,
    ``on_gone(stream)`` when its last byte has, ``on_flood`` when far too much waits."""

    def __init__(
        self,
        limits: Limits,
        numbers: Numbers,
        wake: Callable[[], None],
        on_room: Callable[[Stream], None],
        on_gone: Callable[[Stream], None],
        on_flood: Callable[[], None],
    ) -> None:
        self._high_water = limits.write_high_water
        self._numbers = numbers
        self._wake = wake
        self._on_room = on_room
        self._on_gone = on_gone
        self._on_flood = on_flood
        self._max_waiting = limits.max_unsent
        self._waiting = 0
        """Bytes in the queues of all streams."""
        self._out: list[bytes | memoryview] = []
        self._size = 0
        self._awake = False
        self._line: deque[Stream] = deque()
        """Streams that have something to send and a window of their own."""
        self._gone = 0
        """How many of them are dead."""
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.max_frame = DEFAULT_MAX_FRAME
        self.owes_size_update = False
        self.paused = False
        self.control_waiting = 0
        """Bytes of control frames that wait for the socket."""
        self.answers_sent = 0
        """HEADERS and DATA frames so far; a client's PINGs are held against it."""

    # What is to be sent.

    def control(self, data: bytes) -> None:
        """A frame that no window holds back."""
        if self.paused:
            self.control_waiting += len(data)
        self._put(data)

    def answer(self, stream: Stream, opening: bytes, message: bytes, trailers: bytes) -> None:
        """All of a unary answer: ``message`` without gRPC's prefix, between two header blocks."""
        size = len(message) + 5
        if (
            self.paused
            or size > self.window
            or size > stream.window
            or size > self.max_frame
            or self._line
            or self._size >= self._high_water
            or self.owes_size_update
            or len(trailers) > DEFAULT_MAX_FRAME
        ):
            self.headers(stream, opening)
            self.data(stream, _PREFIX.pack(0, size - 5) + message)
            self.headers(stream, trailers, end=True)
            return
        self.window -= size
        number = stream.id
        self.answers_sent += 3
        stream.finished = True
        self._put(
            b"".join(
                (
                    HEAD.pack(0, len(opening), HEADERS, END_HEADERS, number),
                    opening,
                    _MESSAGE_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, number, 0, size - 5),
                    message,
                    HEAD.pack(0, len(trailers), HEADERS, END_HEADERS | END_STREAM, number),
                    trailers,
                )
            )
        )
        self._on_gone(stream)

    def headers(self, stream: Stream, block: bytes, end: bool = False) -> None:
        """After what waits on the stream."""
        if end:
            stream.finished = True
        whole = frame(HEADERS, END_HEADERS | END_STREAM if end else END_HEADERS, stream.id, block)
        if self.paused or stream.queue or self._size >= self._high_water:
            self._wait(stream, whole)
            return
        self._headers(whole)
        if end:
            self._on_gone(stream)

    def data(self, stream: Stream, payload: bytes) -> None:
        """Contents of DATA frames; ``payload`` is not empty."""
        size = len(payload)
        if (
            self.paused
            or stream.queue
            or self._line
            or size > self.window
            or size > stream.window
            or size > self.max_frame
            or self._size >= self._high_water
        ):
            self._wait(stream, memoryview(payload))
            return
        self._frame(stream, payload, size)

    # How it leaves.

    def take(self) -> list[bytes | memoryview]:
        """Everything that may go to the socket now; empty when there is nothing. To be called again until it is."""
        self._awake = False
        if self.paused:
            return []
        if self._line and self._size < self._high_water:
            self._take_turns()
        out = self._out
        if out:
            self._numbers.bytes_sent += self._size
            self._out, self._size = [], 0
        return out

    def take_last(self) -> list[bytes | memoryview]:
        """What may still be tried on a connection that ends, paused or not."""
        out, self._out, self._size = self._out, [], 0
        return out

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.control_waiting = 0
        if self._out or self._line:
            self._call()

    def forget(self, stream: Stream) -> None:
        """Nothing more is sent on it."""
        queue = stream.queue
        if queue:
            waiting = sum(map(len, queue))
            self._waiting -= waiting
            self._numbers.unsent -= waiting
            queue.clear()
        if stream.in_turn:
            self._gone += 1
            if self._gone > MAX_GONE and self._gone * 2 > len(self._line):
                self._clear_line()

    def _clear_line(self) -> None:
        """In place: the line may be gone through at the moment."""
        left = [stream for stream in self._line if not stream.dead]
        self._line.clear()
        self._line.extend(left)
        self._gone = 0

    # The client's windows.

    def widen(self, increment: int) -> bool:
        """The connection's window; False: beyond what a window may be."""
        self.window += increment
        if self.window > MAX_WINDOW:
            return False
        if self._line:
            self._call()
        return True

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """Also by a negative number, when the client changes its settings."""
        stream.window += increment
        if stream.window > MAX_WINDOW:
            return False
        if stream.queue and not stream.in_turn and stream.window > 0:
            self._line_up(stream)
        return True

    # Inside.

    def _put(self, data: bytes | memoryview) -> None:
        self._out.append(data)
        self._size += len(data)
        if not self._awake:
            self._call()

    def _call(self) -> None:
        if not self._awake and not self.paused:
            self._awake = True
            self._wake()

    def _headers(self, whole: bytes) -> None:
        """A HEADERS frame. The first one after the client has changed its table says that we use none."""
        self.answers_sent += 1
        if self.owes_size_update:
            self.owes_size_update = False
            _, _, kind, flags, number = HEAD.unpack_from(whole)
            whole = frame(kind, flags, number, _SIZE_UPDATE + whole[HEAD_SIZE:])
        if len(whole) - HEAD_SIZE > self.max_frame:
            whole = _in_pieces(whole, self.max_frame)
        self._put(whole)

    def _frame(self, stream: Stream, payload: bytes | memoryview, size: int) -> None:
        self.window -= size
        stream.window -= size
        self.answers_sent += 1
        self._put(HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, stream.id))
        self._put(payload)

    def _wait(self, stream: Stream, item: bytes | memoryview) -> None:
        if stream.dead:
            return  # the connection has ended while its answer was on the way here
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(item)
        flooded = self._waiting > self._max_waiting
        self._waiting += len(item)
        self._numbers.unsent += len(item)
        if not stream.in_turn:
            self._line_up(stream)
        if flooded:
            self._on_flood()

    def _line_up(self, stream: Stream) -> None:
        stream.in_turn = True
        self._line.append(stream)
        self._call()

    def _take_turns(self) -> None:
        """One frame for each stream in turn, until the windows, the line or the room in ``out`` are used up."""
        line = self._line
        while line and self._size < self._high_water:
            stream = line[0]
            queue = stream.queue
            if not queue or stream.dead:
                line.popleft()
                stream.in_turn = False
                self._gone -= stream.dead
                continue
            if isinstance(queue[0], memoryview) and self.window <= 0 < stream.window:
                if not self._pass_over():
                    return
                continue
            line.popleft()
            stream.in_turn = False
            self._send_one(stream, queue)

    def _pass_over(self) -> bool:
        """The connection's window is shut: only whole frames may go. False: nobody has one."""
        for _ in range(len(self._line)):
            self._line.rotate(-1)
            queue = self._line[0].queue
            if not queue or not isinstance(queue[0], memoryview):
                return True
        return False

    def _send_one(self, stream: Stream, queue: deque[bytes | memoryview]) -> None:
        item = queue[0]
        if isinstance(item, memoryview):
            size = min(len(item), self.max_frame, self.window, stream.window)
            if size <= 0:
                return  # its own window is shut; it lines up again when that opens
            if size < len(item):
                queue[0] = item[size:]
                item = item[:size]
            else:
                queue.popleft()
            self._frame(stream, item, size)
        else:
            size = len(item)
            queue.popleft()
            self._headers(item)
        self._waiting -= size
        self._numbers.unsent -= size
        if queue:
            self._line_up(stream)
        elif stream.finished:
            self._on_gone(stream)
        else:
            self._on_room(stream)


def _in_pieces(whole: bytes, max_frame: int) -> bytes:
    """A HEADERS frame that is too large for the client, as one that goes on in CONTINUATION."""
    _, _, kind, flags, number = HEAD.unpack_from(whole)
    pieces = [whole[at : at + max_frame] for at in range(HEAD_SIZE, len(whole), max_frame)]
    first, *middle, last = pieces
    return b"".join(
        (
            frame(kind, flags & ~END_HEADERS, number, first),
            *(frame(CONTINUATION, 0, number, piece) for piece in middle),
            frame(CONTINUATION, END_HEADERS, number, last),
        )
    )
