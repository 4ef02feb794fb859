"""The one path of a request to a model, the same for every protocol and method.

    which version -> [plan: which signature, are the names right, decode] -> which outputs -> do dtypes and shapes fit
    -> submit the calls to the servable -> wait for the answers, or for the caller's cancellation

The caller passes the plan in, because protocols and methods differ in nothing else before the model runs. A plan may
ask for several runs, and one version answers all of them. The handle is held until the servable has answered every
run, also when the client has gone in the meantime, because the model may still be reading the inputs. What happens to
a request from the submitting on is :mod:`pending`.

On a version under trial (:mod:`~tfs_lite.core.trial`) a request that fails is run again on the version before it
(:mod:`shield`): its runs, or, where the plan itself failed, what the plan gives for that version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import TypeAlias, cast

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.generation import Generation, GenerationCall
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import CallTrace, OnCall, PredictCall, SequenceFlags, Servable, ServableCall
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import Signature, check_input_names, find_signature
from tfs_lite.core.status import Reason, ServingError, failed_precondition, invalid_argument
from tfs_lite.core.trial import NO_TRIALS, SHIELDED, Trials
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.server.inference.pending import ClientRoom, Inference, InFlight, PendingRequest
from tfs_lite.server.inference.shield import NO_VERSIONS, Shield, Steps, ending_of, may_repeat

Lookup: TypeAlias = Callable[[ModelRef], ServableHandle]
"""Resolves a name, with a version or label, to a handle; raises ServingError."""

SequenceLookup: TypeAlias = Callable[[ModelRef, SequenceFlags], ServableHandle]
"""Does the same for a request of a sequence, which stays with the version that it began on."""

Plan: TypeAlias = Callable[[Mapping[str, Signature]], Sequence[Run] | Awaitable[Sequence[Run]]]
"""Takes the signatures of the version and returns at least one run; raises ServingError. A plan that has failed may be
asked again, for another version."""


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
        Whether there is such a model is left to ``infer``, and so is what the old version of a trial may answer."""
        try:
            handle = self._lookup(model)
        except ServingError:
            return
        with handle:
            servable: Servable = handle.servable
            refusal = servable.refusal(deadline)
            if refusal is None:
                return
            error = ServingError(refusal.code, refusal.message, refusal.reason)
            shield = self._shield(model, handle, record, PLAIN) if self._trials else None
            if shield is not None and (old := self._old(shield, error)) is not None:
                with old:
                    if old.servable.refusal(deadline) is None:
                        return
            record.version = handle.id.version
        raise error

    async def infer(
        self, model: ModelRef, plan: Plan, record: RequestRecord, deadline: float | None, options: CallOptions = PLAIN
    ) -> Inference:
        """``deadline``, in seconds of ``time.monotonic``, is for the servable, which drops what is too late; the caller
        cancels when it passes. Fills in the version, the deadline and the time in the model of ``record``. Raises
        ServingError; CancelledError when the caller does not wait any more, after which the answers are dropped."""
        handle = self._find(model, record, deadline, options)
        shield = self._shield(model, handle, record, options) if self._trials else None
        runs: Sequence[Run] = ()
        try:
            runs = await _planned(plan, handle)
            pending = self._start(handle, runs, record, deadline, options, shield)
        except BaseException as error:
            if shield is None or not isinstance(error, ServingError):
                handle.release()
                raise
            refusal = error.with_traceback(None)
        else:
            return await pending.answer()
        failed = self._unqueued(handle, runs, record, options, shield)
        if not runs and (old := self._old(shield, refusal)) is not None:
            with old, suppress(Exception):
                failed.runs = await _planned(plan, old)
        return await _refused(failed, refusal).answer()

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
        shield = self._shield(model, handle, record, options) if self._trials else None
        runs: Sequence[Run] = ()
        try:
            runs = plan(handle.servable)
            return self._start(handle, runs, record, deadline, options, shield)
        except BaseException as error:
            if shield is None or not isinstance(error, ServingError):
                handle.release()
                raise
            refusal = error.with_traceback(None)
        failed = self._unqueued(handle, runs, record, options, shield)
        if not runs and (old := self._old(shield, refusal)) is not None:
            with old, suppress(Exception):
                failed.runs = plan(old.servable)
        return _refused(failed, refusal)

    # Versions on trial.

    def _shield(
        self, model: ModelRef, handle: ServableHandle, record: RequestRecord, options: CallOptions
    ) -> Shield | None:
        """None for a request that is part of no trial."""
        id, traits = handle.id, handle.servable.traits
        if traits.composing:
            return self._shield_of_ensemble(model, handle, record, options)
        trial = self._trials.get(id.name, NO_VERSIONS).get(id.version)
        if trial is None:
            return None
        repeat = options.sequence is None and may_repeat(traits)
        return Shield(id, trial, record, options, repeat, model.version is None)

    def _shield_of_ensemble(
        self, model: ModelRef, handle: ServableHandle, record: RequestRecord, options: CallOptions
    ) -> Shield | None:
        """Of several versions on trial the latest has the votes, and each is left out when the old ones are asked."""
        id, traits, trials = handle.id, handle.servable.traits, self._trials
        steps = Steps.of(traits.composing, trials, self._lookup)
        found = steps.on_trial
        instead = {name: trial.old for name, (_, trial) in found.items()}
        own, version = trials.get(id.name, NO_VERSIONS).get(id.version), id.version
        if own is not None:
            found[id.name], version = (id.version, own), own.old
        if not found:
            return None
        last = next((name for name in reversed(tuple(trials)) if name in found), next(iter(found)))
        number, trial = found[last]
        repeat = steps.repeat and options.sequence is None and may_repeat(traits)
        shield = Shield(ServableId(last, number), trial, record, options, repeat, model.version is None)
        shield.instead, shield.old = instead, (id.name, version)
        shield.asked = None if last == id.name else id
        return shield

    def _unqueued(
        self, handle: ServableHandle, runs: Sequence[Run], record: RequestRecord, options: CallOptions, shield: Shield
    ) -> PendingRequest:
        """A request of which nothing is queued, and nothing will be on this version."""
        request = PendingRequest(handle, runs, record, self._shared(), options.room, shield)
        handle.release()
        return request

    def _old(self, shield: Shield, error: ServingError) -> ServableHandle | None:
        """The old version, for a request that the new one, or the plan for it, has refused; None if it is not to be
        asked, or gone."""
        if not (shield.asks and ending_of(error.status) in SHIELDED):
            return None
        try:
            return self._lookup(ModelRef(*shield.old))
        except ServingError:
            return None

    def _again(self, shield: Shield, runs: Sequence[Run]) -> PendingRequest:
        """Begins the runs on the old version."""
        record, options = shield.record, shield.options
        handle = self._lookup(ModelRef(*shield.old))
        try:
            if not may_repeat(handle.servable.traits):
                raise failed_precondition(f"requests to {handle.id} are not run again")
            for run in runs:  # their names were checked against the new version only
                check_input_names(find_signature(handle.servable.signatures, run.signature), run.inputs)
            options = replace(options, in_parts=False, in_pieces=False, room=None)
            return self._start(handle, runs, record, record.deadline, options, instead=shield.instead)
        except BaseException:
            handle.release()
            raise

    # The way to a version.

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
        shield: Shield | None = None,
        instead: Mapping[str, int] | None = None,
    ) -> PendingRequest:
        """Owns the handle from the moment that every call is queued."""
        servable: Servable = handle.servable
        traits = servable.traits
        if traits.has_item_steps:
            record.late = Reason.JOB_EXPIRED
        if not runs:
            raise invalid_argument("nothing is to be run")
        signatures = servable.signatures
        request = PendingRequest(handle, runs, record, self._in_flight or self._shared(), options.room, shield)
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
                calls.append(PredictCall(*call, sequence=options.sequence, on_part=on_part, instead=instead))
        if self._metrics.notes_calls:
            for noted in calls:
                noted.trace = CallTrace()
        request.submit(calls, options.in_parts)
        return request

    def _shared(self) -> InFlight:
        if self._in_flight is None:  # the first request, when there is a loop
            self._in_flight = InFlight(self._metrics, self._on_call, self._again)
        return self._in_flight


async def _planned(plan: Plan, handle: ServableHandle) -> Sequence[Run]:
    planned = plan(handle.servable.signatures)
    return planned if isinstance(planned, list | tuple) else await cast("Awaitable[Sequence[Run]]", planned)


def _refused(request: PendingRequest, error: ServingError) -> PendingRequest:
    """The request, which the new version cannot run, on its way to the old one. Raises the error if it is on none."""
    request.refuse(error)
    request.check()
    return request
