"""An ensemble as a servable: it looks like a model, and runs those of its steps.

submit -> pin the versions of the steps that are needed -> EnsembleRun -> the models' own servables -> the answer
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from tfs_lite.config.model import ModelSettings
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import FixedInstances, JudgesCalls, Model, OnCall, PredictCall, SequenceFlags, Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, served
from tfs_lite.core.status import ServingError, Status, StatusCode, queue_full
from tfs_lite.schedulers.calls import finish
from tfs_lite.schedulers.ensemble.graph import EnsemblePlan, plan_for
from tfs_lite.schedulers.ensemble.models import (
    Resolve,
    Wanted,
    check_models,
    loads_of,
    missing_of,
    model_text,
    wanted_by,
)
from tfs_lite.schedulers.ensemble.run import EnsembleRun, Pin, depth_of, in_ensemble, pin
from tfs_lite.schedulers.ensemble.types import Interface, ModelStep, graph_of, interface_of

__all__ = ["EnsembleServable", "Resolve", "ResolveSequence"]

ResolveSequence = Callable[[str, int | None, SequenceFlags], ServableHandle]
"""A function like ``Resolve``, for a request of a sequence, which stays with the version that it began on."""

ENSEMBLE = "ensemble"
"""The platform."""
MAX_REQUESTS = 1000
MAX_DEPTH = 16
"""Ensembles inside one another."""
MAX_PLANS = 64
"""Choices of outputs that are remembered."""


class EnsembleServable(FixedInstances, JudgesCalls):
    """A :class:`~tfs_lite.core.model.Servable`, and a model of another ensemble as well.

    Order: ``submit`` and ``cancel`` any number of times, then ``close`` once. Threads: all any. Promises: every call is
    answered exactly once, on the submitting thread if it is refused at once, else on one of a step's; the versions that
    a call uses are chosen when it comes, and released when its last step has ended; tensors are handed on without
    copies; the stack does not grow with the steps. Errors, all through ``on_done``: UNAVAILABLE (too many calls inside,
    a step's model is not available, closed), DEADLINE_EXCEEDED (on arrival), CANCELLED, and those of the steps, with
    ``in ensemble 'NAME', step 0 (model M): `` before them.
    """

    def __init__(
        self,
        servable_id: ServableId,
        model_settings: ModelSettings,
        resolve: Resolve,
        on_call: OnCall = ignore,
        *,
        resolve_sequence: ResolveSequence | None = None,
        max_requests: int = MAX_REQUESTS,
        now: Callable[[], float] = time.monotonic,
        labels: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """Looks at the models of all steps. UNAVAILABLE, with ``WAITS_FOR_MODELS``, if one of them is not available;
        INVALID_ARGUMENT if the ensemble does not fit them or contains itself; UNIMPLEMENTED for a model that gives
        several answers. ``on_call`` is told about each call of a step. ``resolve_sequence`` is asked for the models of
        requests of a sequence; with None they are like others. ``max_requests`` bounds the calls inside, unless the
        config does. ``labels`` are those that the config has, by output."""
        self.id = servable_id
        self.models: tuple[Model, ...] = ()
        self._graph = graph_of(servable_id.name, model_settings)
        signature = {DEFAULT_SIGNATURE: self._graph.signature}
        self._signatures = served(signature, servable_id.name, self._graph.max_batch_size)
        self._resolve = resolve
        self._resolve_sequence = resolve_sequence
        self._on_call = on_call
        self._now = now
        scheduling = model_settings.ensemble_scheduling
        self._max_requests = (scheduling.max_inflight_requests if scheduling else 0) or max_requests
        self._wanted = {step.index: wanted_by(step) for step in self._graph.steps}
        composing = tuple(dict.fromkeys(self._wanted.values()))
        self.traits = Traits(
            ENSEMBLE,
            max_batch_size=self._graph.max_batch_size,  # 0: its tensors have no batch dimension
            labels=_Labels(labels, self.origins, resolve),
            composing=composing,
            loads=partial(loads_of, composing, resolve),
        )
        self._interfaces: dict[Wanted, tuple[Signature, Interface]] = {}  # by the last version seen; a write is atomic
        self._plans: dict[tuple[str, ...], EnsemblePlan] = {}  # like it
        self._lock = threading.Lock()  # guards the two below
        self._inside = 0
        self._closed = False
        check_models(self._graph, resolve)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    @property
    def origins(self) -> Mapping[str, tuple[Wanted, str]]:
        """Maps each output to the model that gives it, and that model's name for it."""
        makers = self._graph.makers
        made = {name: makers[name] for name in self._graph.signature.output_names if name in makers}
        return {name: (wanted_by(step), output) for name, (step, output) in made.items()}

    def missing(self) -> tuple[Wanted, ...]:
        """The models of ``traits.composing`` that are not available now; requests fail as long as there are any."""
        return missing_of(self.traits.composing, self._resolve)

    @property
    def pending(self) -> int:
        """Calls inside: the steps of each wait in queues of their own."""
        with self._lock:
            return self._inside

    @property
    def pending_rows(self) -> int:
        return self.pending

    def submit(self, call: PredictCall) -> None:
        refusal = self._check_call(call) or self._acquire()
        if refusal is not None:
            finish(call, refusal, self._graph.name)
            return
        plan = self._plan(call.outputs)
        handles: dict[Wanted, ServableHandle] = {}

        def leave() -> None:
            for handle in handles.values():
                handle.release()
            with self._lock:
                self._inside -= 1

        try:
            pins = self._pin(plan, handles, call)
        except ServingError as error:
            leave()
            finish(call, error.status, self._graph.name)
            return
        call.admitted = True
        call.arrived = call.arrived or self._now()
        run = EnsembleRun(self._graph, plan, call, pins, on_call=self._on_call, on_end=leave, now=self._now)
        call.ticket = run
        run.begin()

    def cancel(self, call: PredictCall) -> None:
        """The call is answered CANCELLED at once, also when steps of it run; those that wait do not run."""
        ticket = call.ticket
        if isinstance(ticket, EnsembleRun):
            ticket.cancel()

    def close(self) -> None:
        """Refuses later calls. The models belong to others."""
        with self._lock:
            self._closed = True

    def _check_call(self, call: PredictCall) -> Status | None:
        name = self._graph.name
        if call.deadline is not None and call.deadline <= self._now():
            return Status(StatusCode.DEADLINE_EXCEEDED, f"the deadline passed before the request reached {name}")
        if depth_of(call) >= MAX_DEPTH:
            return Status(
                StatusCode.INVALID_ARGUMENT, f"more than {MAX_DEPTH} ensembles are inside one another at {name}"
            )
        return None

    def _acquire(self) -> Status | None:
        with self._lock:
            if self._closed:
                return Status(StatusCode.UNAVAILABLE, f"ensemble {self._graph.name} is being unloaded")
            if self._inside >= self._max_requests:
                reason = (
                    f"ensemble {self._graph.name} has {self._max_requests} requests inside, its most; try again later"
                )
                return queue_full(reason)
            self._inside += 1
            return None

    def _plan(self, outputs: tuple[str, ...]) -> EnsemblePlan:
        known = self._plans.get(outputs)
        if known is not None:
            return known
        plan = plan_for(self._graph, outputs)
        if len(self._plans) < MAX_PLANS:
            self._plans[outputs] = plan
        return plan

    def _pin(self, plan: EnsemblePlan, handles: dict[Wanted, ServableHandle], call: PredictCall) -> dict[int, Pin]:
        """The versions of all steps that are needed, by step. Adds to ``handles`` what is to be released, also when it
        raises: UNAVAILABLE if a model is not available."""
        pins, instead = {}, call.instead or {}
        for step in plan.steps:
            wanted = self._wanted[step.index]
            if wanted[1] is None and wanted[0] in instead:
                wanted = wanted[0], instead[wanted[0]]
            if wanted not in handles:
                handles[wanted] = self._find(step, wanted, call.sequence)
            pins[step.index] = pin(handles[wanted], partial(self._interface, wanted))
        return pins

    def _find(self, step: ModelStep, wanted: Wanted, sequence: SequenceFlags | None) -> ServableHandle:
        try:
            if sequence is not None and self._resolve_sequence is not None:
                return self._resolve_sequence(*wanted, sequence)
            return self._resolve(*wanted)
        except ServingError as error:
            status = error.status
            if status.code is StatusCode.NOT_FOUND:
                status = Status(StatusCode.UNAVAILABLE, f"{model_text(wanted)} is not available")
            status = in_ensemble(self._graph.name, status, step)
            raise ServingError(status.code, status.message, status.reason) from None

    def _interface(self, wanted: Wanted, signature: Signature) -> Interface:
        known = self._interfaces.get(wanted)
        if known is None or known[0] is not signature:
            known = self._interfaces[wanted] = (signature, interface_of(signature))
        return known[1]


class _Labels(Mapping[str, Sequence[str]]):
    """Names of classes, by output: the ensemble's own, else those of the model that gives the output, if it is
    available now."""

    def __init__(
        self, own: Mapping[str, Sequence[str]], origins: Mapping[str, tuple[Wanted, str]], resolve: Resolve
    ) -> None:
        self._own = own
        self._origins = origins
        self._resolve = resolve

    def __getitem__(self, name: str) -> Sequence[str]:
        if (own := self._own.get(name)) is not None:
            return own
        wanted, output = self._origins[name]
        try:
            with self._resolve(*wanted) as handle:
                labels: Mapping[str, Sequence[str]] = handle.servable.traits.labels
                return labels[output]
        except ServingError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (name for name in {**self._own, **self._origins} if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
