"""One ModelStreamInfer: requests come in and answers go out, each at its own pace.

    requests -> read, begun one after the other -> in flight -> answers, in the order of their requests -> the client
                                                     parts of decoupled models, as they are made ------^

A request is begun before the next one is read, so that the queues of the models get them in the order of the stream. A
failure is an answer like any other and the stream goes on, unless the client has asked for a status.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from time import perf_counter

from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.metrics.requests import GRPC, RequestRecord
from tfs_lite.protocols.v2.grpc_answer import stream_bytes, stream_error
from tfs_lite.protocols.v2.grpc_request import SentMessage, read_message, read_request
from tfs_lite.protocols.v2.request import InferAnswer
from tfs_lite.server.grpc.status import INTERNAL
from tfs_lite.server.v2.inference import METHOD, PendingV2Request, V2Inference
from tfs_lite.transport.table import CallContext

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 1000
"""Requests of one stream whose answers the client does not have yet; then no more are read until it takes some."""
MAX_PARTS = 10_000
"""Answers of decoupled models that one stream keeps for a client that does not take them."""
GRPC_ERROR = "triton_grpc_error"
"""Metadata, ``true``: the first failure ends the stream with its status."""


class _Request:
    """A request that was read. ``result`` is what the client gets in its turn; None until there is one, empty where the
    client gets nothing."""

    __slots__ = ("begun_at", "empty_final", "id", "pending", "record", "result", "task")

    def __init__(self, sent: SentMessage | None) -> None:
        self.id = sent.id if sent is not None else ""
        self.record = RequestRecord(METHOD, sent.model if sent is not None else "", GRPC)
        self.begun_at = perf_counter()
        self.empty_final = False
        self.pending: PendingV2Request | None = None
        self.task: asyncio.Task[None] | None = None
        self.result: bytes | Status | None = None


class V2Stream:
    """``run`` is called once, on the event loop. When it ends, in any way, nothing of it is left running."""

    def __init__(
        self, infer: V2Inference, context: CallContext, max_in_flight: int = MAX_IN_FLIGHT, max_parts: int = MAX_PARTS
    ) -> None:
        self._infer = infer
        self._deadline = context.deadline
        self._status_wanted = context.metadata.get(GRPC_ERROR, "").lower() == "true"
        self._slots = asyncio.Semaphore(max_in_flight)
        self._max_parts = max_parts
        self._inside: set[_Request] = set()
        self._in_order: deque[_Request] = deque()
        self._ready: deque[tuple[bytes | Status, Callable[[], None]]] = deque()
        """What goes out next, and the function to call when it has gone."""
        self._changed = asyncio.Event()

    async def run(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yields answers until every request has its own and the client has half-closed. Raises ServingError."""
        reader = asyncio.create_task(self._read(requests))
        try:
            while True:
                while self._ready:
                    item, release = self._ready.popleft()
                    release()
                    if isinstance(item, Status):
                        raise ServingError(item.code, item.message, item.reason)
                    if item:
                        yield item
                if reader.done() and not self._inside:
                    await reader
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            await self._stop(reader)

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for data in requests:
                await self._slots.acquire()
                self._begin(data)
        finally:
            asyncio.get_running_loop().call_soon(self._changed.set)

    def _begin(self, data: bytes) -> None:
        """Queues the request, or ends it with its failure, before it returns."""
        request = _Request(None)
        try:
            sent = read_message(data)
            request = _Request(sent)
            wanted = read_request(sent)
            request.empty_final = wanted.empty_final
            on_part = self._on_part(request)
            request.pending = self._infer.begin(wanted, request.record, self._deadline, on_part, in_pieces=True)
        except ServingError as error:
            self._in_order.append(request)
            self._end(request, error.status)
            return
        self._inside.add(request)
        if not request.pending.decoupled:
            self._in_order.append(request)
        request.task = asyncio.create_task(self._finish(request, request.pending))

    def _on_part(self, request: _Request) -> Callable[[InferAnswer], None]:
        def on_part(answer: InferAnswer) -> None:
            if len(self._ready) >= self._max_parts:
                message = f"the client has {len(self._ready)} answers of this stream to take, no more are kept"
                raise ServingError(StatusCode.RESOURCE_EXHAUSTED, message)
            pending = request.pending
            assert pending is not None
            self._put(stream_bytes(answer, pending.complete), pending.part_sent)

        return on_part

    async def _finish(self, request: _Request, pending: PendingV2Request) -> None:
        result: bytes | Status
        try:
            answer = await pending.answer()
            result = self._last(request, pending, answer)
        except ServingError as error:
            result = error.status
        except asyncio.CancelledError:
            self._count(request, StatusCode.CANCELLED)
            raise
        except Exception as error:
            logger.exception("%s failed", METHOD, exc_info=error)
            result = INTERNAL
        self._inside.discard(request)
        self._end(request, result)

    def _last(self, request: _Request, pending: PendingV2Request, answer: InferAnswer) -> bytes:
        """An end without outputs of a decoupled request is sent only to clients that asked for it, and not after the
        last piece of a text, which says the same."""
        if pending.decoupled and not answer.outputs and (pending.complete or not request.empty_final):
            return b""
        return stream_bytes(answer, True)

    def _end(self, request: _Request, result: bytes | Status) -> None:
        """Notes the answer, which goes out after those before it."""
        self._count(request, result.code if isinstance(result, Status) else StatusCode.OK)
        if isinstance(result, Status) and not self._status_wanted:
            result = stream_error(result.message, request.id)
        request.result = result
        if request.pending is not None and request.pending.decoupled:
            self._put(result, self._slots.release)
        while self._in_order and self._in_order[0].result is not None:
            first = self._in_order.popleft().result
            assert first is not None
            self._put(first, self._slots.release)

    def _put(self, item: bytes | Status, release: Callable[[], None]) -> None:
        self._ready.append((item, release))
        self._changed.set()

    def _count(self, request: _Request, code: StatusCode) -> None:
        self._infer.metrics.observe(request.record, code, perf_counter() - request.begun_at)

    async def _stop(self, reader: asyncio.Task[None]) -> None:
        tasks = [reader, *(request.task for request in self._inside if request.task is not None)]
        for request in self._inside:
            if request.pending is not None:
                request.pending.cancel()
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
