"""The answer of a model on its way to a client, without a task: counted, and written once the model has answered."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import TypeAlias

from tfs_lite.metrics.requests import RecordedRequest
from tfs_lite.server.inference.pending import Inference, PendingRequest
from tfs_lite.transport.table import Reply

Write: TypeAlias = Callable[[Inference], bytes]
"""Writes the client's message; raises ServingError."""


class ModelReply(Reply):
    """Ends the record with the request: answered, failed, or cancelled by the client."""

    __slots__ = ("_done", "_pending", "_record", "_write")

    def __init__(self, pending: PendingRequest, record: RecordedRequest, write: Write) -> None:
        self._pending = pending
        self._record = record
        self._write = write
        self._done: Callable[[bytes | Exception], None] | None = None

    def then(self, done: Callable[[bytes | Exception], None]) -> None:
        self._done = done
        self._pending.then(self._ended)

    def cancel(self) -> None:
        if self._done is not None:
            self._done = None
            self._pending.cancel()
            self._record.end(CancelledError())

    def _ended(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        try:
            with self._record:
                answer = self._write(self._pending.result())
        except Exception as error:
            done(error)
            return
        done(answer)
