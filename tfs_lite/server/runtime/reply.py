"""The answer of a model on its way to a client, without a task: written once the model has answered, and counted."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tfs_lite.metrics.request_records import RecordedRequest
from tfs_lite.transport.table import Reply

A = TypeVar("A")


class Pending(Protocol):
    """A request that a model has. ``then`` tells its end, also that by ``cancel``; once, at once if it has ended."""

    def then(self, ended: Callable[[], None]) -> None: ...

    def result(self) -> Any:
        """The answer of a request that has ended. Raises ServingError."""

    def cancel(self) -> None: ...


class ModelReply(Reply[A]):
    """Ends its record with the request: answered, failed, or cancelled by the client. ``write`` makes the answer of
    what the model has answered, or raises ServingError."""

    __slots__ = ("_done", "_pending", "_record", "_write")

    def __init__(self, pending: Pending, record: RecordedRequest, write: Callable[[Any], A]) -> None:
        self._pending = pending
        self._record = record
        self._write = write
        self._done: Callable[[A | Exception], None] | None = None

    def then(self, done: Callable[[A | Exception], None]) -> None:
        self._done = done
        self._pending.then(self._model_ended)

    def cancel(self) -> None:
        self._stop(CancelledError())

    def _model_ended(self) -> None:
        if self._done is None:
            return
        try:
            answer = self._write(self._pending.result())
        except Exception as error:
            self._finish(error)
        else:
            self._finish(answer)

    def _finish(self, answer: A | Exception) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._record.end(answer if isinstance(answer, Exception) else None)
            done(answer)

    def _stop(self, reason: BaseException) -> Callable[[A | Exception], None] | None:
        """Cancels the request. Returns whom to tell why; None if the reply has ended already."""
        done, self._done = self._done, None
        if done is not None:
            self._pending.cancel()
            self._record.end(reason)
        return done
