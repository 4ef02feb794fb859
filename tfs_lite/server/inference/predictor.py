"""The one path of a request to a model, the same for every protocol and method.

    which version -> [plan: which signature, are the names right, decode] -> which outputs -> do dtypes and shapes fit
    -> submit the calls to the servable -> wait for the answers, the deadline or the client's cancellation

The caller passes the plan in, because protocols and methods differ in nothing else before the model runs. A plan may
ask for several runs, and one version answers all of them. The handle is held until the servable has answered every
run, also when the client has gone in the meantime, because the model may still be reading the inputs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeAlias, cast

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.generation import Generation, GenerationCall, Piece
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import OnCall, PredictCall, SequenceFlags, Servable, ServableCall
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, invalid_argument
from tfs_lite.metrics.requests import RequestMetrics, RequestRecord
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES, Array
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.server.runtime.event_loop import CompletionQueue
from tfs_lite.transport.deadlines import Deadlines

Lookup: TypeAlias = Callable[[ModelRef], ServableHandle]
"""Resolves a name, with a version or label, to a handle; raises ServingError."""

SequenceLookup: TypeAlias = Callable[[ModelRef, SequenceFlags], ServableHandle]
"""Does the same for a request of a sequence, which stays with the version that it began on."""

Plan: TypeAlias = Callable[[Mapping[str, Signature]], Sequence[Run] | Awaitable[Sequence[Run]]]
"""Takes the signatures of the version and returns at least one run; raises ServingError."""

Result: TypeAlias = Mapping[str, Tensor] | Status

OnPart: TypeAlias = Callable[[ServableId, Mapping[str, Array]], None]
"""Called on the loop with each answer of a model that gives several to a request."""

OnPiece: TypeAlias = Callable[[ServableId, Piece], None]

MAX_PARTS = 64
"""Answers of one request that were not sent to the client yet."""
_POLL_SECONDS = 0.2
"""How often a model that waits for its client checks whether the request goes on."""
_NO_ROOM = threading.Semaphore(0)
_PART, _PIECE = -1, -2
"""In place of the index of a run, for what is not its end."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a request has in addition to its inputs, as the calls of :mod:`tfs_lite.core.model` and
    :mod:`tfs_lite.core.generation` define it. ``on_part`` and ``on_piece`` are called on the loop. Models ignore what
    is for another kind of model."""

    sequence: SequenceFlags | None = None
    priority: int = 0
    timeout: float = 0.0
    on_part: OnPart | None = None
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    texts: Sequence[Generation] = ()
    on_piece: OnPiece | None = None


PLAIN = CallOptions()


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


class Predictor:
    """Used on one event loop only. ``max_bytes`` bounds the size of a default that is repeated for each row."""

    def __init__(
        self,
        lookup: Lookup,
        metrics: RequestMetrics,
        max_bytes: int = MAX_FILL_BYTES,
        lookup_sequence: SequenceLookup | None = None,
        on_call: OnCall = ignore,
    ) -> None:
        """``lookup_sequence`` is used instead of ``lookup`` for requests of a sequence; None means that these are like
        others. ``on_call`` is called on the loop for every call that has ended."""
        self._lookup = lookup
        self._lookup_sequence = lookup_sequence or (lambda model, sequence: lookup(model))
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._on_call = on_call
        self._completions: CompletionQueue[_Posted] | None = None
        self._deadlines: Deadlines[_Request] | None = None

    async def infer(
        self, model: ModelRef, plan: Plan, record: RequestRecord, deadline: float | None, options: CallOptions = PLAIN
    ) -> Inference:
        """``deadline`` is in seconds of the event loop's clock, which is ``time.monotonic``. Fills in the version and
        the time in the model of ``record``. Raises ServingError; CancelledError when the client has gone, after which
        the answers are dropped."""
        handle = self._find(model, record, options)
        try:
            planned = plan(handle.servable.signatures)
            runs = planned if isinstance(planned, list | tuple) else await cast("Awaitable[Sequence[Run]]", planned)
            pending = self._start(handle, runs, record, deadline, options)
        except BaseException:
            handle.release()
            raise
        return await pending.answer()

    def begin(
        self,
        model: ModelRef,
        plan: Callable[[Servable], Sequence[Run]],
        record: RequestRecord,
        deadline: float | None,
        options: CallOptions = PLAIN,
    ) -> PendingRequest:
        """Queues the request before it returns, so that requests are queued in the order of their ``begin``. The caller
        then awaits the answer or cancels. Arguments and errors as for :meth:`infer`."""
        handle = self._find(model, record, options)
        try:
            return self._start(handle, plan(handle.servable), record, deadline, options)
        except BaseException:
            handle.release()
            raise

    def _find(self, model: ModelRef, record: RequestRecord, options: CallOptions) -> ServableHandle:
        sequence = options.sequence
        handle = self._lookup(model) if sequence is None else self._lookup_sequence(model, sequence)
        record.version = handle.id.version
        return handle

    def _start(
        self,
        handle: ServableHandle,
        runs: Sequence[Run],
        record: RequestRecord,
        deadline: float | None,
        options: CallOptions,
    ) -> PendingRequest:
        """Owns the handle from the moment that every call is queued."""
        servable: Servable = handle.servable
        traits = servable.traits
        if traits.has_item_steps:
            record.late = Reason.JOB_EXPIRED
        if not runs:
            raise invalid_argument("nothing is to be run")
        signatures = servable.signatures
        completions = self._completions or self._open()
        deadlines = self._deadlines
        assert deadlines is not None
        request = _Request(handle, completions, self._metrics, record.late, options, self._on_call)
        now = monotonic()
        make_call = _generation_call if traits.generates else _predict_call
        calls = [
            make_call(request, index, run, self._inputs(signatures, run), deadline, now)
            for index, run in enumerate(runs)
        ]
        request.expect(calls)
        pending = PendingRequest(request, servable, runs, calls, record, deadline, deadlines)
        self._metrics.started(request.id)
        for call in calls:
            servable.submit(call)
        if deadline is not None:
            deadlines.add(request, deadline)
        return pending

    def _inputs(self, signatures: Mapping[str, Signature], run: Run) -> Mapping[str, Array]:
        signature = signatures[run.signature]
        return run.inputs if run.fits is signature else call_inputs(signature, run, self._max_bytes)

    def _open(self) -> CompletionQueue[_Posted]:
        """On the first request, when there is a loop."""
        self._completions = CompletionQueue(_settle)
        self._deadlines = Deadlines(self._completions.loop, _expire)
        return self._completions


class _Request:
    """A request whose calls are submitted. The servable calls ``done`` once for each call, and ``part`` and ``piece``,
    on any thread; the rest happens on the loop. It holds the version until the last call is answered."""

    __slots__ = (
        *("_calls", "_handle", "_left", "_metrics", "_on_call", "_completions"),
        *("answer", "id", "late", "options", "outputs", "room"),
    )

    def __init__(
        self,
        handle: ServableHandle,
        completions: CompletionQueue[_Posted],
        metrics: RequestMetrics,
        late: Reason | None,
        options: CallOptions,
        on_call: OnCall,
    ) -> None:
        self.id = handle.id
        self.late = late
        self._handle = handle
        self._left = 0
        self._completions = completions
        self._metrics = metrics
        self.options = options
        self._on_call = on_call
        self._calls: Sequence[ServableCall] = ()
        self.outputs: list[Mapping[str, Array]] = []
        self.room = _NO_ROOM if options.on_part is None else threading.Semaphore(MAX_PARTS)
        self.answer: asyncio.Future[Sequence[Mapping[str, Array]]] = completions.loop.create_future()

    def expect(self, calls: Sequence[ServableCall]) -> None:
        """Must come before the first call is submitted."""
        self._calls = calls
        self._left = len(calls)
        self.outputs = [{}] * len(calls)

    def done(self, index: int, result: Result) -> None:
        self._completions.post((self, index, result))

    def part(self, outputs: Mapping[str, Tensor]) -> None:
        """One of several answers, before ``done``. Blocks the model while too many wait for the client."""
        while not self.room.acquire(timeout=0 if self.answer.done() else _POLL_SECONDS):
            if self.answer.done():
                return
        self._completions.post((self, _PART, outputs))

    def piece(self, piece: Piece) -> None:
        """A piece of a text. Never blocks, because the length of a text is bounded from the start."""
        self._completions.post((self, _PIECE, piece))

    def settle(self, index: int, result: Any) -> None:
        """``result`` is the :data:`Result` of the call at ``index``; the outputs for ``_PART``, a piece for
        ``_PIECE``."""
        if index < 0:
            self._pass_on(index, result)
            return
        self._left -= 1
        self._on_call(self.id, self._calls[index], result)
        if not self._left:
            self._calls = ()
            self._metrics.finished(self.id)
            self._handle.release()
        if self.answer.done() or self._completions.loop.is_closed():
            return
        if isinstance(result, Status):
            _fail(self.answer, ServingError(result.code, result.message, result.reason))
            return
        self.outputs[index] = result
        if not self._left:
            self.answer.set_result(self.outputs)

    def _pass_on(self, index: int, result: Any) -> None:
        if self.answer.done():
            return
        if index == _PART and self.options.on_part is not None:
            self.options.on_part(self.id, result)
        elif index == _PIECE and self.options.on_piece is not None:
            self.options.on_piece(self.id, result)


_Posted: TypeAlias = tuple[_Request, int, Any]


def _predict_call(
    request: _Request, index: int, run: Run, inputs: Mapping[str, Array], deadline: float | None, now: float
) -> ServableCall:
    options = request.options
    return PredictCall(
        run.signature,
        inputs,
        run.outputs,
        deadline,
        partial(request.done, index),
        options.priority,
        options.timeout,
        now,
        sequence=options.sequence,
        on_part=request.part if options.on_part is not None else None,
    )


def _generation_call(
    request: _Request, index: int, run: Run, inputs: Mapping[str, Array], deadline: float | None, now: float
) -> ServableCall:
    options = request.options
    return GenerationCall(
        run.signature,
        inputs,
        run.outputs,
        deadline,
        partial(request.done, index),
        options.priority,
        options.timeout,
        now,
        texts=options.texts,
        on_piece=request.piece if options.on_piece is not None else None,
        parameters=options.parameters,
    )


class PendingRequest:
    """A request that is queued. On the loop only."""

    __slots__ = ("_calls", "_deadline", "_deadlines", "_record", "_request", "_runs", "_servable")

    def __init__(
        self,
        request: _Request,
        servable: Servable,
        runs: Sequence[Run],
        calls: Sequence[ServableCall],
        record: RequestRecord,
        deadline: float | None,
        deadlines: Deadlines[_Request],
    ) -> None:
        self._request = request
        self._servable = servable
        self._runs = runs
        self._calls = calls
        self._record = record
        self._deadline = deadline
        self._deadlines = deadlines

    async def answer(self) -> Inference:
        """All answers in order, or the first failure, which cancels the other calls. May be awaited once."""
        try:
            outputs = await self._request.answer
        except BaseException:
            self.cancel()
            raise
        finally:
            if self._deadline is not None:
                self._deadlines.discard(self._request)
        for call in self._calls:
            self._record.run_seconds += call.run_seconds
        return Inference(self._request.id, self._runs, outputs)

    def part_sent(self) -> None:
        """One of several answers was sent to the client; a model that waits for that goes on."""
        self._request.room.release()

    def cancel(self) -> None:
        """The caller does not wait any more. May be called at any time, also after the answer."""
        if self._deadline is not None:
            self._deadlines.discard(self._request)
        for call in self._calls:
            self._servable.cancel(call)


def _settle(item: _Posted) -> None:
    request, index, result = item
    request.settle(index, result)


def _expire(request: _Request) -> None:
    if not request.answer.done():
        message = "the deadline passed before the model had answered"
        _fail(request.answer, ServingError(StatusCode.DEADLINE_EXCEEDED, message, request.late))


def _fail(answer: asyncio.Future[Sequence[Mapping[str, Array]]], error: ServingError) -> None:
    """Sets the error, and marks it as retrieved: asyncio must not log it where the caller has gone."""
    answer.set_exception(error)
    answer.exception()
