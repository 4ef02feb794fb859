"""One ModelStreamInfer: requests come in and answers go out, each at its own pace.

    requests -> read, begun one after the other -> in flight -> answers, in the order of their requests -> the client
                                                     parts of decoupled models, as they are made ------^

A request is begun before those that follow it, so that the queues of the models get them in the order of the stream. A
failure is an answer like any other and the stream goes on, unless the client has asked for a status. Answers that wait
for the client are bounded in bytes: no requests are read while many wait, and an answer for which there is no room
becomes a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from heapq import heappop, heappush

from tfs_lite.core.signature import naming
from tfs_lite.core.status import ServingError, Status
from tfs_lite.metrics.requests import GRPC
from tfs_lite.protocols.v2.grpc_answer import stream_bytes, stream_error
from tfs_lite.protocols.v2.grpc_request import read_message, read_request
from tfs_lite.server.grpc.status import INTERNAL
from tfs_lite.server.inference.pending import arrivals
from tfs_lite.server.v2.inference import METHOD, V2Answers, V2Inference
from tfs_lite.transport.table import CallContext

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 1000
"""Requests of one stream whose answers the client does not have yet; then no more are read until it takes some."""
FIRST_BURST = 8
"""Requests of one stream in flight while the size of their answers is not known yet."""
GRPC_ERROR = "triton_grpc_error"
"""Metadata, ``true``: the first failure ends the stream with its status."""


class _Answer:
    """An answer on its way to the client. ``content`` is None until it is known, and empty where nothing is sent;
    ``size`` is what it takes of the client's room. ``on_sent`` is called when the client takes it."""

    __slots__ = ("content", "on_sent", "size")

    def __init__(self, on_sent: Callable[[], None]) -> None:
        self.content: bytes | Status | None = None
        self.size = 0
        self.on_sent = on_sent


class V2Stream:
    """``run`` is called once, on the event loop. When it ends, in any way, nothing of it is left running."""

    def __init__(self, infer: V2Inference, context: CallContext, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self._infer = infer
        self._context = context
        self._deadline = context.deadline
        self._status_wanted = context.metadata.get(GRPC_ERROR, "").lower() == "true"
        self._slots = asyncio.Semaphore(max_in_flight)
        self._room = infer.room.client()
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_order: deque[_Answer] = deque()
        self._ready: list[tuple[int, _Answer]] = []
        """A heap: answers go out in the order in which the models made them."""
        self._changed = asyncio.Event()
        self._largest = 0
        """Bytes of the largest answer in order, which the next one may have too."""

    async def run(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yields answers until every request has its own and the client has half-closed. Raises ServingError."""
        reader = asyncio.create_task(self._read(requests))
        reader.add_done_callback(lambda task: self._changed.set())
        try:
            while True:
                while self._ready:
                    content = self._take()
                    if isinstance(content, Status):
                        raise ServingError(content.code, content.message, content.reason)
                    if content:
                        yield content
                if reader.done() and not self._tasks:
                    await reader
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            await self._stop(reader)

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        async for data in requests:
            await self._slots.acquire()
            while not self._has_room():
                self._changed.clear()
                await self._changed.wait()
            last = _Answer(self._slots.release)
            self._in_order.append(last)
            task = asyncio.create_task(self._serve(data, last))  # tasks begin in the order in which they are made
            self._tasks.add(task)
            task.add_done_callback(self._served)

    def _has_room(self) -> bool:
        """Whether half of the room is left by the answers that wait and by those that the requests in flight may add. A
        single answer may have any size."""
        if not self._largest:
            return len(self._in_order) < FIRST_BURST
        expected = self._room.waiting + len(self._in_order) * self._largest
        return expected <= self._infer.room.one // 2

    async def _serve(self, data: bytes, last: _Answer) -> None:
        """Begins the request in the task's first step, and puts its answers out."""
        in_order, request_id = True, ""
        try:
            with self._infer.metrics.record(METHOD, "", GRPC, self._context) as record:
                sent = read_message(data)
                record.model, request_id = sent.model, sent.id
                record.sent_id = request_id
                with naming(sent.model):
                    wanted = read_request(sent)
                with self._infer.begin(wanted, record, self._deadline, self._room, in_pieces=True) as answers:
                    if answers.decoupled:
                        in_order = False
                        self._in_order.remove(last)
                        await self._send_parts(answers)
                        self._end_parts(last, answers, wanted.empty_final)
                    else:
                        self._set(last, stream_bytes(await answers.answer(), True))
                        self._largest = max(self._largest, last.size)
        except ServingError as error:
            self._set_failure(last, error.status, request_id)
        except Exception:
            logger.exception("%s failed", METHOD)
            self._set_failure(last, INTERNAL, request_id)
        if not in_order:
            self._put(last)
        while self._in_order and self._in_order[0].content is not None:
            self._put(self._in_order.popleft())

    async def _send_parts(self, answers: V2Answers) -> None:
        """Puts all answers out as they come, so that those of several requests keep the order of their models."""
        async for answer in answers:
            part = _Answer(answers.keep())
            self._set(part, stream_bytes(answer, answers.final))
            self._put(part, answers.arrival)

    def _end_parts(self, last: _Answer, answers: V2Answers, empty_final: bool) -> None:
        """An end without outputs is sent only to clients that have asked for it, and not behind an answer that says the
        same."""
        self._set(last, stream_bytes(answers.empty(), True) if empty_final and not answers.final else b"")

    def _set(self, answer: _Answer, content: bytes) -> None:
        """RESOURCE_EXHAUSTED when too much waits for the client."""
        self._room.take(len(content))
        answer.content, answer.size = content, len(content)

    def _set_failure(self, answer: _Answer, status: Status, request_id: str) -> None:
        answer.content = status if self._status_wanted else stream_error(status.message, request_id)

    def _put(self, answer: _Answer, arrival: int | None = None) -> None:
        heappush(self._ready, (next(arrivals) if arrival is None else arrival, answer))
        self._changed.set()

    def _take(self) -> bytes | Status:
        _, answer = heappop(self._ready)
        self._room.give(answer.size)
        self._changed.set()
        answer.on_sent()
        assert answer.content is not None
        return answer.content

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()

    async def _stop(self, reader: asyncio.Task[None]) -> None:
        tasks = [reader, *self._tasks]
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        self._room.close()
