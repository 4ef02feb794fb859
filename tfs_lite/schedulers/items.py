"""Models with steps for single items: their requests are changed before they are batched, and their answers after.

    submit -> [waits] -> Model.preprocess -> the inner servable: queue, batch, run
           -> [waits] -> Model.postprocess -> answer

A few threads do both steps, apart from the threads that run the model. What clients see is the model's signatures; the
batch is made of whatever ``preprocess`` returned, and :class:`ItemRule` says which of that may share a run.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

from tfs_lite.core.model import JudgesCalls, Model, PredictCall, PredictServable
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, queue_full
from tfs_lite.core.threads import start_all
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.schedulers.calls import CANCELLED, Answer, complete, finish

DEFAULT_THREADS = 2
DEFAULT_MAX_WAITING = 1000
SHORTEST_STEP = 1e-9
"""Seconds. A step that has failed counts as run, however short it was."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ItemRule(BatchRule):
    """The rule which results of ``preprocess`` may share a run: those that agree in names, dtypes and the shape of a
    row.

    They are not declared, so ``names`` is empty, nothing is filled up, and rows are the first dimension of any input.
    """

    @classmethod
    def of(cls, signature: Signature, settings: BatchSettings) -> ItemRule | None:
        """Makes the rule of a signature. ``signature`` is what clients see: its batch bounds the rows of a run. Returns
        None if every call runs alone."""
        firsts = [spec.shape[0] for spec in signature.inputs if spec.shape]
        bounds = [dim.maximum for dim in firsts if isinstance(dim, SymbolicDim) and dim.maximum is not None]
        batch = SymbolicDim("batch", min(bounds, default=None))
        rule = BatchRule.of(Signature((TensorSpec("items", DataType.FLOAT, (batch,)),), ()), settings)
        if rule is None:
            return None
        values = {each.name: getattr(rule, each.name) for each in fields(rule)}
        return cls(**{**values, "names": ()})


class _Stage(enum.Enum):
    WAITS = "for preprocess"
    PREPARED = "it is in preprocess"
    INSIDE = "in the inner servable"
    RAN = "it waits for postprocess"
    FINISHED = "it is in postprocess"


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A call that is not answered yet. All but ``call`` and ``model`` is guarded by the servable's lock."""

    call: PredictCall
    model: Model
    stage: _Stage = field(default=_Stage.WAITS)
    inner: PredictCall | None = field(default=None)
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    cancelled: bool = field(default=False)
    answered: bool = field(default=False)


