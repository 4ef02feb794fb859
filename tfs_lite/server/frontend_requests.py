"""The client's messages of one call on their way from a gRPC frontend to the handler in the server.

    client -> the frontend's Window: may another one go? -> wire -> Requests: those that wait for the handler -> handler
                      ^------------------------- credit for those that it took <-------------'

Both ends keep to the same bounds: ``wire.WINDOW`` messages on their way, and none is added to ``wire.WINDOW_BYTES`` of
them. One message of any size can always go.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_wire import WireError

MAX_METADATA = wire.MAX_INLINE
"""Bytes of a client's metadata on the wire."""


class Window:
    """The frontend's end. ``open`` is set while another message may be sent."""

    __slots__ = ("_bytes", "_sizes", "open")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self.open = asyncio.Event()
        self.open.set()

    def sent(self, size: int) -> None:
        self._sizes.append(size)
        self._bytes += size
        if not self._has_room():
            self.open.clear()

    def credit(self, messages: int) -> None:
        """The handler took so many, the oldest ones. WireError if there are not so many."""
        if not 0 < messages <= len(self._sizes):
            raise WireError(f"credit for {messages} messages, of {len(self._sizes)}")
        for _ in range(messages):
            self._bytes -= self._sizes.popleft()
        if self._has_room():
            self.open.set()

    def _has_room(self) -> bool:
        return len(self._sizes) < wire.WINDOW and self._bytes < wire.WINDOW_BYTES


class Requests:
    """The server's end: an iterator of the messages, which ends behind the last one. ``put`` -> ``end``, on the event
    loop; ``credit`` is called with the number of messages that the handler took, now and then. One reader."""

    __slots__ = ("_bytes", "_came", "_credit", "_ended", "_taken", "_taken_bytes", "_waiting")

    def __init__(self, credit: Callable[[int], None]) -> None:
        self._credit = credit
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._taken = self._taken_bytes = 0
        self._came = asyncio.Event()
        self._ended = False

    def put(self, message: bytes) -> None:
        """WireError for a message that may not come now."""
        if self._ended:
            raise WireError("a message behind the last one")
        if len(self._waiting) >= wire.WINDOW or self._bytes >= wire.WINDOW_BYTES:
            raise WireError(f"a message behind {len(self._waiting)} others with {self._bytes} bytes")
        self._waiting.append(message)
        self._bytes += len(message)
        self._came.set()

    def last(self) -> None:
        """The client has said its last word."""
        if self._ended:
            raise WireError("a second last word")
        self.end()

    def end(self) -> None:
        """Nothing more comes, and no credit is given any more. May be called again."""
        self._ended = True
        self._came.set()

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> bytes:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        message = self._waiting.popleft()
        self._bytes -= len(message)
        self._take(len(message))
        return message

    def _take(self, size: int) -> None:
        """Credit in few frames, but before the window can be full of what was taken."""
        self._taken += 1
        self._taken_bytes += size
        if not self._ended and (self._taken >= wire.WINDOW // 2 or self._taken_bytes >= wire.WINDOW_BYTES // 2):
            self._credit(self._taken)
            self._taken = self._taken_bytes = 0


def pack_metadata(metadata: Mapping[str, str]) -> bytes:
    """RESOURCE_EXHAUSTED if it is more than goes over the wire."""
    packed = json.dumps(dict(metadata)).encode()
    if len(packed) > MAX_METADATA:
        message = f"the call's metadata has {len(packed)} bytes between our processes, more than {MAX_METADATA}"
        raise ServingError(StatusCode.RESOURCE_EXHAUSTED, message)
    return packed


def unpack_metadata(packed: bytes) -> dict[str, str]:
    """WireError if it is none."""
    found = None
    if len(packed) <= MAX_METADATA:
        try:
            found = json.loads(packed)
        except (ValueError, RecursionError):
            pass
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise WireError(f"{len(packed)} bytes that are no metadata")
    return found
