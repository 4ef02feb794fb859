"""Predictions over HTTP that are inside: each ends by its answer, its deadline, the client's going or the server's end.

A call runs in the task of its request. Whoever ends it from outside leaves an error and cancels the task; the error
takes the place of the cancellation, so that it is told and counted like any other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, cast

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import RequestRecord
from tfs_lite.server.http.bodies import ClientDisconnected
from tfs_lite.transport.deadlines import Deadlines

Receive = Callable[[], Awaitable[Any]]


class Call:
    """One prediction, as a ``with`` block of its task. ``deadline`` is in seconds of ``time.monotonic``, the loop's
    clock."""

    __slots__ = ("_calls", "_reason", "_record", "_task", "_watch", "deadline")

    def __init__(self, calls: Calls, deadline: float | None, record: RequestRecord | None = None) -> None:
        """``record`` tells what it means when the deadline passes."""
        self._calls = calls
        self._record = record
        self.deadline = deadline
        self._reason: ServingError | None = None
        self._task: asyncio.Task[Any]
        self._watch: asyncio.Task[None] | None = None

    def end(self, reason: ServingError) -> None:
        """Cancels what runs in the block, which raises ``reason``. The first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    def leave(self) -> None:
        """Ends it because the client has gone."""
        self.end(ClientDisconnected())

    def expire(self) -> None:
        """Ends it because its deadline has passed."""
        late = self._record.late if self._record is not None else None
        message = "the deadline passed before the request was answered"
        self.end(ServingError(StatusCode.DEADLINE_EXCEEDED, message, late))

    def watch(self, receive: Receive) -> None:
        """From now on the client's going ends the call. Its request has been read, so nothing else can come."""
        self._watch = asyncio.get_running_loop().create_task(self._until_gone(receive))

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def __enter__(self) -> Call:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._calls.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._calls.leave(self)
        if self._reason is not None and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise self._reason


class Calls:
    """All predictions that are inside. On the event loop."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._deadlines: Deadlines[Call] | None = None
        self._inside: set[Call] = set()
        self._draining = False
        self._idle: asyncio.Event | None = None
        """Of whoever waits until nobody is inside."""

    def call(self, record: RequestRecord | None = None) -> Call:
        """For a request whose head has just arrived: its time runs from now."""
        return Call(self, None if self._timeout is None else time.monotonic() + self._timeout, record)

    def enter(self, call: Call) -> None:
        """UNAVAILABLE when no more are let in."""
        if self._draining:
            raise _stopping()
        self._inside.add(call)
        if call.deadline is not None:
            if self._deadlines is None:
                self._deadlines = Deadlines(asyncio.get_running_loop(), Call.expire)
            self._deadlines.add(call, call.deadline)

    def leave(self, call: Call) -> None:
        self._inside.discard(call)
        if self._deadlines is not None:
            self._deadlines.discard(call)
        if self._idle is not None and not self._inside:
            self._idle.set()

    async def drain(self, grace: float) -> None:
        """Lets no more in; returns when those inside are answered. After ``grace`` seconds they are, with UNAVAILABLE.
        A second call with a shorter grace makes the first one return sooner."""
        self._draining = True
        if not self._inside:
            return
        self._idle = self._idle or asyncio.Event()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            for call in list(self._inside):
                call.end(_stopping())
            await self._idle.wait()


def _stopping() -> ServingError:
    return ServingError(StatusCode.UNAVAILABLE, "the server is being stopped")
