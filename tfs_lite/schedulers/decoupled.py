"""Models with several answers to a request, or none: every call alone, its answers passed on as the model gives them.

    submit -> [queue] -> an idle instance -> Model.parts -> on_part, on_part, ... -> on_done without outputs

Triton calls such models decoupled. ``on_part`` may block, which is how a caller that reads slowly slows the model down.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.model import BatchReport, JudgesCalls, Model, OnBatch, PredictCall, Traits, WorkerLost, close_models
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, served
from tfs_lite.core.status import Status, StatusCode, invalid_argument, queue_full
from tfs_lite.core.threads import start_all
from tfs_lite.schedulers.calls import CANCELLED, count_run, failure_of, finish, rows_of

MAX_TIMED_PARTS = 1000
"""The most answers of one call whose times are noted."""
logger = logging.getLogger(__name__)


class _Instance:
    """A model and its thread. ``ending`` is set when the thread has to end after its call."""

    def __init__(self, model: Model, name: str, serve: Callable[[_Instance], None]) -> None:
        self.model = model
        self.ending = threading.Event()
        self.thread = threading.Thread(target=serve, args=(self,), name=name, daemon=True)


class DecoupledServable(JudgesCalls):
    """A :class:`~tfs_lite.core.model.Servable`. One thread for each model.

    Promises: answers of a call come in order, and ``on_done`` once, after the last; a call that is cancelled or whose
    deadline passes gets no answer after the one that the model is at. Errors, through ``on_done``: UNAVAILABLE (queue
    full, closed, worker lost), DEADLINE_EXCEEDED, CANCELLED, UNIMPLEMENTED (the caller takes one answer only), what the
    model raises, also after some answers.
    """

    def __init__(
        self,
        models: Sequence[Model],
        servable_id: ServableId,
        *,
        clock: Clock,
        max_queued_calls: int = 1000,
        on_batch: OnBatch = ignore,
        traits: Traits | None = None,
    ) -> None:
        """Takes the models over: closes them in the end. ``traits`` None: those of the platform alone.
        INVALID_ARGUMENT, with the models left to the caller, for models with item steps."""
        if models[0].has_item_steps:
            raise invalid_argument(
                "model_transaction_policy.decoupled: a model with preprocess or postprocess answers once"
            )
        self.traits = replace(traits or Traits(models[0].platform), decoupled=True)
        self._id = servable_id
        self._signatures = served(models[0].signatures, servable_id.name, self.traits.max_batch_size)
        self._name = f"{servable_id.name}-{servable_id.version}"
        self._clock = clock
        self._max_queued_calls = max_queued_calls
        self._on_batch = on_batch
        self._changed = threading.Condition()  # guards all below
        self._queue: deque[tuple[PredictCall, float]] = deque()
        self._cancelled: set[int] = set()  # calls that run, by identity
        self._running: set[int] = set()
        self._closed = False
        self._made = 0  # how many instances there have ever been
        self._leaving: list[_Instance] = []
        self._instances = self._started(models)

    @property
    def models(self) -> Sequence[Model]:
        with self._changed:
            return tuple(instance.model for instance in self._instances)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    @property
    def pending(self) -> int:
        with self._changed:
            return len(self._queue)

    @property
    def pending_rows(self) -> int:
        return self.pending

    def submit(self, call: PredictCall) -> None:
        refusal = self._refusal(call)
        if refusal is None:
            with self._changed:
                if self._closed:
                    refusal = self._unavailable("is being unloaded")
                elif len(self._queue) >= self._max_queued_calls:
                    text = f"{self._name} has {self._max_queued_calls} calls waiting, the most allowed"
                    refusal = queue_full(f"{text}; try again later")
                else:
                    call.admitted = True
                    self._queue.append((call, self._clock.monotonic()))
                    self._changed.notify()
        if refusal is not None:
            finish(call, refusal, self._name)

    def cancel(self, call: PredictCall) -> None:
        """A call that runs ends at its next answer."""
        with self._changed:
            waiting = next((entry for entry in self._queue if entry[0] is call), None)
            if waiting is not None:
                self._queue.remove(waiting)
            elif id(call) in self._running:
                self._cancelled.add(id(call))
        if waiting is not None:
            finish(call, CANCELLED, self._name)

    def resize(self, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
        """Adds and removes models without blocking for a call: a model that leaves is closed when its call is over."""
        with self._changed:
            leaving = [each for each in self._instances if any(each.model is model for model in remove)]
            staying = [each for each in self._instances if each not in leaving]
            if self._closed or not (staying or add):
                return False
            added = self._started(add)
            self._instances = [*staying, *added]
            self._leaving = [each for each in self._leaving if each.thread.is_alive()] + leaving
            for each in leaving:
                each.ending.set()
            self._changed.notify_all()
        return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for each in self._instances:
                each.ending.set()
            waiting, self._queue = self._queue, deque()
            self._changed.notify_all()
        for call, _ in waiting:
            finish(call, self._unavailable("is being unloaded"), self._name)
        for each in (*self._instances, *self._leaving):
            each.thread.join()
        close_models([each.model for each in self._instances], self._name)

    def _started(self, models: Sequence[Model]) -> list[_Instance]:
        """Instances whose threads have been started. A resize holds the lock, so that ``close`` finds all of them."""
        first = self._made
        self._made += len(models)
        found = [
            _Instance(model, f"tfs-parts-{self._name}-{number}", self._serve)
            for number, model in enumerate(models, first)
        ]
        start_all([instance.thread for instance in found])
        return found

    def _refusal(self, call: PredictCall) -> Status | None:
        if call.on_part is None:
            message = f"{self._name} may give several answers to a request (decoupled): ask for them as a stream"
            return Status(StatusCode.UNIMPLEMENTED, message)
        return self._late(call)

    def _late(self, call: PredictCall) -> Status | None:
        if call.deadline is None or call.deadline > self._clock.monotonic():
            return None
        message = f"the deadline passed before {self._name} had given its last answer"
        return Status(StatusCode.DEADLINE_EXCEEDED, message)

    def _serve(self, instance: _Instance) -> None:
        model = instance.model
        while (entry := self._next(instance)) is not None:
            call, queued = entry
            call.queue_seconds = self._clock.monotonic() - queued
            status, lost = self._late(call), False
            if status is None:
                status, lost = self._run(model, call)
            with self._changed:
                self._running.discard(id(call))
                self._cancelled.discard(id(call))
            finish(call, status or {}, self._name)
            del call, entry
            if lost and not model.recover(instance.ending):
                break
        self._leave(instance)

    def _next(self, instance: _Instance) -> tuple[PredictCall, float] | None:
        """A call, and when it came; blocks. None when the instance has to end."""
        with self._changed:
            while not (self._queue or instance.ending.is_set()):
                self._changed.wait()
            if instance.ending.is_set():
                return None
            call, queued = self._queue.popleft()
            self._running.add(id(call))
            return call, queued

    def _leave(self, instance: _Instance) -> None:
        """The instance ends. It may have been woken for a call, which another one has to take then."""
        with self._changed:
            closes = instance in self._leaving
            self._changed.notify()
        if closes:
            close_models([instance.model], self._name)

    def _run(self, model: Model, call: PredictCall) -> tuple[Status | None, bool]:
        """Returns how it failed (None if it did not), and whether the model has lost its worker."""
        started = self._clock.monotonic()
        status, lost = self._pass_on(model, call)
        call.run_seconds = self._clock.monotonic() - started
        rows = rows_of(call.inputs) if self.traits.max_batch_size else 1
        report = BatchReport(self._id, rows, 0, call.run_seconds, (call.queue_seconds,), status is None)
        count_run(self._on_batch, report, self._name)
        return status, lost

    def _pass_on(self, model: Model, call: PredictCall) -> tuple[Status | None, bool]:
        assert call.on_part is not None
        seconds = call.part_seconds = []
        try:
            asked = self._clock.monotonic()
            for outputs in model.parts(call.signature, call.inputs, call.outputs):
                if len(seconds) < MAX_TIMED_PARTS:
                    seconds.append(self._clock.monotonic() - asked)
                ended = self._reason_to_stop(call)
                if ended is not None:
                    return ended, False
                call.on_part(outputs)
                asked = self._clock.monotonic()
        except BaseException as error:
            return failure_of(error, self._name), isinstance(error, WorkerLost)
        return None, False

    def _reason_to_stop(self, call: PredictCall) -> Status | None:
        """Why the next answer is not wanted; None if it is."""
        with self._changed:
            if id(call) in self._cancelled:
                return CANCELLED
        return self._late(call)

    def _unavailable(self, reason: str) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} {reason}")
