"""A request that is queued, and its answer on the way to the client: whole, or in many parts.

    done, part, piece (the servable's threads) -> CompletionQueue -> the loop -> answer, parts -> a front end

A front end only formats what comes out here. A model with several answers to a request waits while many of them wait
for the client. A language model does not, because the length of a text is known from the start. The bytes that wait
may be bounded too, for each client and for all together; beyond that the request fails.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import operator
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

from tfs_lite.core.generation import Piece
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import OnCall, Servable, ServableCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.dtypes import Array, array_bytes
from tfs_lite.protocols.runs import Run
from tfs_lite.server.inference.shield import Shield
from tfs_lite.server.runtime.event_loop import CompletionQueue
from tfs_lite.transport.condition import OneWaiter

logger = logging.getLogger(__name__)
Part: TypeAlias = Mapping[str, Array] | Piece
"""One of several answers of a model, or the next piece of a text."""

MAX_PARTS = 64
"""Answers of one request that the client does not have yet; then its model waits."""
PART_BYTES = 512
"""The bytes that a part takes in addition to its values."""
MAX_WAITING_BYTES = 128 << 20
"""The most bytes that wait for one client."""
MAX_ALL_WAITING_BYTES = 512 << 20
_VALUE_BYTES = 16


class AnswerRoom:
    """Counts the bytes of answers that wait for clients. On the event loop."""

    def __init__(self, one: int = MAX_WAITING_BYTES, together: int = MAX_ALL_WAITING_BYTES) -> None:
        """The most bytes that may wait for one client, and for all clients together."""
        self.one = one
        self.together = together
        self.held = 0

    def client(self) -> ClientRoom:
        return ClientRoom(self)


class ClientRoom:
    """The bytes that wait for one client. Call ``close`` at the end."""

    __slots__ = ("_all", "waiting")

    def __init__(self, every: AnswerRoom) -> None:
        self._all = every
        self.waiting = 0

    def take(self, size: int) -> None:
        """Reserves ``size`` more bytes. RESOURCE_EXHAUSTED when there is no room; there always is some for a client for
        which nothing waits."""
        everybody, waiting = self._all, self.waiting
        if waiting and (waiting + size > everybody.one or everybody.held + size > everybody.together):
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, _TOO_SLOW)
        self.waiting += size
        everybody.held += size

    def give(self, size: int) -> None:
        self.waiting -= size
        self._all.held -= size

    def close(self) -> None:
        self.give(self.waiting)


_TOO_SLOW = (
    "the client reads the answers more slowly than the model makes them, and too many wait for it: "
    "the request is cancelled"
)


class RequestCancelled(ServingError):
    """CANCELLED: the client no longer waits for the answer."""

    def __init__(self) -> None:
        super().__init__(StatusCode.CANCELLED, "the request was cancelled")

    def __reduce__(self) -> tuple[type[RequestCancelled], tuple[()]]:  # type: ignore[override]
        return type(self), ()


@dataclass(slots=True)
class Inference:
    """The answer of exactly one version: the outputs of each run."""

    id: ServableId
    runs: Sequence[Run]
    outputs: Sequence[Mapping[str, Array]]

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def output(self) -> Mapping[str, Array]:
        return self.outputs[0]


class InFlight:
    """The requests in flight on one loop share this: the way back from the models' threads, and the counters. Made on
    the event loop. ``on_call`` is called on the loop for every call that has ended. ``again`` begins the runs of a
    request on the old version that its shield names, and raises ServingError."""

    def __init__(
        self, metrics: RequestMetrics, on_call: OnCall, again: Callable[[Shield, Sequence[Run]], PendingRequest]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.post = CompletionQueue[Callable[[], None]](operator.call).post
        self.metrics = metrics
        self.on_call = on_call
        self.again = again


arrivals = itertools.count()
"""Numbers parts of all requests as they come, so that a caller with several requests can keep their order."""


class PendingRequest(OneWaiter):
    """A request whose calls are queued, or about to be. ``done``, ``part`` and ``piece`` are the servable's, on any
    thread; everything else happens on the loop. The caller awaits the answer, or takes the parts and then may await the
    answer, and cancels, which the end of a ``with`` block does. Nothing is given out after that. The deadline is the
    caller's: it belongs to the client's call, which cancels the caller when it passes.

    It holds the version until the servable has answered the last call, also when the caller has gone.

    On a version under trial the old version may be asked when the new one has failed: then ``id``, ``servable`` and
    ``runs`` change once, in the moment in which the request ends."""

    __slots__ = (
        *("_calls", "_failure", "_handle", "_in_flight", "_left", "_on_end", "_outputs", "_over", "_record", "_room"),
        *("_second", "_shield", "_slots", "_submitting", "_taken", "_waiting", "arrival", "id", "runs", "servable"),
    )

    def __init__(
        self,
        handle: ServableHandle,
        runs: Sequence[Run],
        record: RequestRecord,
        in_flight: InFlight,
        room: ClientRoom | None,
        shield: Shield | None = None,
    ) -> None:
        """``room`` bounds the parts that wait, in bytes; None: nothing does. ``shield`` hears how it has ended, and
        may ask for another try, on an older version."""
        self.id = handle.id
        self.servable: Servable = handle.servable
        self.runs = runs
        self._handle = handle
        self._record = record
        self._in_flight = in_flight
        self._room = room
        self._shield = shield
        self._second: PendingRequest | None = None
        """The same request to the old version, once that was asked."""
        self._calls: Sequence[ServableCall] = ()
        self._left = 0
        self._outputs: list[Mapping[str, Array]] = []
        self._over = False
        self._failure: ServingError | None = None
        """Never raised itself: its traceback would refer to this request, and with it to the inputs, which would stay
        until the next garbage collection."""
        self._on_end: Callable[[], None] | None = None
        self._slots: threading.Semaphore | None = None
        self._waiting: deque[tuple[Part, int, int]] = deque()
        self.arrival = 0
        """The number of the part that was taken last, by ``arrivals``."""
        self._taken = False
        self._waiter = None
        self._submitting: list[tuple[int, Mapping[str, Tensor] | Status]] | None = None
        """The answers that the servable has given at once, while it is given the calls; None afterwards."""

    def submit(self, calls: Sequence[ServableCall], in_parts: bool) -> None:
        """Queues the calls, one for each run. ``in_parts``: they were given ``part``."""
        self._calls = self._record.calls = calls
        self._left = len(calls)
        self._outputs = [{}] * len(calls)
        if in_parts:
            self._slots = threading.Semaphore(MAX_PARTS)
            at_once = None  # parts come before the answer, and by the queue
        else:
            at_once = self._submitting = []
        self._in_flight.metrics.started(self.id)
        for call in calls:
            self.servable.submit(call)
        self._submitting = None
        for index, result in at_once or ():
            self._settle(index, result)

    def refuse(self, error: ServingError) -> None:
        """Ends a request of which nothing is queued, because the version cannot run it. The old one may be asked."""
        self._failed(error)

    # On the servable's threads.

    def done(self, index: int, result: Mapping[str, Tensor] | Status) -> None:
        """The end of a call. One that is refused, or found in a cache, is answered on the loop while it is submitted,
        and need not wake the loop."""
        at_once = self._submitting
        if at_once is not None and threading.get_ident() == self._in_flight.thread:
            at_once.append((index, result))
            return
        self._in_flight.post(partial(self._settle, index, result))

    def part(self, outputs: Mapping[str, Tensor]) -> None:
        """One of several answers, before ``done``. Blocks the model while too many wait for the client."""
        if self._over:
            return
        assert self._slots is not None
        self._slots.acquire()
        self._in_flight.post(partial(self._add, cast("Part", outputs)))

    def piece(self, piece: Piece) -> None:
        """A piece of a text, before ``done``. Never blocks."""
        self._in_flight.post(partial(self._add, piece))

    # For the caller.

    def then(self, ended: Callable[[], None]) -> None:
        """``ended`` is called when the request has ended, also by ``cancel``; at once if it has already. For one caller
        at a time. It must not raise."""
        if self._over:
            ended()
        else:
            self._on_end = ended

    def result(self) -> Inference:
        """The answer of a request that has ended: all answers in order, or the first failure, which has cancelled the
        other calls. Raises ServingError. ``run_seconds`` of the record are those of all calls."""
        if self._failure is not None:
            self.check()
        return Inference(self.id, self.runs, self._outputs)

    async def answer(self) -> Inference:
        """Waits for the end of the request and returns its ``result``. CancelledError cancels it."""
        ended = self._in_flight.loop.create_future()
        self.then(partial(_set, ended))
        try:
            await ended
            return self.result()
        except BaseException:
            self.cancel()
            raise

    async def next(self) -> Part | None:
        """The next part; None when the request has ended. To ask for it means that the one before was sent, which lets
        the model go on, unless the caller has kept that one. Raises the failure of the request, behind the parts that
        came before it."""
        if self._taken:
            self._sent()
        self._taken = False
        await self.wait()
        if not self._waiting:
            self.check()
            return None
        self._taken = self._record.sending = True
        return self._pop()

    def keep(self) -> Callable[[], None]:
        """The part that was taken last is not sent when the next one is asked for, but when the caller says so, by the
        function that is returned."""
        self._taken = False
        return self._sent

    async def wait(self, seconds: float | None = None) -> bool:
        """Returns True when a part waits or the request has ended; False after ``seconds`` without either. One caller
        at a time."""
        if self._waiting or self._over:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self.sleep()
        except TimeoutError:
            return False
        return True

    def take(self) -> list[Part]:
        """Every part that waits, of a model that is not to wait for the client."""
        if self._waiting and not self._over:
            self._record.sending = True
        return [self._pop() for _ in range(len(self._waiting))]

    @property
    def over(self) -> bool:
        """Whether no more parts will come. Some may still wait."""
        return self._over

    @property
    def failure(self) -> ServingError | None:
        return self._failure

    @property
    def outputs(self) -> Sequence[Mapping[str, Array]]:
        return self._outputs

    def check(self) -> None:
        """Raises the failure of the request, if it has failed."""
        if self._failure is not None:
            raise copy(self._failure)

    def cancel(self) -> None:
        """The caller does not wait any more: drops the parts that wait, and cancels the calls unless the request is
        over. May be called at any time, more than once."""
        if not self._over:
            self._fail(RequestCancelled())
        while self._waiting:
            self._pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    # Inside, on the loop.

    def _settle(self, index: int, result: Any) -> None:
        self._left -= 1
        calls = self._calls
        try:
            self._in_flight.on_call(self.id, calls[index], result)
        except Exception:
            logger.exception("a call of %s could not be counted", self.id)
        if not self._left:
            self._calls = ()
            self._in_flight.metrics.finished(self.id)
            self._handle.release()
        if self._over or self._second is not None:
            return
        if isinstance(result, Status):
            self._failed(ServingError(result.code, result.message, result.reason))
            return
        self._outputs[index] = result
        if not self._left:
            for call in calls:
                self._record.run_seconds += call.run_seconds
            self._record.answered = True
            shield = self._shield
            if shield is None or not (shield.answered(self._outputs, self.runs, calls) and self._ask_old(shield)):
                self._end()

    def _failed(self, error: ServingError) -> None:
        """The version has failed."""
        shield = self._shield
        if shield is not None and shield.failed(error, self.runs, self._record.calls):
            for call in self._calls:
                self.servable.cancel(call)
            if self._ask_old(shield):
                return
        self._fail(error)

    def _ask_old(self, shield: Shield) -> bool:
        """False if the old version cannot be asked."""
        try:
            second = self._second = self._in_flight.again(shield, self.runs)
        except ServingError:
            shield.gone()
            return False
        except Exception:
            logger.exception("a request on %s cannot be run on the version before it", self.id)
            shield.gone()
            return False
        second.then(partial(self._old_ended, shield, second))
        return True

    def _old_ended(self, shield: Shield, second: PendingRequest) -> None:
        if self._over:
            return
        if shield.takes(second.outputs, second.failure):
            self.id, self.servable, self.runs = second.id, second.servable, second.runs
            self._outputs = second._outputs
            self._end()
        elif shield.first is not None:
            self._fail(shield.first)
        else:
            self._end()

    def _add(self, part: Part) -> None:
        if self._over:
            return
        size = 0
        if self._room is not None:
            size = _size(part)
            try:
                self._room.take(size)
            except ServingError as error:
                self._fail(error)
                return
        self._waiting.append((part, size, next(arrivals)))
        self.wake()

    def _sent(self) -> None:
        if self._slots is not None:
            self._slots.release()

    def _pop(self) -> Part:
        part, size, self.arrival = self._waiting.popleft()
        if self._room is not None:
            self._room.give(size)
        return part

    def _fail(self, error: ServingError) -> None:
        """Ends the request and cancels its calls, unless it is over."""
        if self._over:
            return
        self._failure = error
        if self._shield is not None:
            self._shield.dropped(self.runs, self._record.calls)
        self._end()
        for call in self._calls:
            self.servable.cancel(call)
        if self._second is not None:
            self._second.cancel()

    def _end(self) -> None:
        self._over = True
        if self._slots is not None:
            self._slots.release(len(self.runs))  # for the thread of each call that waits in ``part``
        if self._waiter is not None:
            self.wake()
        on_end, self._on_end = self._on_end, None
        if on_end is not None and not self._in_flight.loop.is_closed():
            on_end()


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _size(part: Part) -> int:
    """About the bytes that a part takes while it waits."""
    if isinstance(part, Piece):
        return PART_BYTES + len(part.text) + len(part.tokens) * _VALUE_BYTES
    return PART_BYTES + sum(array_bytes(array, _VALUE_BYTES) for array in part.values())