class ItemServable(JudgesCalls):
    """A :class:`~tfs_lite.core.model.Servable` in front of another one, for models that have item steps.

    Order: ``submit``, ``cancel`` and ``resize`` any number of times, then ``close`` once. Threads: all any, but
    ``close`` not on one of its own or the inner servable's. Promises: every call is answered exactly once: on the
    submitting or cancelling thread, on one of its own, or, if the inner servable fails the call, on that one's; what
    has run goes before what has not; the inner servable gets the results of ``preprocess`` under the default signature
    and is asked for all outputs. Not promised: that a step can be interrupted; that steps of several calls, or steps
    and runs, do not overlap. Times of a call are those of the inner servable, without the steps.

    Errors, all through ``on_done``: UNAVAILABLE (too many calls wait, or closed), DEADLINE_EXCEEDED (also between
    steps), CANCELLED, what the model raises, INTERNAL for anything else it raises, and what the inner servable answers.
    """

    def __init__(
        self,
        inner: PredictServable,
        models: Sequence[Model],
        name: str,
        *,
        threads: int = DEFAULT_THREADS,
        max_waiting: int = DEFAULT_MAX_WAITING,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes ``inner`` over, which closes the ``models`` in the end; calls go to them in turn. ``name`` is for
        threads and messages, ``max_waiting`` bounds the calls before ``preprocess``."""
        self.inner = inner
        self.traits = replace(inner.traits, has_item_steps=True)
        self._name = name
        self._max_waiting = max_waiting
        self._monotonic = monotonic
        self._changed = threading.Condition()  # guards the fields below, and every pending call
        self._waiting: OrderedDict[_PendingCall, None] = OrderedDict()
        self._ran: OrderedDict[_PendingCall, None] = OrderedDict()
        self._rotation = deque(models)  # for new calls; the first is the next one
        self._resizing = threading.Lock()  # held while the inner servable is resized, which is for one thread at a time
        self._leaving: list[Model] = []
        self._open_calls = Counter[int]()  # calls that are not answered, by the identity of their models
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tfs-items-{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        start_all(self._threads)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self.inner.signatures

    @property
    def pending(self) -> int:
        with self._changed:
            own = len(self._waiting) + len(self._ran)
        return own + self.inner.pending

    @property
    def pending_rows(self) -> int:
        with self._changed:
            own = len(self._waiting) + len(self._ran)
        return own + self.inner.pending_rows

    @property
    def models(self) -> Sequence[Model]:
        return self.inner.models

    # What callers do.

    def submit(self, call: PredictCall) -> None:
        refusal = self._late(call) or self._enqueue(call)
        if refusal is not None:
            self._answer(call, refusal)

    def cancel(self, call: PredictCall) -> None:
        pending = call.ticket
        if not isinstance(pending, _PendingCall):
            return
        with self._changed:
            pending.cancelled = True
            waited = pending in self._waiting or pending in self._ran
            self._waiting.pop(pending, None)
            self._ran.pop(pending, None)
            inner = pending.inner if pending.stage is _Stage.INSIDE else None
        if waited:
            self._finish(pending, CANCELLED)
        elif inner is not None:
            self.inner.cancel(inner)

    def resize(self, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
        """A model leaves the inner servable when the last call that has begun with it is answered."""
        staying = [model for model in self._rotation if all(model is not one for one in remove)]
        with self._resizing:
            if not (staying or add) or not self.inner.resize(add):
                return False
        with self._changed:
            self._rotation = deque((*staying, *add))
            self._leaving += remove
        self._remove_leaving()
        return True

    def _remove_leaving(self) -> None:
        """Removes the models that leave and have no call."""
        with self._changed:
            free = [model for model in self._leaving if id(model) not in self._open_calls]
            self._leaving = [model for model in self._leaving if id(model) in self._open_calls]
        if free:
            with self._resizing:
                self.inner.resize((), free)

    def close(self) -> None:
        """Answers what waits for ``preprocess``, ends the threads after what has run, closes the inner servable."""
        with self._changed:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for pending in waiting:
            self._finish(pending, self._unavailable("is being unloaded"))
        for thread in self._threads:
            thread.join()
        self.inner.close()

    def _enqueue(self, call: PredictCall) -> Status | None:
        with self._changed:
            if self._closed:
                return self._unavailable("is being unloaded")
            if len(self._waiting) >= self._max_waiting:
                return queue_full(
                    f"{self._name} has {self._max_waiting} requests waiting, the most allowed; try again later"
                )
            pending = _PendingCall(call, self._rotation[0])
            self._rotation.rotate(-1)
            self._open_calls[id(pending.model)] += 1
            call.ticket = pending
            self._waiting[pending] = None
            self._changed.notify()
        return None

    # What its threads do.

    def _work(self) -> None:
        while (pending := self._next()) is not None:
            step = self._prepare if pending.stage is _Stage.PREPARED else self._complete
            began = self._monotonic()
            try:
                step(pending)
            except ServingError as error:
                self._count_step(pending.call, began)
                invalid = error.code is StatusCode.INVALID_ARGUMENT and pending.stage is _Stage.PREPARED
                self._finish(pending, replace(error.status, reason=Reason.INVALID_ITEM) if invalid else error.status)
            except BaseException as error:
                self._count_step(pending.call, began)
                logger.exception("a step of %s broke its contract: it may only raise ServingError", self._name)
                self._finish(pending, Status(StatusCode.INTERNAL, f"{self._name} failed: {type(error).__name__}"))
            del pending, step

    def _count_step(self, call: PredictCall, began: float) -> None:
        """A call whose step has failed was run by the model, and did not end in a queue."""
        call.run_seconds += max(self._monotonic() - began, SHORTEST_STEP)

    def _next(self) -> _PendingCall | None:
        """Blocks. Returns None when closed, and all that ran is taken."""
        with self._changed:
            while not (self._ran or self._waiting or self._closed):
                self._changed.wait()
            if self._ran:
                pending, _ = self._ran.popitem(last=False)
                pending.stage = _Stage.FINISHED
                return pending
            if self._waiting:
                pending, _ = self._waiting.popitem(last=False)
                pending.stage = _Stage.PREPARED
                return pending
            return None

    def _prepare(self, pending: _PendingCall) -> None:
        call = pending.call
        late = self._late(call)
        if late is not None:
            self._finish(pending, late)
            return
        inputs = pending.model.preprocess(call.signature, call.inputs, call.deadline)
        inner = PredictCall(
            DEFAULT_SIGNATURE,
            inputs,
            (),
            call.deadline,
            partial(self._inner_done, pending),
            priority=call.priority,
            timeout=call.timeout,
            may_lack=True,  # its outputs may be for postprocess
        )
        refusal = self._mark_inside(pending, inner)
        if refusal is not None:
            self._finish(pending, refusal)
            return
        self.inner.submit(inner)
        with self._changed:
            cancelled = pending.cancelled
        if cancelled:  # perhaps before the inner servable knew the call
            self.inner.cancel(inner)

    def _mark_inside(self, pending: _PendingCall, inner: PredictCall) -> Status | None:
        with self._changed:
            if pending.cancelled:
                return CANCELLED
            if self._closed:
                return self._unavailable("is being unloaded")
            pending.stage, pending.inner = _Stage.INSIDE, inner
        return None

    def _inner_done(self, pending: _PendingCall, result: Answer) -> None:
        """Takes a result, on the inner servable's thread."""
        refusal = result if isinstance(result, Status) else None
        with self._changed:
            if pending.inner is not None:
                pending.call.queue_seconds = pending.inner.queue_seconds
                pending.call.run_seconds = pending.inner.run_seconds
            pending.stage, pending.inner = _Stage.RAN, None
            if not isinstance(result, Status):
                if pending.cancelled:
                    refusal = CANCELLED
                elif self._closed:
                    refusal = self._unavailable("is being unloaded")
                else:
                    pending.outputs = result
                    self._ran[pending] = None
                    self._changed.notify()
        if refusal is not None:
            self._finish(pending, refusal)

    def _complete(self, pending: _PendingCall) -> None:
        call = pending.call
        late = self._late(call)
        if late is not None:
            self._finish(pending, late)
            return
        outputs = pending.model.postprocess(call.signature, pending.outputs, call.deadline)
        wanted = call.outputs or self.signatures[call.signature or DEFAULT_SIGNATURE].output_names
        model, _, version = self._name.rpartition("-")
        answer = complete(call, outputs, wanted, f"model {model} version {version}")
        if call.outputs and not isinstance(answer, Status):
            answer = {name: answer[name] for name in call.outputs if name in answer}
        self._finish(pending, answer)

    # Answers.

    def _late(self, call: PredictCall) -> Status | None:
        if call.deadline is None or self._monotonic() < call.deadline:
            return None
        return Status(StatusCode.DEADLINE_EXCEEDED, f"the deadline passed while the request waited for {self._name}")

    def _finish(self, pending: _PendingCall, result: Answer) -> None:
        with self._changed:
            answered, pending.answered, pending.outputs = pending.answered, True, {}
            pending.call.ticket = None
            if not answered:
                self._call_ended(pending.model)
            leaving = bool(self._leaving)
        if not answered:
            self._answer(pending.call, result)
        if leaving:
            self._remove_leaving()

    def _call_ended(self, model: Model) -> None:
        """Records that a call of the model is answered, with the lock held."""
        self._open_calls[id(model)] -= 1
        if not self._open_calls[id(model)]:
            del self._open_calls[id(model)]

    def _answer(self, call: PredictCall, result: Answer) -> None:
        if isinstance(result, Status) and result.code is StatusCode.DEADLINE_EXCEEDED:
            result = replace(result, reason=Reason.JOB_EXPIRED)
        finish(call, result, self._name)

    def _unavailable(self, reason: str) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} {reason}")
