"""Predictions over HTTP in flight. Each ends by its answer, its deadline, a client that goes, or the server's end.

A call that only waits for its model is the reply to its request (``HttpCall.reply``) and needs no task. Any other runs
in the task of its request, which is cancelled when the client goes. To end it with an answer, an error is left with the
call and the task is cancelled; the error then replaces the cancellation, so that it is answered and counted like any
other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import CoroutineType, TracebackType
from typing import Any, Self, TypeAlias, cast

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.request_records import RecordedRequest
from tfs_lite.server.http.message import Answer, Request, Response
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.runtime.reply import ModelReply, Pending
from tfs_lite.transport.condition import Condition
from tfs_lite.transport.deadlines import Deadlines

CONFIGURED = -1.0
"""The server's own time limit."""

Written: TypeAlias = Response | Coroutine[Any, Any, Response]
"""A response, or what makes it where that takes long."""


class HttpCall(ModelReply[Any]):
    """One prediction: a ``with`` block of its task, or a reply. ``deadline`` is in seconds of ``time.monotonic``; while
    the request's body is arriving it is the one that a request would have that came now, and does not end the call.
    ``finish`` passes on what a reply has come to, a response or a failure, as an HTTP answer; the router sets it."""

    __slots__ = ("_calls", "_reason", "_seconds", "_started", "_task", "arriving", "deadline", "finish")

    finish: Callable[[Callable[[Answer], None], Response | Exception], None]

    def __init__(self, calls: HttpCalls, request: Request, seconds: float | None, record: RecordedRequest) -> None:
        """``record`` tells which reason a missed deadline has."""
        self._calls = calls
        self._record = record
        self._seconds = seconds
        self._started = request.arrived
        self.deadline = None if seconds is None else self._started + seconds
        self.arriving = not request.body.complete
        if self.arriving:
            request.body.on_end = self._whole
        self._reason: ServingError | None = None
        self._task: asyncio.Task[Any] | None = None
        self._done = None

    def reply(self, pending: Pending, write: Callable[[Any], Written]) -> Self:
        """The call as the reply of its handler, which ends its record. ``write`` makes the response of the result, or
        raises ServingError."""
        self._pending, self._write = pending, write
        return self

    def then(self, done: Callable[[Any], None]) -> None:
        self._calls.add(self)
        super().then(partial(self.finish, done))

    def _whole(self) -> None:
        """The body has come: from now on the time of the call runs."""
        self.arriving = False
        self._started = time.monotonic()
        if self._seconds is not None:
            self.deadline = self._started + self._seconds
            self._calls.begin(self)

    def limit(self, seconds: float) -> None:
        """Brings the deadline forward to so many seconds from when the request was whole: its body may say so."""
        deadline = self._started + seconds
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline
            self._calls.add(self)

    def end(self, reason: ServingError) -> None:
        """Cancels the block, which then raises ``reason``, or ends the reply with it. Only the first reason counts."""
        done = self._stop(reason)
        if done is not None:
            done(reason)
        elif self._reason is None and self._task is not None:
            self._reason = reason
            self._task.cancel()

    def expire(self) -> None:
        """Ends the call because its deadline has passed."""
        message = "the deadline passed before the request was answered"
        self.end(ServingError(StatusCode.DEADLINE_EXCEEDED, message, self._record.late))

    def __enter__(self) -> HttpCall:
        self._task = asyncio.current_task()
        self._calls.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.remove(self)
        task = cast("asyncio.Task[Any]", self._task)
        if self._reason is not None and kind is asyncio.CancelledError and task.uncancel() == 0:
            raise self._reason

    # A reply.

    def _finish(self, answer: Any) -> None:
        if isinstance(answer, CoroutineType):
            self._task = task = asyncio.create_task(answer)
            task.add_done_callback(self._written)
        elif self._done is not None:
            self._calls.remove(self)
            super()._finish(answer)

    def _written(self, task: asyncio.Task[Response]) -> None:
        if not task.cancelled():
            self._finish(task.exception() or task.result())

    def _stop(self, reason: BaseException) -> Callable[[Any], None] | None:
        done = super()._stop(reason)
        if done is not None:
            self._calls.remove(self)
            if self._task is not None:
                self._task.cancel()
        return done


class HttpCalls:
    """All predictions in flight. On the event loop."""

    def __init__(self, timeout: float | None) -> None:
        """``timeout`` is the time limit in seconds; None means that there is none."""
        self.timeout = timeout
        self._deadlines: Deadlines[HttpCall] | None = None
        self._in_flight: set[HttpCall] = set()
        self._refuses = False
        self._left = Condition()
        """Notified whenever the last call has ended."""

    def call(self, request: Request, record: RecordedRequest, seconds: float | None = CONFIGURED) -> HttpCall:
        """A call whose time, ``seconds`` (None: without a limit), runs from when its request has come whole.
        UNAVAILABLE at the end of a drain, and before on a connection that was made too late."""
        if request.after_drain or self._refuses:
            raise _stopping()
        limit = self.timeout if seconds == CONFIGURED else seconds
        return HttpCall(self, request, limit, record)

    def add(self, call: HttpCall) -> None:
        self._in_flight.add(call)
        self.begin(call)

    def begin(self, call: HttpCall) -> None:
        """Its deadline, if it has one, ends the call from now on."""
        if call.deadline is not None and not call.arriving and call in self._in_flight:
            if self._deadlines is None:
                self._deadlines = Deadlines(asyncio.get_running_loop(), HttpCall.expire)
            self._deadlines.add(call, call.deadline)

    def remove(self, call: HttpCall) -> None:
        self._in_flight.discard(call)
        if self._deadlines is not None:
            self._deadlines.discard(call)
        if not self._in_flight:
            self._left.notify()

    async def drain(self, grace: float) -> None:
        """Returns when the calls in flight are answered; after ``grace`` seconds they are answered UNAVAILABLE, as are
        all that come later. A second call with a shorter grace makes the first one return sooner."""
        ends = time.monotonic() + grace
        await self._left.wait_for(lambda: not self._in_flight, lambda: ends)
        self._refuses = True
        for call in list(self._in_flight):
            call.end(_stopping())
        await self._left.wait_for(lambda: not self._in_flight)


def _stopping() -> ServingError:
    message = "the server is being stopped"
    return HttpError(StatusCode.UNAVAILABLE, message, 503, {"connection": "close"})
