"""The one path of a request to a model, whatever protocol and method it came by.

    which version -> [plan: which signature, are the names right, decode] -> which outputs -> do dtypes and shapes fit
    -> hand the calls to the servable -> wait for the answers, the deadline or the client's going

The plan is passed in: it is all that protocols and methods differ in before the model runs. It may ask for several
runs; all of them are answered by the same version. The handle is held until the servable has answered every run, also
when the client has gone in the meantime: the model may still be reading the inputs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TypeAlias, cast

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
"""Resolves name, version or label to a handle; raises ServingError."""

SequenceLookup: TypeAlias = Callable[[ModelRef, SequenceFlags], ServableHandle]
"""The same for a request of a sequence, which stays with the version that it began on."""

Plan: TypeAlias = Callable[[Mapping[str, Signature]], Sequence[Run] | Awaitable[Sequence[Run]]]
"""From the signatures of the version to what is to be run, once at least; raises ServingError."""

Result: TypeAlias = Mapping[str, Tensor] | Status

OnPart: TypeAlias = Callable[[ServableId, Mapping[str, Array]], None]
"""Told, on the loop, about each answer of a model that gives several to a request."""

OnPiece: TypeAlias = Callable[[ServableId, Piece], None]

MAX_PARTS = 64
"""Answers of one request that the client has not been sent yet."""
_LOOK_SECONDS = 0.2
"""How often a model that waits for its client looks whether it is still there."""
_NO_ROOM = threading.Semaphore(0)
_PART, _PIECE = -1, -2
"""In place of the number of a run: not its end."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a request says beside its inputs. ``priority`` and ``timeout``, in seconds, count where the model's settings
    have them; ``sequence`` is for models with state, ``on_part`` for those with several answers. ``parameters`` are for
    models that know them. ``texts`` and ``on_piece`` are for language models: what is to be generated, instead of
    inputs, and who is told, on the loop, about every piece of it; both may stand alone."""

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
    """Used on one event loop only. ``max_bytes`` bounds what a default may be repeated to."""

    def __init__(
        self,
        lookup: Lookup,
        metrics: RequestMetrics,
        max_bytes: int = MAX_FILL_BYTES,
        lookup_sequence: SequenceLookup | None = None,
        on_call: OnCall = ignore,
    ) -> None:
        """``lookup_sequence`` is asked instead of ``lookup`` for requests of a sequence; None: they are like others.
        ``on_call`` is told, on the loop, about every call that has ended."""
        self._lookup = lookup
        self._lookup_sequence = lookup_sequence or (lambda model, sequence: lookup(model))
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._on_call = on_call
        self._outbox: CompletionQueue[_Posted] | None = None
        self._deadlines: Deadlines[_Request] | None = None

    async def infer(
        self,
        model: ModelRef,
        plan: Plan,
        record: RequestRecord,
        deadline: float | None,
        options: CallOptions = PLAIN,
    ) -> Inference:
        """``deadline`` is in seconds of the event loop's clock, which is ``time.monotonic``. Fills in the version and
        the time in the model of ``record``. Raises ServingError; CancelledError when the client has gone, after which
        the answers are dropped."""
        handle = self._find(model, record, options)
        try:
            planned = plan(handle.servable.signatures)
            runs = planned if isinstance(planned, list | tuple) else await cast("Awaitable[Sequence[Run]]", planned)
            started = self._start(handle, runs, record, deadline, options)
        except BaseException:
            handle.release()
            raise
        return await started.answer()

    def begin(
        self,
        model: ModelRef,
        plan: Callable[[Servable], Sequence[Run]],
        record: RequestRecord,
        deadline: float | None,
        options: CallOptions = PLAIN,
    ) -> PendingRequest:
        """The same up to the queue: when this returns, the request has its place there, so that requests that are begun
        one after the other are queued in this order. Whoever begins awaits the answer or cancels."""
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
        """Takes the handle over once it has queued every call."""
        servable: Servable = handle.servable
        traits = servable.traits
        if traits.has_item_steps:
            record.late = Reason.JOB_EXPIRED
        if not runs:
            raise invalid_argument("nothing is to be run")
        signatures = servable.signatures
        outbox = self._outbox or self._open()
        deadlines = self._deadlines
        assert deadlines is not None
        request = _Request(handle, outbox, self._metrics, record.late, options, self._on_call)
        now = monotonic()
        make_call = _generation_call if traits.generates else _predict_call
        calls = [
            make_call(request, index, run, self._inputs(signatures, run), deadline, now)
            for index, run in enumerate(runs)
        ]
        request.expect(calls)
        started = PendingRequest(request, servable, runs, calls, record, deadline, deadlines)
        self._metrics.started(request.id)
        for call in calls:
            servable.submit(call)
        if deadline is not None:
            deadlines.add(request, deadline)
        return started

    def _inputs(self, signatures: Mapping[str, Signature], run: Run) -> Mapping[str, Array]:
        signature = signatures[run.signature]
        return run.inputs if run.fits is signature else call_inputs(signature, run, self._max_bytes)

    def _open(self) -> CompletionQueue[_Posted]:
        """On the first request, when there is a loop."""
        self._outbox = CompletionQueue(_settle)
        self._deadlines = Deadlines(self._outbox.loop, _expire)
        return self._outbox


class _Request:
    """A request whose calls are inside. ``done`` is called by the servable, on any thread, once for each call; the rest
    happens on the loop. Holds the version until the last call is answered."""

    __slots__ = (
        *("_calls", "_handle", "_left", "_metrics", "_on_call", "_outbox"),
        *("answer", "id", "late", "options", "outputs", "room"),
    )

    def __init__(
        self,
        handle: ServableHandle,
        outbox: CompletionQueue[_Posted],
        metrics: RequestMetrics,
        late: Reason | None,
        options: CallOptions,
        on_call: OnCall,
    ) -> None:
        self.id = handle.id
        self.late = late
        self._handle = handle
        self._left = 0
        self._outbox = outbox
        self._metrics = metrics
        self.options = options
        self._on_call = on_call
        self._calls: Sequence[ServableCall] = ()
        self.outputs: list[Mapping[str, Array]] = []
        self.room = _NO_ROOM if options.on_part is None else threading.Semaphore(MAX_PARTS)
        self.answer: asyncio.Future[Sequence[Mapping[str, Array]]] = outbox.loop.create_future()

    def expect(self, calls: Sequence[ServableCall]) -> None:
        """Before the first is submitted."""
        self._calls = calls
        self._left = len(calls)
        self.outputs = [{}] * len(calls)

    def done(self, index: int, result: Result) -> None:
        self._outbox.post((self, index, result))

    def part(self, outputs: Mapping[str, Tensor]) -> None:
        """One of several answers, as ``done`` before the last. Blocks the model while too many are on their way to a
        client that is still there."""
        while not self.room.acquire(timeout=0 if self.answer.done() else _LOOK_SECONDS):
            if self.answer.done():
                return
        self._outbox.post((self, _PART, outputs))

    def piece(self, piece: Piece) -> None:
        """Of a text. Never blocks: how long a text may get is known from the start."""
        self._outbox.post((self, _PIECE, piece))

    def settle(self, index: int, result: Result | Piece) -> None:
        if index < 0:
            self._pass_on(index, result)
            return
        result = cast("Result", result)
        self._left -= 1
        self._on_call(self.id, self._calls[index], result)
        if not self._left:
            self._calls = ()
            self._metrics.finished(self.id)
            self._handle.release()
        if self.answer.done() or self._outbox.loop.is_closed():
            return
        if isinstance(result, Status):
            _fail(self.answer, ServingError(result.code, result.message, result.reason))
            return
        self.outputs[index] = cast("Mapping[str, Array]", result)
        if not self._left:
            self.answer.set_result(self.outputs)

    def _pass_on(self, index: int, result: Result | Piece) -> None:
        if self.answer.done():
            return
        if index == _PART and self.options.on_part is not None:
            self.options.on_part(self.id, cast("Mapping[str, Array]", result))
        elif index == _PIECE and self.options.on_piece is not None:
            self.options.on_piece(self.id, cast("Piece", result))


_Posted: TypeAlias = tuple[_Request, int, Result | Piece]


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
        """All answers in order; or the first failure, and then the others are not worth running. Once."""
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

    def took(self) -> None:
        """One of several answers has been sent; the model may go on if it waited for that."""
        self._request.room.release()

    def cancel(self) -> None:
        """Nobody waits for it any more. May be called at any time, also after the answer."""
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
    """Whoever began the request may have gone before asking, which is no fault: asyncio is told that it was seen."""
    answer.set_exception(error)
    answer.exception()
