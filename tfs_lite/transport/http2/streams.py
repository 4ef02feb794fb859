"""One stream of a connection: how far both sides are, their windows, and what waits to be sent on it; and the streams
that are no more, but whose last frames may still be on their way."""

from __future__ import annotations

from collections import deque
from typing import Any

from tfs_lite.transport.http2.errors import ErrorCode, StreamFault

MAX_GRAVES = 1000


class Stream:
    """Changed by the connection only; ``call`` belongs to whoever answers.

        open -> ended (the client has said its last word) -> finished (so have we) -> gone
        any of them -> dead (RST_STREAM, or the end of the connection)

    ``place`` is taken from the start until nothing is left to send and ``release`` was called.
    """

    __slots__ = (
        "call",
        "dead",
        "ended",
        "expects",
        "finished",
        "id",
        "in_turn",
        "queue",
        "receive_owed",
        "receive_target",
        "receive_window",
        "released",
        "window",
    )

    def __init__(self, number: int, window: int, receive_window: int) -> None:
        self.id = number
        self.window = window
        """Bytes that the client still takes; below 0 after it has made its window smaller."""
        self.receive_window = receive_window
        """Bytes that the client may still send."""
        self.receive_target = receive_window
        """What the window is filled up to again."""
        self.receive_owed = 0
        """Bytes that were used up, and that the client has not been told about."""
        self.expects = -1
        """Bytes that ``content-length`` has promised and that have not come; -1: nothing was promised."""
        self.queue: deque[bytes | memoryview] | None = None
        """Whole frames (bytes) and contents of DATA (memoryview), in order; None: nothing has had to wait yet."""
        self.in_turn = False
        """Whether it is in the line of streams that send."""
        self.ended = False
        self.finished = False
        self.dead = False
        self.released = False
        self.call: Any = None

    @property
    def has_room(self) -> bool:
        """Nothing waits."""
        return not self.queue


def fault_of_data(stream: Stream, contents: int, ended: bool) -> StreamFault | None:
    """What is wrong with a DATA frame, if anything is. Books what ``content-length`` has promised."""
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
    """The streams of one connection that we have reset, with what their clients could have sent by then."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._left

    def bury(self, number: int, window: int) -> None:
        self._left[number] = window
        if len(self._left) > MAX_GRAVES:
            del self._left[next(iter(self._left))]

    def expect(self, number: int, size: int) -> bool:
        """Contents have come: whether they were under way, within the stream's window."""
        left = self._left[number] - size
        if size == 0 or left < 0:
            return False
        self._left[number] = left
        return True
