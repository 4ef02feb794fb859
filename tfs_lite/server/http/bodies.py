"""Request bodies: read with bounds on size, time and the memory of all of them together, and decompressed. Large ones,
and large answers that are compressed, take their time on threads.

A body is held in a few large blocks from its arrival until it is parsed. Its bytes, compressed and decompressed alike,
count against a budget that all bodies share. A body that exceeds it is refused, and the client may try again. The
metrics page shows the budget and the refusals.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.server.http.compression import ENCODINGS, answer_encoding, body_encoding, compress, decompress
from tfs_lite.server.http.heap_trimmer import HeapTrimmer
from tfs_lite.server.http.message import BodyCut, IncomingBody, Request, Response
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.runtime.event_loop import BackgroundRunner

T = TypeVar("T")

BLOCK = 1 << 20
"""Bytes that are gathered as they arrive, so that many small chunks cost no more than a large one."""
BODIES_IN_BUDGET = 4
"""The default budget, in bodies of the largest size."""
OLD_UPLOAD = 60.0
"""Seconds after which a body that is still arriving gives way when there is no room for another."""
SMALLEST_ANSWER = 1024
"""Bytes. Shorter answers are not worth compressing."""


@dataclass(frozen=True, slots=True)
class BodyNumbers:
    """Bytes of request bodies in memory, and the bodies refused since the start: ``too_large`` alone, ``no_room``
    together with the others, or ``too_slow`` to arrive, which are those that were cut."""

    held_bytes: int
    most_held_bytes: int
    budget_bytes: int
    too_large: int
    no_room: int
    too_slow: int


class NoRoom(ServingError):
    """UNAVAILABLE: the budget has too few bytes left."""


class BodyBudget:
    """Counts bytes against a bound, and refusals. Any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()  # guards the others
        self._held = 0
        self._most = 0
        self._refused = {"too_large": 0, "no_room": 0, "too_slow": 0}

    @property
    def numbers(self) -> BodyNumbers:
        with self._lock:
            return BodyNumbers(self._held, self._most, self._limit, **self._refused)

    def acquire(self, size: int) -> None:
        """Takes ``size`` bytes. UNAVAILABLE, with nothing taken, when too few are left."""
        with self._lock:
            held = self._held + size
            if held <= self._limit:
                self._held, self._most = held, max(held, self._most)
                return
            self._refused["no_room"] += 1
        raise NoRoom(
            StatusCode.UNAVAILABLE,
            f"request bodies take {held - size} of the {self._limit} bytes that there are for all of them together",
        )

    def has(self, size: int) -> bool:
        """Whether so many bytes are left, at a glance."""
        return self._held + size <= self._limit

    def release(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def count(self, reason: str) -> None:
        """One more that was refused for this reason."""
        with self._lock:
            self._refused[reason] += 1


class _Body:
    """The body of one request that is large, is compressed, or is still arriving. Leaving its ``with`` block returns
    its bytes to the budget, even while another thread still works on it."""

    def __init__(self, budget: BodyBudget, max_bytes: int, encoding: str | None) -> None:
        self._budget = budget
        self._max_bytes = max_bytes
        self.encoding = encoding
        self.received = 0
        """Bytes as they arrived."""
        self.decompressed = 0
        """Bytes after decompression; 0 if the body is not compressed."""
        self._blocks: deque[bytes | bytearray] = deque()
        self._lock = threading.Lock()  # guards the two below
        self._held = 0
        self._closed = False

    @property
    def size(self) -> int:
        """The larger of both."""
        return max(self.received, self.decompressed)

    def append(self, data: bytes) -> None:
        """Adds bytes as they arrive. HttpError 413 past the bound, UNAVAILABLE past the budget."""
        self.received += len(data)
        self.check(self.received)
        self._hold(len(data))
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, bytearray) and len(last) < BLOCK:
            last += data
        elif len(data) < BLOCK and last is not None:
            self._blocks.append(bytearray(data))
        else:
            self._blocks.append(data)

    def take(self) -> bytes:
        """Returns all bytes, decompressed, and forgets them. Any thread, once; slow for large bodies. INVALID_ARGUMENT
        for damaged bytes, else the errors of ``append``."""
        return b"".join(decompress(self._popped(), self.encoding, self._grow) if self.encoding else self._popped())

    def check(self, size: int) -> None:
        """HttpError 413 if a body of that size is too large."""
        if size > self._max_bytes:
            self._budget.count("too_large")
            raise HttpError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the request body is larger than {self._max_bytes} bytes, which is the most that is taken"
                + (" (after unpacking)" if self.decompressed else ""),
                413,
                {"connection": "close"},  # or the rest of it would have to be read
            )

    def _grow(self, size: int) -> None:
        self.decompressed += size
        self.check(self.decompressed)
        self._hold(size)

    def _hold(self, size: int) -> None:
        with self._lock:
            if self._closed:
                raise ServingError(StatusCode.CANCELLED, "the request has ended")  # on a thread: no caller sees it
            self._budget.acquire(size)
            self._held += size

    def _popped(self) -> Iterator[bytes | bytearray]:
        while True:
            try:
                block = self._blocks.popleft()
            except IndexError:  # also when the body was closed in the meantime
                return
            yield block

    def __enter__(self) -> _Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            held, self._held, self._closed = self._held, 0, True
        self._budget.release(held)
        self._blocks.clear()


