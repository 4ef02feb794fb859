"""Predictions over HTTP in flight. Each ends by its answer, its deadline, a disconnect or the server's end.

A call runs in the task of its request. To end it from outside, an error is left with the call and the task is
cancelled; the error then replaces the cancellation, so that it is answered and counted like any other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, cast

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import RequestRecord
from tfs_lite.server.http.replies import ClientDisconnected
from tfs_lite.transport.deadlines import Deadlines

Receive = Callable[[], Awaitable[Any]]


class HttpCall:
    """One prediction, as a ``with`` block of its task. ``deadline`` is in seconds of ``time.monotonic``."""

    __slots__ = ("_calls", "_reason", "_record", "_task", "_watch", "deadline")

    def __init__(self, calls: HttpCalls, deadline: float | None, record: RequestRecord | None = None) -> None:
        """``record`` tells which reason a missed deadline has."""
        self._calls = calls
        self._record = record
        self.deadline = deadline
        self._reason: ServingError | None = None
        self._task: asyncio.Task[Any]
        self._watch: asyncio.Task[None] | None = None

    def end(self, reason: ServingError) -> None:
        """Cancels the block, which then raises ``reason``. Only the first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    def disconnect(self) -> None:
        """Ends the call because the client has disconnected."""
        self.end(ClientDisconnected())

    def expire(self) -> None:
        """Ends the call because its deadline has passed."""
        late = self._record.late if self._record is not None else None
        message = "the deadline passed before the request was answered"
        self.end(ServingError(StatusCode.DEADLINE_EXCEEDED, message, late))

    def watch(self, receive: Receive) -> None:
        """From now on a disconnect ends the call. The request must have been read, so that nothing else arrives."""
        self._watch = asyncio.get_running_loop().create_task(self._until_disconnect(receive))

    async def _until_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnect()

    def __enter__(self) -> HttpCall:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._calls.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._calls.remove(self)
        if self._reason is not None and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise self._reason


class HttpCalls:
    """All predictions in flight. On the event loop."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._deadlines: Deadlines[HttpCall] | None = None
        self._in_flight: set[HttpCall] = set()
        self._draining = False
        self._idle: asyncio.Event | None = None
        """Set when the last call has ended; made by ``drain``."""

    def call(self, record: RequestRecord | None = None) -> HttpCall:
        """A call for a request whose head has just arrived: its time runs from now."""
        return HttpCall(self, None if self._timeout is None else time.monotonic() + self._timeout, record)

    def add(self, call: HttpCall) -> None:
        """UNAVAILABLE while the server drains."""
        if self._draining:
            raise _stopping()
        self._in_flight.add(call)
        if call.deadline is not None:
            if self._deadlines is None:
                self._deadlines = Deadlines(asyncio.get_running_loop(), HttpCall.expire)
            self._deadlines.add(call, call.deadline)

    def remove(self, call: HttpCall) -> None:
        self._in_flight.discard(call)
        if self._deadlines is not None:
            self._deadlines.discard(call)
        if self._idle is not None and not self._in_flight:
            self._idle.set()

    async def drain(self, grace: float) -> None:
        """Refuses new calls and returns when those in flight are answered; after ``grace`` seconds they are answered
        UNAVAILABLE. A second call with a shorter grace makes the first one return sooner."""
        self._draining = True
        if not self._in_flight:
            return
        self._idle = self._idle or asyncio.Event()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            for call in list(self._in_flight):
                call.end(_stopping())
            await self._idle.wait()


def _stopping() -> ServingError:
    return ServingError(StatusCode.UNAVAILABLE, "the server is being stopped")
