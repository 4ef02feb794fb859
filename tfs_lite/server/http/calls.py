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
from types import TracebackType
from typing import Any, Protocol, Self, cast

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import RecordedRequest
from tfs_lite.server.http.message import Answer, Reply, Request, Response
from tfs_lite.server.http.replies import HttpError
from tfs_lite.transport.condition import Condition
from tfs_lite.transport.deadlines import Deadlines

CONFIGURED = -1.0
"""The server's own time limit."""


class Pending(Protocol):
    """A request that a model has. ``then`` tells its end, also that by ``cancel``; once, at once if it has ended."""

    def then(self, ended: Callable[[], None]) -> None: ...

    def result(self) -> Any:
        """The answer of a request that has ended. Raises ServingError."""

    def cancel(self) -> None: ...


class HttpCall(Reply):
    """One prediction: a ``with`` block of its task, or a reply. ``deadline`` is in seconds of ``time.monotonic``."""

    __slots__ = ("_calls", "_done", "_pending", "_reason", "_record", "_task", "_write", "_write_slowly", "deadline")

    def __init__(self, calls: HttpCalls, deadline: float | None, record: RecordedRequest) -> None:
        """``record`` tells which reason a missed deadline has."""
        self._calls = calls
        self._record = record
        self.deadline = deadline
        self._reason: ServingError | None = None
        self._task: asyncio.Task[Any] | None = None
        self._done: Callable[[Answer], None] | None = None
        self._pending: Pending
        self._write: Callable[[Any], Response | None]
        self._write_slowly: Callable[[Any], Coroutine[Any, Any, Response]]

    def reply(
        self,
        pending: Pending,
        write: Callable[[Any], Response | None],
        write_slowly: Callable[[Any], Coroutine[Any, Any, Response]],
    ) -> Self:
        """The call as the reply of its handler, which ends its record. ``write`` makes the response of the result, or
        raises ServingError; None means that this takes long, and then ``write_slowly`` makes it."""
        self._pending, self._write, self._write_slowly = pending, write, write_slowly
        return self

    def then(self, done: Callable[[Answer], None]) -> None:
        self._done = done
        self._calls.add(self)
        self._pending.then(self._model_ended)

    def cancel(self) -> None:
        if self._done is not None:
            self._done = None
            self._stop(asyncio.CancelledError())

    def limit(self, deadline: float) -> None:
        """Brings the deadline forward, once the body has said so."""
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline
            self._calls.add(self)

    def end(self, reason: ServingError) -> None:
        """Cancels the block, which then raises ``reason``, or ends the reply with it. Only the first reason counts."""
        done, self._done = self._done, None
        if done is not None:
            self._stop(reason)
            done(self.finish(reason))
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

    def _model_ended(self) -> None:
        if self._done is None:
            return
        try:
            result = self._pending.result()
            response = self._write(result)
        except Exception as error:
            self._finish(error)
            return
        if response is not None:
            self._finish(response)
        else:
            self._task = task = asyncio.create_task(self._write_slowly(result))
            task.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[Response]) -> None:
        if not task.cancelled():
            self._finish(task.exception() or task.result())

    def _finish(self, result: Any) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._calls.remove(self)
            self._record.end(result if isinstance(result, BaseException) else None)
            done(self.finish(result))

    def _stop(self, reason: BaseException) -> None:
        self._calls.remove(self)
        self._pending.cancel()
        if self._task is not None:
            self._task.cancel()
        self._record.end(reason)


class HttpCalls:
    """All predictions in flight. On the event loop."""

    def __init__(self, timeout: float | None) -> None:
        """``timeout`` is the time limit in seconds; None means that there is none."""
        self.timeout = timeout
        self._deadlines: Deadlines[HttpCall] | None = None
        self._in_flight: set[HttpCall] = set()
        self._refuses = False
        self._left = Condition()
        """Notified whenever a call has ended."""

    def call(self, request: Request, record: RecordedRequest, seconds: float | None = CONFIGURED) -> HttpCall:
        """A call whose time, ``seconds`` (None: without a limit), runs from the arrival of its request's head.
        UNAVAILABLE at the end of a drain, and before on a connection that was made too late."""
        if request.after_drain or self._refuses:
            raise _stopping()
        limit = self.timeout if seconds == CONFIGURED else seconds
        return HttpCall(self, None if limit is None else request.arrived + limit, record)

    def add(self, call: HttpCall) -> None:
        self._in_flight.add(call)
        if call.deadline is not None:
            if self._deadlines is None:
                self._deadlines = Deadlines(asyncio.get_running_loop(), HttpCall.expire)
            self._deadlines.add(call, call.deadline)

    def remove(self, call: HttpCall) -> None:
        self._in_flight.discard(call)
        if self._deadlines is not None:
            self._deadlines.discard(call)
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
