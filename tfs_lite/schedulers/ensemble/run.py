"""One request on its way through the steps of an ensemble.

    begin -> [steps that can run] -> their models' own schedulers -> on_done, on any thread
          -> [steps that can run now] -> ... -> the answer, once

Every step is a call of its own, queued at its model like a client's. The thread that ends one (a thread of that model,
or this very thread when the model refuses at once) queues what can run next; one thread at a time does that, so that
the stack does not grow with the steps.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import CallTrace, OnCall, PredictCall, PredictServable, StepTimes
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor, check_input_names, find_signature, named
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.schedulers.calls import CANCELLED, Answer, finish
from tfs_lite.schedulers.ensemble.graph import EnsemblePlan, Progress
from tfs_lite.schedulers.ensemble.types import EnsembleGraph, Interface, ModelStep, adapt_batch_dimension

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class StepCall(PredictCall):
    """A call that an ensemble makes. ``depth`` is how many ensembles it is inside of."""

    depth: int = field(default=1)


@dataclass(frozen=True, slots=True)
class Pin:
    """The version that runs a step of this request, whatever is loaded meanwhile."""

    handle: ServableHandle
    servable: PredictServable
    signature: Signature
    interface: Interface


def pin(handle: ServableHandle, interface_of: Callable[[Signature], Interface]) -> Pin:
    """Pins the version of a handle. FAILED_PRECONDITION for a model that has no signature of the usual name,
    UNIMPLEMENTED for one that gives several answers."""
    servable: PredictServable = handle.servable
    if servable.traits.decoupled:
        raise ServingError(
            StatusCode.UNIMPLEMENTED,
            f"model {handle.id.name} gives several answers to a request; ensembles of such models are not served yet",
        )
    signature = find_signature(servable.signatures, DEFAULT_SIGNATURE)
    return Pin(handle, servable, signature, interface_of(signature))


@dataclass(frozen=True, slots=True)
class _Effects:
    """The effects to have outside the lock: release the versions, answer, take calls back."""

    release: bool
    answer: Answer | None
    unwanted: Sequence[tuple[int, StepCall]]


class EnsembleRun:
    """One run of an ensemble: ``begin`` once; ``cancel`` on any thread, at any time. The call is answered exactly once:
    with the outputs when every step has ended, or at once with the first failure; then no step is begun any more, those
    that wait leave their queues, and what the others give is dropped. ``on_end`` is called once, when the last step has
    ended: before the answer if nothing is inside then, else after it."""

    __slots__ = (
        "_answered",
        "_call",
        "_depth",
        "_graph",
        "_inside",
        "_lock",
        "_now",
        "_on_call",
        "_on_end",
        "_pins",
        "_plan",
        "_progress",
        "_queueing",
        "_ready",
        "_released",
        "_tensors",
    )

    def __init__(
        self,
        graph: EnsembleGraph,
        plan: EnsemblePlan,
        call: PredictCall,
        pins: Mapping[int, Pin],
        *,
        on_call: OnCall,
        on_end: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """``pins`` are those of the steps of ``plan``; the caller releases them in ``on_end``."""
        self._graph = graph
        self._plan = plan
        self._call = call
        self._pins = pins
        self._on_call = on_call
        self._on_end = on_end
        self._now = now
        self._depth = depth_of(call) + 1
        self._lock = threading.Lock()  # guards all below, and the times of the call until it is answered
        self._tensors: dict[str, Tensor] = dict(call.inputs)
        self._progress = Progress(plan)
        self._ready: deque[int] = deque()
        self._inside: dict[int, StepCall | None] = {}  # steps that have begun and not ended; None if not queued yet
        self._queueing = False  # a thread queues steps
        self._answered = False
        self._released = False

    def begin(self) -> None:
        with self._lock:
            self._ready.extend(self._progress.begin())
            effects = self._conclude()
        self._act(effects)
        self._queue_ready()

    def cancel(self) -> None:
        with self._lock:
            effects = self._conclude(CANCELLED)
        self._act(effects)

    # Steps that can run.

    def _queue_ready(self) -> None:
        with self._lock:
            if self._queueing:
                return
            self._queueing = True
        while (step := self._next()) is not None:
            self._submit(step, self._pins[step.index])

    def _next(self) -> ModelStep | None:
        """The next step to queue; None if there is none; then this thread queues no more."""
        with self._lock:
            if not self._ready:
                self._queueing = False
                return None
            index = self._ready.popleft()
            self._inside[index] = None
            return self._graph.steps[index]

    def _submit(self, step: ModelStep, pin: Pin) -> None:
        try:
            call = self._step_call(step, pin)
            with self._lock:
                self._inside[step.index] = call
            pin.servable.submit(call)
        except ServingError as error:
            self._end(step, error.status)
            return
        except Exception:
            logger.exception("%s of ensemble %s cannot be asked", step, self._graph.name)
            self._end(step, Status(StatusCode.INTERNAL, f"{step} cannot be asked"))
            return
        with self._lock:
            unwanted = self._answered and step.index in self._inside
        if unwanted:
            pin.servable.cancel(call)  # the answer came before it could be cancelled

    def _step_call(self, step: ModelStep, pin: Pin) -> StepCall:
        """Raises ServingError if the tensors do not fit the model."""
        outer, asked = self._call, self._plan.asked[step.index]
        sent = self._inputs(step, pin.interface)
        try:
            check_input_names(pin.signature, sent)
        except ServingError as error:
            raise named(error, pin.signature.model) from None
        inputs = call_inputs(pin.signature, Run(DEFAULT_SIGNATURE, sent, asked))
        return StepCall(
            DEFAULT_SIGNATURE,
            inputs,
            asked,
            outer.deadline,
            partial(self._step_done, step),
            outer.priority,
            outer.timeout,
            sequence=outer.sequence,
            may_lack=True,
            instead=outer.instead,
            arrived=self._now(),
            depth=self._depth,
            trace=None if outer.trace is None else CallTrace(),
        )

    def _inputs(self, step: ModelStep, interface: Interface) -> dict[str, Array]:
        """The inputs that there are, in the shapes that the model takes."""
        with self._lock:
            sent = {name: self._tensors[tensor] for name, tensor in step.inputs.items() if tensor in self._tensors}
        for name, value in sent.items():
            if name in interface.inputs:
                sent[name] = adapt_batch_dimension(
                    value, self._is_batched(step.inputs[name]), interface, interface.inputs[name]
                )
        return cast("dict[str, Array]", sent)

    def _is_batched(self, tensor: str) -> bool:
        made = self._graph.makers.get(tensor)
        return self._graph.interface.batched if made is None else self._pins[made[0].index].interface.batched

    # Steps that have ended.

    def _step_done(self, step: ModelStep, result: Answer) -> None:
        """A step's ``on_done``: any thread."""
        with self._lock:
            call = self._inside[step.index]
            assert call is not None  # it was noted before it was queued
            if not self._answered:
                self._add_times(self._pins[step.index].handle.id, call, result)
        try:
            self._on_call(self._pins[step.index].handle.id, call, result)
        except Exception:
            logger.exception("a call of %s could not be counted", step)
        self._end(step, result)

    def _add_times(self, servable_id: ServableId, step_call: StepCall, result: Answer) -> None:
        """Adds the times of a step's call, with the lock held. The sums may be longer than the request took: steps run
        side by side."""
        call = self._call
        if call.trace is not None and step_call.trace is not None:
            code = result.code if isinstance(result, Status) else StatusCode.OK
            waited, ran, copied = step_call.queue_seconds, step_call.run_seconds, step_call.copy_seconds
            step = StepTimes(servable_id, step_call.arrived, self._now(), waited, ran, copied, code, step_call.trace)
            call.trace.steps += (step,)
        call.queue_seconds += step_call.queue_seconds
        call.run_seconds += step_call.run_seconds
        before, behind = step_call.copy_seconds
        call.copy_seconds = (call.copy_seconds[0] + before, call.copy_seconds[1] + behind)

    def _end(self, step: ModelStep, result: Answer) -> None:
        with self._lock:
            del self._inside[step.index]
            if isinstance(result, Status):
                self._progress.failed(step.index)
                effects = self._conclude(in_ensemble(self._graph.name, result, step))
            else:
                made = {tensor: result[name] for name, tensor in step.outputs.items() if name in result}
                self._tensors.update(made)
                self._ready.extend(self._progress.done(step.index))
                effects = self._conclude()
        self._act(effects)
        self._queue_ready()

    # The answer.

    def _conclude(self, failure: Status | None = None) -> _Effects:
        """Decides, with the lock held and after every change, whether the run is answered and its versions are
        released."""
        answer: Answer | None = None
        unwanted: list[tuple[int, StepCall]] = []
        if not self._answered:
            if failure is not None:
                answer = failure
                self._progress.end()
                self._ready.clear()
                unwanted = [(index, call) for index, call in self._inside.items() if call is not None]
            elif self._progress.complete or self._progress.stuck:
                answer = self._outputs() or in_ensemble(self._graph.name, _DEADLOCK)
            self._answered = answer is not None
        release = self._answered and not (self._inside or self._released)
        self._released = self._released or release
        return _Effects(release, answer, unwanted)

    def _act(self, effects: _Effects) -> None:
        if effects.release:
            self._on_end()
        if effects.answer is not None:
            self._call.ticket = None  # or each would keep the other alive
            finish(self._call, effects.answer, self._graph.name)
        for index, call in effects.unwanted:
            self._pins[index].servable.cancel(call)

    def _outputs(self) -> dict[str, Tensor]:
        """The wanted outputs that there are."""
        interface, found = self._graph.interface, self._tensors
        return {
            name: adapt_batch_dimension(found[name], self._is_batched(name), interface, interface.outputs[name])
            for name in self._plan.outputs
            if name in found
        }


_DEADLOCK = Status(
    StatusCode.INVALID_ARGUMENT, "unexpected deadlock: no step has given any of the outputs that were asked for"
)


def in_ensemble(name: str, status: Status, step: ModelStep | None = None) -> Status:
    """The failure of a step as the ensemble's own, which names the step."""
    where = f"{step}: " if step is not None else ""
    return replace(status, message=f"in ensemble '{name}', {where}{status.message}")


def depth_of(call: PredictCall) -> int:
    """How many ensembles the call is inside of."""
    return call.depth if isinstance(call, StepCall) else 0
