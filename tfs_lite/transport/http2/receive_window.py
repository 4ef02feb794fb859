"""What a client may still send (RFC 9113, section 5.2): the windows that we keep open, and the words that widen them.

The connection's window opens again as soon as contents have come, so that one stream that nobody reads does not hold up
the others; a stream's when its owner has used them up. What a client can leave unread here is therefore bounded by its
streams' windows. A window is widened when half of it is owed, not for every frame.
"""

from __future__ import annotations

from collections.abc import Callable

from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.http2.framing import window_update
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.limits import Limits


class ReceiveWindow:
    """``control`` sends a frame."""

    __slots__ = ("_control", "_owed", "_size", "_window")

    def __init__(self, limits: Limits, control: Callable[[bytes], None]) -> None:
        self._control = control
        self._size = limits.connection_window
        self._window = self._size
        self._owed = 0

    def took(self, size: int) -> None:
        """So many bytes of DATA frames, padding included, have come on the connection. Raises ConnectionFault."""
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self._owed += size
        if self._owed * 2 >= self._size:
            increment, self._owed = self._owed, 0
            self._window += increment
            self._control(window_update(0, increment))

    def credit(self, stream: Stream, count: int) -> None:
        """The owner has used up so many bytes that came on the stream."""
        if stream.ended or stream.dead:
            return
        stream.receive_owed += count
        if stream.receive_owed * 2 >= stream.receive_target:
            self._grant(stream)

    def widen(self, stream: Stream, window: int) -> None:
        """The client may have so many bytes on their way on this stream, from now on."""
        if window > stream.receive_target and not (stream.ended or stream.dead):
            stream.receive_owed += window - stream.receive_target
            stream.receive_target = window
            self._grant(stream)

    def _grant(self, stream: Stream) -> None:
        increment, stream.receive_owed = stream.receive_owed, 0
        stream.receive_window += increment
        self._control(window_update(stream.id, increment))
