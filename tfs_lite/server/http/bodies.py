"""Request bodies: read with bounds on size, time and the memory of all of them together, and unpacked if need be.

A body is held in a few large blocks from its arrival until it is parsed. Its bytes count against the room that all
bodies share, packed and unpacked alike; a body that finds no room is refused, and the client may try again.

What the metrics page says about request bodies over HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.compression import is_gzip, unpack
from tfs_lite.server.http.replies import HttpError

BLOCK = 1 << 20
"""Bytes that are put together as they arrive, so that small pieces cost no more than large ones."""
BODIES_IN_ROOM = 4
"""As many of the largest bodies have room at once."""
BODY_SECONDS = 60.0


class ClientDisconnected(HttpError):
    """The client closed the connection before it had its answer: CANCELLED, and nobody reads it."""

    def __init__(self) -> None:
        super().__init__(StatusCode.CANCELLED, "the client has gone", 499)


@dataclass(frozen=True, slots=True)
class BodyNumbers:
    """Request bodies in memory now, and how many were refused since the start: because one alone was too large, because
    others took the room, because it did not arrive in time."""

    held_bytes: int
    most_held_bytes: int
    room_bytes: int
    too_large: int
    no_room: int
    too_slow: int


class Room:
    """Counts bytes against a bound, and refusals. Any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()  # guards the others
        self._held = 0
        self._most = 0
        self._too_large = 0
        self._no_room = 0
        self._too_slow = 0

    @property
    def numbers(self) -> BodyNumbers:
        with self._lock:
            return BodyNumbers(self._held, self._most, self._limit, self._too_large, self._no_room, self._too_slow)

    def take(self, size: int) -> None:
        """UNAVAILABLE, with nothing taken, when there is too little left."""
        with self._lock:
            held = self._held + size
            if held <= self._limit:
                self._held, self._most = held, max(held, self._most)
                return
            self._no_room += 1
        raise ServingError(
            StatusCode.UNAVAILABLE,
            f"request bodies take {held - size} of the {self._limit} bytes that there are for all of them together",
        )

    def give(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def count_too_large(self) -> None:
        with self._lock:
            self._too_large += 1

    def count_too_slow(self) -> None:
        with self._lock:
            self._too_slow += 1


class Body:
    """The body of one request. Leave its ``with`` block as soon as it is parsed: that gives its room back, whatever
    another thread is still doing with it."""

    def __init__(self, room: Room, max_bytes: int, packed: bool) -> None:
        self._room = room
        self._max_bytes = max_bytes
        self.packed = packed
        self.size = 0
        """Bytes as they came."""
        self.unpacked_size = 0
        """Bytes that became of them, if they were packed."""
        self._blocks: deque[bytes | bytearray] = deque()
        self._lock = threading.Lock()  # guards the two below
        self._held = 0
        self._closed = False

    def append(self, data: bytes) -> None:
        """As they come. HttpError 413 past the bound, UNAVAILABLE without room."""
        self.size += len(data)
        self.check(self.size)
        self._hold(len(data))
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, bytearray) and len(last) < BLOCK:
            last += data
        elif len(data) < BLOCK and last is not None:
            self._blocks.append(bytearray(data))
        else:
            self._blocks.append(data)

    def take(self) -> bytes:
        """All bytes, unpacked; the body forgets them. Any thread, once; slow for large ones. INVALID_ARGUMENT for gzip
        that is none, else as ``append``."""
        blocks = unpack(self._popped(), self._grow) if self.packed else self._popped()
        return b"".join(blocks)

    def check(self, size: int) -> None:
        """HttpError 413 if a body of that size is too large."""
        if size > self._max_bytes:
            self._room.count_too_large()
            raise HttpError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the request body is larger than {self._max_bytes} bytes, which is the most that is taken"
                + (" (after unpacking)" if self.unpacked_size else ""),
                413,
                {"Connection": "close"},  # or the rest of it would have to be read
            )

    def close(self) -> None:
        with self._lock:
            held, self._held, self._closed = self._held, 0, True
        self._room.give(held)
        self._blocks.clear()

    def _grow(self, size: int) -> None:
        self.unpacked_size += size
        self.check(self.unpacked_size)
        self._hold(size)

    def _hold(self, size: int) -> None:
        with self._lock:
            if self._closed:
                raise ClientDisconnected
            self._room.take(size)
            self._held += size

    def _popped(self) -> Iterator[bytes | bytearray]:
        while True:
            try:
                block = self._blocks.popleft()
            except IndexError:  # also when it is closed meanwhile
                return
            yield block

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BodyReader:
    """Reads the bodies of all requests. Sizes are in bytes, and hold before and after unpacking; ``seconds`` is how
    long one may take to arrive. On the event loop; ``numbers`` on any thread."""

    def __init__(self, max_bytes: int, room_bytes: int | None = None, seconds: float = BODY_SECONDS) -> None:
        self._max_bytes = max_bytes
        self._room = Room(BODIES_IN_ROOM * max_bytes if room_bytes is None else room_bytes)
        self._seconds = seconds

    @property
    def numbers(self) -> BodyNumbers:
        return self._room.numbers

    def hold(self, size: int) -> None:
        """Takes room for a body that is there and not packed. HttpError 413, UNAVAILABLE as in ``read``."""
        if size > self._max_bytes:
            Body(self._room, self._max_bytes, packed=False).check(size)
        self._room.take(size)

    def give(self, size: int) -> None:
        """Gives it back."""
        self._room.give(size)

    async def read(self, request: Request) -> Body:
        """The whole body, to be closed by the caller. HttpError: 415 for an unknown Content-Encoding, 413 for a body
        that is too large (before anything is read, if it says so), 408 for one that takes too long. UNAVAILABLE without
        room, ClientGone when it breaks off."""
        headers = request.headers
        body = Body(self._room, self._max_bytes, is_gzip(headers.get("content-encoding", "")))
        body.check(int(headers.get("content-length", 0)))
        try:
            async with asyncio.timeout(self._seconds):
                await _collect(request, body)
        except TimeoutError:
            self._room.count_too_slow()
            size = body.size
            body.close()
            raise HttpError(
                StatusCode.DEADLINE_EXCEEDED,
                f"the request body did not arrive within {self._seconds:g} s: {size} bytes came",
                408,
                {"Connection": "close"},
            ) from None
        except BaseException:
            body.close()
            raise
        return body


async def _collect(request: Request, body: Body) -> None:
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        data = message.get("body", b"")
        if data:
            body.append(data)
        more = message.get("more_body", False)


class BodyCollector(Collector):
    """Reads the numbers once per page, on the thread that makes the page."""

    def __init__(self, numbers: Callable[[], BodyNumbers]) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._numbers()
        yield GaugeMetricFamily("tfs_lite_http_body_bytes", "Request bodies in memory.", now.held_bytes)
        yield GaugeMetricFamily("tfs_lite_http_body_room_bytes", "What they may take together.", now.room_bytes)
        refused = CounterMetricFamily("tfs_lite_http_bodies_refused", "Request bodies refused.", labels=("reason",))
        for reason, count in (("too_large", now.too_large), ("no_room", now.no_room), ("too_slow", now.too_slow)):
            refused.add_metric((reason,), count)
        yield refused
