"""Triton's Oldest: each instance has a batcher, and each sequence there has at most one request in it.

    the head of a slot -> a call with control tensors and states -> the instance's batcher -> answer -> the next head

So batches are formed from the oldest requests, whatever their slots, and never hold two of one sequence.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from tfs_lite.core.model import BatchReport, Model, ModelAround, OnBatch, PredictCall, Shapes, WorkerLost
from tfs_lite.core.signature import ShapeContract, Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.schedulers.batching.assembly import rows_fault
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.queue import BatchJob
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.schedulers.batching.signature_queue import SignatureQueue
from tfs_lite.schedulers.batching.worker_threads import WorkerThread
from tfs_lite.schedulers.calls import Answer
from tfs_lite.schedulers.sequence.request import SequenceSlot
from tfs_lite.schedulers.sequence.sequence_manager import PREDECESSOR_DROPPED, SequenceEntry, SequenceManager, Taken
from tfs_lite.schedulers.sequence.worker_generation import WorkerGeneration

NEVER_RAN = (StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED)
"""The codes with which a batcher answers what has not run."""


class OldestBatchers:
    """The batchers of Oldest, one for each instance. Order: ``start``; then ``wake`` and ``cancel`` on any thread;
    ``close`` after the manager's, once. Promises: every request that was taken is answered exactly once; the next one
    of its sequence comes to the batcher after that.

    A request that leaves the batcher without having run (cancelled, too late, refused) ends its sequence, which would
    have a hole. One that fails does not, and its implicit state is what it was before. A failing batch is tried again
    in halves only if the model keeps nothing itself: else it may have it already.
    """

    def __init__(
        self,
        manager: SequenceManager,
        models: Sequence[Model],
        settings: BatchSettings,
        on_batch: OnBatch,
        implicit: bool,
        stateless: bool,
    ) -> None:
        """Takes the models over. ``implicit`` says that all state is; ``stateless``, that they keep none themselves."""
        self._manager = manager
        self._settings = settings
        self._watched = [
            WatchedModel(
                model,
                partial(manager.worker_lost, i),
                on_batch,
                implicit,
                batched=settings.merges,
                name=manager.name,
                repeatable=stateless,
            )
            for i, model in enumerate(models)
        ]
        self._batchers: list[_Batcher] = []
        self._due: list[deque[SequenceSlot]] = [
            deque() for _ in models
        ]  # may have a head; guarded by the manager's lock
        self._submitting = [False for _ in models]  # whether a thread submits; likewise

    @property
    def waiting(self) -> int:
        """Requests that were taken and do not run yet."""
        return sum(batcher.pending for batcher in self._batchers)

    def start(self) -> None:
        """Starts all batchers, or none: UNAVAILABLE if the system refuses a thread."""
        try:
            for instance, model in enumerate(self._watched):
                self._batchers.append(
                    _Batcher(model, self._manager, self._settings, partial(self._manager.worker_recovered, instance))
                )
        except ServingError:
            for batcher in self._batchers:
                batcher.release()
            raise

    def wake(self, slots: Collection[SequenceSlot]) -> None:
        instances = dict.fromkeys(slot.instance for slot in slots)
        with self._manager.lock:
            for slot in slots:
                self._due[slot.instance].append(slot)
        for instance in instances:
            self._submit_next(instance)

    def cancel(self, entry: SequenceEntry) -> None:
        if not self._manager.cancel(entry):
            self._cancel_inner(entry)

    def close(self) -> None:
        """Answers what waits in the batchers, lets running batches finish, ends the threads, closes the models."""
        for batcher in self._batchers:
            batcher.close()

    def _cancel_inner(self, entry: SequenceEntry) -> None:
        with self._manager.lock:
            inner, slot = entry.inner, entry.slot
        if inner is not None and slot is not None:
            self._batchers[slot.instance].cancel(inner)

    def _submit_next(self, instance: int) -> None:
        """One thread at a time: a batcher may answer at once, and then there is more to submit, on the same stack."""
        with self._manager.lock:
            if self._submitting[instance]:
                return
            self._submitting[instance] = True
        while (taken := self._next(instance)) is not None:
            entry, inner = taken.request.item, self._call(taken)
            with self._manager.lock:
                entry.inner = inner
            self._batchers[instance].submit(inner)
            with self._manager.lock:
                cancelled = entry.cancelled
            if cancelled:  # perhaps before the batcher knew the call
                self._batchers[instance].cancel(inner)

    def _next(self, instance: int) -> Taken | None:
        """The next request of the instance; None if there is none until the next ``wake``."""
        with self._manager.lock:
            due = self._due[instance]
            if self._manager.closed or self._manager.is_lost(instance):
                due.clear()  # when it has recovered, all slots are looked into
            while due:
                with suppress(LookupError):  # the slot has nothing to run, any more or yet
                    return self._manager.take(due.popleft())
            self._submitting[instance] = False
            return None

    def _call(self, taken: Taken) -> PredictCall:
        call, plan = taken.call, taken.request.item.plan
        submitted = self._manager.clock.monotonic()
        return PredictCall(
            call.signature,
            plan.own_inputs(taken.row),
            plan.outputs([call]),
            call.deadline,
            partial(self._answered, taken, submitted),
            may_lack=True,  # the plan tells what is missing
        )

    def _answered(self, taken: Taken, submitted: float, answer: Answer) -> None:
        """Passes an answer on, on a thread of the batcher, or on one that submits or cancels."""
        entry, call, state = taken.request.item, taken.call, taken.state
        with self._manager.lock:
            inner, entry.inner = entry.inner, None
        assert inner is not None
        call.ticket = None
        call.queue_seconds = submitted - entry.enqueued + inner.queue_seconds
        call.run_seconds = inner.run_seconds
        if not isinstance(answer, Status):
            answer, state = entry.plan.outcome(answer, None, call, state)
        elif not inner.admitted or answer.code in NEVER_RAN:
            self._manager.end(entry, PREDECESSOR_DROPPED if answer.code in NEVER_RAN else answer)
        self._manager.answer(entry, answer)
        self._manager.done([(taken, state)])
        self.wake([taken.slot])


class _Batcher(BatchingServable):
    """The batcher of one instance. ``recovered`` is called when it takes calls again after its worker was lost."""

    def __init__(
        self, model: WatchedModel, manager: SequenceManager, settings: BatchSettings, recovered: Callable[[], None]
    ) -> None:
        self._model = model
        self._recovered = recovered
        super().__init__([model], manager.id, settings, clock=manager.clock, on_batch=model.report)

    def _run(self, worker: WorkerThread, queue: SignatureQueue, jobs: Sequence[BatchJob]) -> None:
        self._model.begin()
        super()._run(worker, queue, jobs)

    def _recover(self, worker: WorkerThread) -> None:
        super()._recover(worker)
        self._recovered()


class WatchedModel(ModelAround):
    """A model with a batcher of its own, and so only one thread. ``lost`` is called when the worker has died, before
    any call of that run is answered.

    Unless a failing batch may run again (``repeatable``), what the batcher tries in halves after a failure is not run:
    the failure is raised for every part of it, and reported only once.
    """

    def __init__(
        self,
        model: Model,
        lost: Callable[[], None],
        on_batch: OnBatch,
        implicit: bool,
        *,
        batched: bool,
        name: str,
        repeatable: bool,
    ) -> None:
        super().__init__(model)
        self._name = name
        self._batched = batched
        self._lost = lost
        self._on_batch = on_batch
        self._repeatable = repeatable
        self._failure: BaseException | None = None  # of the batch that is being run
        self._reported = False
        self._generation = WorkerGeneration(model, implicit)

    def begin(self) -> None:
        """A batch comes, in one run or more."""
        self._failure, self._reported = None, False

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        if self._failure is not None:
            raise self._failure
        try:
            self._generation.check(self._name)
            results = self._inner.run(signature, inputs, outputs)
            self._generation.check(self._name)
            self._check_rows(signature, inputs, results)
        except WorkerLost:
            self._lost()
            raise
        except BaseException as error:
            if not self._repeatable:
                self._failure = error
            raise
        return results

    def report(self, report: BatchReport) -> None:
        """Counts a run; to be called after each."""
        if self._failure is None or not self._reported:
            self._on_batch(report)
        self._reported = True

    @property
    def concurrency(self) -> int:
        return 1

    @property
    def useful_threads(self) -> int:
        return 1

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        try:
            return self._inner.stage(signature, shapes)
        except WorkerLost:
            self._lost()
            raise

    def recover(self, give_up: threading.Event) -> bool:
        recovered = self._inner.recover(give_up)
        self._generation.lost()
        return recovered

    def _check_rows(self, signature: str, inputs: Mapping[str, Tensor], results: Mapping[str, Tensor]) -> None:
        """A single row is refused here, unless outputs are served as they come. Of several, the batcher refuses them or
        runs them apart; a model with state is not run again for it."""
        rows = max((array.shape[0] if array.shape else 0 for array in inputs.values()), default=0)
        fault = rows_fault(results, rows) if self._batched and rows else None
        if fault is None:
            return
        error = ServingError(fault.code, fault.message)
        if rows > 1:
            self._failure = None if self._repeatable else error
        elif self.signatures[signature].contract is ShapeContract.ALL:
            raise error
