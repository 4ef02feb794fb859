"""Flow control of what a client sends (RFC 9113, section 5.2): the windows that the server grants, and WINDOW_UPDATE.

The connection's window is credited as soon as data arrives, so that one stream that is not read does not block the
others; a stream's window when its owner has consumed the data. Unread data is therefore bounded by the windows of the
streams. WINDOW_UPDATE is sent when half of a window is to be credited, not for every frame.
"""

from __future__ import annotations

from collections.abc import Callable

from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.http2.framing import window_update
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.limits import Limits


class ReceiveWindow:
    """The receive windows of one connection. ``control`` sends a frame."""

    __slots__ = ("_control", "_size", "_uncredited", "_window")

    def __init__(self, limits: Limits, control: Callable[[bytes], None]) -> None:
        self._control = control
        self._size = limits.connection_window
        self._window = self._size
        self._uncredited = 0

    def received(self, size: int) -> None:
        """Counts bytes of a DATA frame, padding included. Raises ConnectionFault beyond the connection's window."""
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self._uncredited += size
        if self._uncredited * 2 >= self._size:
            increment, self._uncredited = self._uncredited, 0
            self._window += increment
            self._control(window_update(0, increment))

    def credit(self, stream: Stream, count: int) -> None:
        """Counts bytes of the stream that its owner has consumed."""
        if stream.ended or stream.dead:
            return
        stream.receive_uncredited += count
        if stream.receive_uncredited * 2 >= stream.receive_target:
            self._grant(stream)

    def widen(self, stream: Stream, window: int) -> None:
        """Enlarges the stream's window to this size for good."""
        if window > stream.receive_target and not (stream.ended or stream.dead):
            stream.receive_uncredited += window - stream.receive_target
            stream.receive_target = window
            self._grant(stream)

    def _grant(self, stream: Stream) -> None:
        increment, stream.receive_uncredited = stream.receive_uncredited, 0
        stream.receive_window += increment
        self._control(window_update(stream.id, increment))
