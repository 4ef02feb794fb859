"""One stream of a connection: its state, its windows and its queue; and closed streams, for which frames may still be
on their way."""

from __future__ import annotations

from collections import deque
from typing import Any

from tfs_lite.transport.http2.errors import ErrorCode, StreamFault

LEAST_REMEMBERED, MOST_REMEMBERED = 1000, 10_000
"""The bounds on how many closed streams one connection remembers: as many as there may be open ones, within these."""


class Stream:
    """A stream, changed by the connection only, except for ``call``, which belongs to the connection's owner.

        open -> ended (END_STREAM from the client) -> finished (END_STREAM from the server) -> gone
        any of them -> dead (RST_STREAM, or the end of the connection)

    It counts towards the connection's streams until everything was sent and ``release`` was called.
    """

    __slots__ = (
        "call",
        "dead",
        "ended",
        "expects",
        "finished",
        "id",
        "queue",
        "receive_target",
        "receive_uncredited",
        "receive_window",
        "released",
        "scheduled",
        "window",
    )

    def __init__(self, number: int, window: int, receive_window: int) -> None:
        self.id = number
        self.window = window
        """Bytes that the server may send; negative after the client has made its window smaller."""
        self.receive_window = receive_window
        """Bytes that the client may still send."""
        self.receive_target = receive_window
        """The size to which the window is credited again."""
        self.receive_uncredited = 0
        """Bytes that were consumed and not credited yet."""
        self.expects = -1
        """Bytes of ``content-length`` that have not arrived; -1 without one."""
        self.queue: deque[bytes | memoryview] | None = None
        """Whole frames (bytes) and contents of DATA (memoryview), in order; None until something has to wait."""
        self.scheduled = False
        """Whether it is among the send queue's ready streams."""
        self.ended = False
        self.finished = False
        self.dead = False
        self.released = False
        self.call: Any = None


def fault_of_data(stream: Stream, contents: int, ended: bool) -> StreamFault | None:
    """The fault of a DATA frame, or None. Subtracts its contents from ``stream.expects``."""
    if stream.ended:
        return StreamFault(ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
    if stream.receive_window < 0:
        return StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
    if stream.expects >= 0:
        stream.expects -= contents
        if stream.expects < 0 or (ended and stream.expects):
            return StreamFault(ErrorCode.PROTOCOL_ERROR, "content-length promised something else")
    return None


class ClosedStreams:
    """The streams of one connection that the server has ended and the client has not, with the data that the client may
    have sent before it heard of that."""

    __slots__ = ("_left", "_most")

    def __init__(self, max_streams: int) -> None:
        self._left: dict[int, int] = {}
        self._most = min(max(max_streams, LEAST_REMEMBERED), MOST_REMEMBERED)

    def __contains__(self, number: int) -> bool:
        return number in self._left

    def remember(self, number: int, window: int) -> None:
        self._left[number] = window
        if len(self._left) > self._most:
            del self._left[next(iter(self._left))]

    def forget(self, number: int) -> None:
        """The client has ended it, too."""
        self._left.pop(number, None)

    def accept(self, number: int, size: int, ended: bool) -> bool:
        """Whether late data of a closed stream is within the window that the client had; ``ended``: it is the last."""
        left = self._left[number] - size
        if ended and left >= 0:
            self.forget(number)
            return True
        if size == 0 or left < 0:
            return False
        self._left[number] = left
        return True
