"""The one path of a request to a model, the same for every protocol and method.

    which version -> [plan: which signature, are the names right, decode] -> which outputs -> do dtypes and shapes fit
    -> submit the calls to the servable -> wait for the answers, or for the caller's cancellation

The caller passes the plan in, because protocols and methods differ in nothing else before the model runs. A plan may
ask for several runs, and one version answers all of them. The handle is held until the servable has answered every
run, also when the client has gone in the meantime, because the model may still be reading the inputs. What happens to
a request from the submitting on is :mod:`pending`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TypeAlias, cast

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.generation import Generation, GenerationCall
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import CallTrace, OnCall, PredictCall, SequenceFlags, Servable, ServableCall
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import Signature
from tfs_lite.core.status import Reason, ServingError, invalid_argument
from tfs_lite.core.trial import NO_TRIALS, Trials
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.server.inference.pending import ClientRoom, Inference, InFlight, PendingRequest

Lookup: TypeAlias = Callable[[ModelRef], ServableHandle]
"""Resolves a name, with a version or label, to a handle; raises ServingError."""

SequenceLookup: TypeAlias = Callable[[ModelRef, SequenceFlags], ServableHandle]
"""Does the same for a request of a sequence, which stays with the version that it began on."""

Plan: TypeAlias = Callable[[Mapping[str, Signature]], Sequence[Run] | Awaitable[Sequence[Run]]]
"""Takes the signatures of the version and returns at least one run; raises ServingError."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of a request in addition to its inputs, as the calls of :mod:`tfs_lite.core.model` and
    :mod:`tfs_lite.core.generation` define it. The caller takes parts (``PendingRequest.next``) of a decoupled model
    with ``in_parts``, of a language model with ``in_pieces``; ``room`` bounds those that wait, in bytes. Models ignore
    options for another kind of model."""

    sequence: SequenceFlags | None = None
    priority: int = 0
    timeout: float = 0.0
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    texts: Sequence[Generation] = ()
    in_parts: bool = False
    in_pieces: bool = False
    room: ClientRoom | None = None


PLAIN = CallOptions()


class Predictor:
    """Used on one event loop only. ``max_bytes`` bounds the size of a default that is repeated for each row."""

    def __init__(
        self,
        lookup: Lookup,
        metrics: RequestMetrics,
        max_bytes: int = MAX_FILL_BYTES,
        lookup_sequence: SequenceLookup | None = None,
        on_call: OnCall = ignore,
        trials: Trials = NO_TRIALS,
    ) -> None:
        """``lookup_sequence`` is used instead of ``lookup`` for requests of a sequence; None means that these are like
        others. ``on_call`` is called on the loop for every call that has ended. ``trials``: the versions on trial; the
        caller goes on to change it."""
        self._lookup = lookup
        self._lookup_sequence = lookup_sequence or (lambda model, sequence: lookup(model))
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._on_call = on_call
        self._trials = trials
        self._in_flight: InFlight | None = None

    def admit(self, model: ModelRef, record: RequestRecord, deadline: float | None) -> None:
        """Checks a request before its body is read: raises the error that any request with this deadline would get now.
        Whether there is such a model is left to ``infer``."""
        try:
            handle = self._lookup(model)
        except ServingError:
            return
        with handle:
            servable: Servable = handle.servable
            refusal = servable.refusal(deadline)
            if refusal is None:
                return
            record.version = handle.id.version
        raise ServingError(refusal.code, refusal.message, refusal.reason)

    async def infer(
        self, model: ModelRef, plan: Plan, record: RequestRecord, deadline: float | None, options: CallOptions = PLAIN
    ) -> Inference:
        """``deadline``, in seconds of ``time.monotonic``, is for the servable, which drops what is too late; the caller
        cancels when it passes. Fills in the version, the deadline and the time in the model of ``record``. Raises
        ServingError; CancelledError when the caller does not wait any more, after which the answers are dropped."""
        handle = self._find(model, record, deadline, options)
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
        handle = self._find(model, record, deadline, options)
        try:
            return self._start(handle, plan(handle.servable), record, deadline, options)
        except BaseException:
            handle.release()
            raise

    def _find(
        self, model: ModelRef, record: RequestRecord, deadline: float | None, options: CallOptions
    ) -> ServableHandle:
        record.deadline = deadline
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
        if self._in_flight is None:  # the first request, when there is a loop
            self._in_flight = InFlight(self._metrics, self._on_call)
        request = PendingRequest(handle, runs, record, self._in_flight, options.room)
        now, calls = monotonic(), list[ServableCall]()
        for index, run in enumerate(runs):
            signature, done = signatures[run.signature], partial(request.done, index)
            inputs = run.inputs if run.fits is signature else call_inputs(signature, run, self._max_bytes)
            call = run.signature, inputs, run.outputs, deadline, done, options.priority, options.timeout, now
            if traits.generates:
                on_piece = request.piece if options.in_pieces else None
                calls.append(
                    GenerationCall(*call, texts=options.texts, on_piece=on_piece, parameters=options.parameters)
                )
            else:
                on_part = request.part if options.in_parts else None
                calls.append(PredictCall(*call, sequence=options.sequence, on_part=on_part))
        if self._metrics.notes_calls:
            for noted in calls:
                noted.trace = CallTrace()
        request.submit(calls, options.in_parts)
        return request