class Bodies:
    """Reads the bodies of all requests and compresses answers. On the event loop; ``numbers`` on any thread."""

    def __init__(
        self,
        background: BackgroundRunner,
        heap: HeapTrimmer,
        max_bytes: int,
        budget_bytes: int | None = None,
        old_upload: float = OLD_UPLOAD,
    ) -> None:
        """``max_bytes`` bounds one body, before and after decompression; ``budget_bytes`` bounds all of them together
        (None: four of the largest). A body may arrive for as long as its connection waits for it; one that has been
        arriving for ``old_upload`` seconds is cut when there is no room for another."""
        self._background = background
        self._heap = heap
        self._max_bytes = max_bytes
        self._small = min(COMFORTABLE_BYTES, max_bytes)
        self._budget = BodyBudget(BODIES_IN_BUDGET * max_bytes if budget_bytes is None else budget_bytes)
        self._old_upload = old_upload
        self._arriving: dict[IncomingBody, float] = {}  # since when, the oldest first

    @property
    def numbers(self) -> BodyNumbers:
        return self._budget.numbers

    async def read(
        self, request: Request, parse: Callable[[bytes], T], refusal: StatusCode = StatusCode.UNIMPLEMENTED
    ) -> T:
        """Returns what ``parse`` makes of the whole body, decompressed; on a thread if that takes long.

        HttpError: 413 for a body that is too large (before anything is read, if Content-Length tells), 408 for one that
        does not come, 501 for an unknown Content-Encoding, or 415 where ``refusal`` is INVALID_ARGUMENT. UNAVAILABLE
        past the budget, INVALID_ARGUMENT for damaged bytes, and the errors of ``parse``."""
        body = self.small(request)
        return parse(body) if body is not None else await self._read_slowly(request, parse, refusal)

    def small(self, request: Request) -> bytes | None:
        """The body, if it has come whole, is small, not compressed and within the budget; any other is to be read."""
        body = request.body
        size = body.held
        if not body.complete or size > self._small or b"content-encoding" in request.headers.fields:
            return None
        return body.take() if self._budget.has(size) else None

    async def pack(self, response: Response, accept_encoding: str, offered: Collection[str] = ENCODINGS) -> None:
        """Compresses an answer that is worth it with the encoding that the client prefers of those ``offered``; leaves
        it as it is when all threads are busy."""
        data = response.body
        if len(data) <= SMALLEST_ANSWER:
            return
        response.headers["vary"] = "Accept-Encoding"
        encoding = answer_encoding(accept_encoding, offered)
        if encoding is None:
            return
        try:
            if len(data) > COMFORTABLE_BYTES:
                response.body = await self._background.run(lambda: compress(data, encoding))
            else:
                response.body = compress(data, encoding)
        except ServingError:
            return
        response.headers["content-encoding"] = encoding

    async def _read_slowly(self, request: Request, parse: Callable[[bytes], T], refusal: StatusCode) -> T:
        headers = request.headers
        encoding = body_encoding(headers.get("content-encoding"), refusal)
        with _Body(self._budget, self._max_bytes, encoding) as body:
            body.check(int(headers.get("content-length", "0")))
            try:
                await self._receive(request.body, body)
                large = encoding is not None or body.size > COMFORTABLE_BYTES
                return await self._background.run(lambda: parse(body.take())) if large else parse(body.take())
            except NoRoom:
                self._make_room(time.monotonic())
                raise
            finally:
                self._heap.note(body.size)

    async def _receive(self, arriving: IncomingBody, body: _Body) -> None:
        self._arriving[arriving] = time.monotonic()
        try:
            while data := await arriving.next():
                body.append(data)
        except BodyCut as why:
            self._budget.count("too_slow")
            raise HttpError(
                StatusCode.DEADLINE_EXCEEDED,
                f"the request body did not arrive whole, {body.received} bytes came: {why}",
                408,
                {"connection": "close"},
            ) from None
        finally:
            del self._arriving[arriving]

    def _make_room(self, now: float) -> None:
        """Makes room for requests to come: otherwise a few clients who send their bodies a byte at a time could hold
        the whole budget for ever."""
        arriving, since = next(iter(self._arriving.items()), (None, now))
        if arriving is not None and now - since >= self._old_upload:
            arriving.cut(f"after {now - since:.0f} s other requests need the memory")


class BodyCollector(Collector):
    """Reads the numbers once per page, on the thread that makes the page."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._bodies.numbers
        yield GaugeMetricFamily("tfs_lite_http_body_bytes", "Request bodies in memory.", now.held_bytes)
        yield GaugeMetricFamily("tfs_lite_http_body_room_bytes", "What they may take together.", now.budget_bytes)
        refused = CounterMetricFamily("tfs_lite_http_bodies_refused", "Request bodies refused.", labels=("reason",))
        for reason, count in (("too_large", now.too_large), ("no_room", now.no_room), ("too_slow", now.too_slow)):
            refused.add_metric((reason,), count)
        yield refused
