"""The output of a connection: control frames at once, answers as windows and socket allow, streams in fair turns.

    frames -> [output] -> take() -> the socket
    data that does not fit the windows, or the socket's buffer -> the stream's queue -> a ready stream -> [output]

About ``write_high_water`` bytes at most are in the output; the rest stays in the queue of its stream, so that a handler
can be made to wait. Everything here is on one event loop.
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
"""The head of a DATA frame, followed by gRPC's prefix: not compressed, and the length."""
_PREFIX = Struct(">BI")
_SIZE_UPDATE = b"\x20"
"""HPACK: the server uses no table. It has to say so when a client changes the largest size of the table."""
MAX_DEAD = 64
"""The most dead streams among the ready ones before they are removed; or half of the ready ones if that is more."""


class SendQueue:
    """Calls ``wake`` when there is output, ``on_writable(stream)`` when a stream's queue is empty again,
    ``on_finished(stream)`` when its last byte has left, and ``on_overflow`` when too much is queued."""

    def __init__(
        self,
        limits: Limits,
        numbers: Numbers,
        *,
        wake: Callable[[], None],
        on_writable: Callable[[Stream], None],
        on_finished: Callable[[Stream], None],
        on_overflow: Callable[[], None],
    ) -> None:
        self._high_water = limits.write_high_water
        self._numbers = numbers
        self._wake = wake
        self._on_writable = on_writable
        self._on_finished = on_finished
        self._on_overflow = on_overflow
        self._max_queued = limits.max_unsent
        self._queued = 0
        """Bytes in the queues of all streams."""
        self._output: list[bytes | memoryview] = []
        self._size = 0
        self._woken = False
        self._ready_streams: deque[Stream] = deque()
        """Streams that have something queued and an open window of their own."""
        self._dead_scheduled = 0
        """How many of the ready streams are dead."""
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.max_frame = DEFAULT_MAX_FRAME
        self.needs_size_update = False
        self.paused = False
        self.control_queued = 0
        """Bytes of control frames that wait for the socket."""
        self.frames_sent = 0
        """HEADERS and DATA frames so far, which allow a client's PINGs and WINDOW_UPDATEs."""

    # What the connection sends.

    def control(self, data: bytes) -> None:
        """Sends a frame to which no window applies."""
        if self.paused:
            self.control_queued += len(data)
        self._append(data)

    def answer(self, stream: Stream, headers: bytes, message: bytes, trailers: bytes) -> None:
        """Sends a whole unary answer: ``message``, to which gRPC's prefix is added, between two header blocks."""
        size = len(message) + 5
        if (
            self.paused
            or size > self.window
            or size > stream.window
            or size > self.max_frame
            or self._ready_streams
            or self._size >= self._high_water
            or self.needs_size_update
            or len(trailers) > DEFAULT_MAX_FRAME
        ):
            self.headers(stream, headers)
            self.data(stream, _PREFIX.pack(0, size - 5) + message)
            self.headers(stream, trailers, end=True)
            return
        self.window -= size
        number = stream.id
        self.frames_sent += 3
        stream.finished = True
        self._append(
            b"".join(
                (
                    HEAD.pack(0, len(headers), HEADERS, END_HEADERS, number),
                    headers,
                    _MESSAGE_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, number, 0, size - 5),
                    message,
                    HEAD.pack(0, len(trailers), HEADERS, END_HEADERS | END_STREAM, number),
                    trailers,
                )
            )
        )
        self._on_finished(stream)

    def headers(self, stream: Stream, block: bytes, end: bool = False) -> None:
        """Sends HEADERS after what is queued on the stream."""
        if end:
            stream.finished = True
        whole = frame(HEADERS, END_HEADERS | END_STREAM if end else END_HEADERS, stream.id, block)
        if self.paused or stream.queue or self._size >= self._high_water:
            self._enqueue(stream, whole)
            return
        self._send_headers(whole)
        if end:
            self._on_finished(stream)

    def headers_only(self, number: int, block: bytes) -> None:
        """Ends a stream on which nothing was sent, and nothing else will be."""
        self._send_headers(frame(HEADERS, END_HEADERS | END_STREAM, number, block))

    def data(self, stream: Stream, payload: bytes) -> None:
        """Sends ``payload``, which is not empty, in DATA frames."""
        size = len(payload)
        if (
            self.paused
            or stream.queue
            or self._ready_streams
            or size > self.window
            or size > stream.window
            or size > self.max_frame
            or self._size >= self._high_water
        ):
            self._enqueue(stream, memoryview(payload))
            return
        self._send_data(stream, payload, size)

    # How it leaves.

    def take(self) -> list[bytes | memoryview]:
        """Returns the bytes that may be written to the socket now. The caller repeats it until it is empty."""
        self._woken = False
        if self.paused:
            return []
        if self._ready_streams and self._size < self._high_water:
            self._send_scheduled()
        out = self._output
        if out:
            self._numbers.bytes_sent += self._size
            self._output, self._size = [], 0
        return out

    def take_last(self) -> list[bytes | memoryview]:
        """The rest of the output of a connection that ends, even if writing is paused."""
        out, self._output, self._size = self._output, [], 0
        return out

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.control_queued = 0
        if self._output or self._ready_streams:
            self._request_write()

    def discard(self, stream: Stream) -> None:
        """Drops what is queued on a stream that is dead."""
        queue = stream.queue
        if queue:
            waiting = sum(map(len, queue))
            self._queued -= waiting
            self._numbers.unsent -= waiting
            queue.clear()
        if stream.scheduled:
            self._dead_scheduled += 1
            if self._dead_scheduled > MAX_DEAD and self._dead_scheduled * 2 > len(self._ready_streams):
                self._drop_dead()

    def _drop_dead(self) -> None:
        """Changes the deque in place, since the caller may be iterating over it."""
        left = [stream for stream in self._ready_streams if not stream.dead]
        self._ready_streams.clear()
        self._ready_streams.extend(left)
        self._dead_scheduled = 0

    # The client's windows.

    def widen(self, increment: int) -> bool:
        """Widens the connection's window. False: it is larger than HTTP/2 allows."""
        self.window += increment
        if self.window > MAX_WINDOW:
            return False
        if self._ready_streams:
            self._request_write()
        return True

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """Widens a stream's window, or narrows it by a negative number. False: it is larger than HTTP/2 allows."""
        stream.window += increment
        if stream.window > MAX_WINDOW:
            return False
        if stream.queue and not stream.scheduled and stream.window > 0:
            self._schedule(stream)
        return True

    # Inside.

    def _append(self, data: bytes | memoryview) -> None:
        self._output.append(data)
        self._size += len(data)
        if not self._woken:
            self._request_write()

    def _request_write(self) -> None:
        if not self._woken and not self.paused:
            self._woken = True
            self._wake()

    def _send_headers(self, whole: bytes) -> None:
        """Sends a HEADERS frame. The first one after a change of the client's table size says that no table is used."""
        self.frames_sent += 1
        if self.needs_size_update:
            self.needs_size_update = False
            _, _, kind, flags, number = HEAD.unpack_from(whole)
            whole = frame(kind, flags, number, _SIZE_UPDATE + whole[HEAD_SIZE:])
        if len(whole) - HEAD_SIZE > self.max_frame:
            whole = _split_headers(whole, self.max_frame)
        self._append(whole)

    def _send_data(self, stream: Stream, payload: bytes | memoryview, size: int) -> None:
        self.window -= size
        stream.window -= size
        self.frames_sent += 1
        self._append(HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, stream.id))
        self._append(payload)

    def _enqueue(self, stream: Stream, item: bytes | memoryview) -> None:
        if stream.dead:
            return  # the connection ended while its answer was being made
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(item)
        overflow = self._queued > self._max_queued
        self._queued += len(item)
        self._numbers.unsent += len(item)
        if not stream.scheduled:
            self._schedule(stream)
        if overflow:
            self._on_overflow()

    def _schedule(self, stream: Stream) -> None:
        stream.scheduled = True
        self._ready_streams.append(stream)
        self._request_write()

    def _send_scheduled(self) -> None:
        """Sends one frame for each ready stream in turn, while windows and the room in the output allow."""
        ready = self._ready_streams
        while ready and self._size < self._high_water:
            stream = ready[0]
            queue = stream.queue
            if not queue or stream.dead:
                ready.popleft()
                stream.scheduled = False
                self._dead_scheduled -= stream.dead
                continue
            if isinstance(queue[0], memoryview) and self.window <= 0 < stream.window:
                if not self._skip_blocked():
                    return
                continue
            ready.popleft()
            stream.scheduled = False
            self._send_next(stream, queue)

    def _skip_blocked(self) -> bool:
        """Brings a stream to the front whose next item is a whole frame, since the connection's window is shut. False:
        there is none."""
        for _ in range(len(self._ready_streams)):
            self._ready_streams.rotate(-1)
            queue = self._ready_streams[0].queue
            if not queue or not isinstance(queue[0], memoryview):
                return True
        return False

    def _send_next(self, stream: Stream, queue: deque[bytes | memoryview]) -> None:
        item = queue[0]
        if isinstance(item, memoryview):
            size = min(len(item), self.max_frame, self.window, stream.window)
            if size <= 0:
                return  # its own window is shut; it is scheduled again when that opens
            if size < len(item):
                queue[0] = item[size:]
                item = item[:size]
            else:
                queue.popleft()
            self._send_data(stream, item, size)
        else:
            size = len(item)
            queue.popleft()
            self._send_headers(item)
        self._queued -= size
        self._numbers.unsent -= size
        if queue:
            self._schedule(stream)
        elif stream.finished:
            self._on_finished(stream)
        else:
            self._on_writable(stream)


def _split_headers(whole: bytes, max_frame: int) -> bytes:
    """Splits a HEADERS frame that is too large for the client into HEADERS and CONTINUATION."""
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
