"""Triton's Direct: every sequence has a row of an instance's batch, and the worker of that instance runs the batches.

    idle --a request in a slot--> form (null rows for slots without one) --> run --> answers, states --> form ...

One thread for each instance. A model that keeps state by row sees each of its sequences always in the same row. Which
requests make a batch is a pure decision over the heads of an instance's slots and the time (:func:`form_direct`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import itemgetter
from typing import Generic

from tfs_lite.core.clock import Timer
from tfs_lite.core.model import RUNNING, BatchReport, Model, OnBatch, WorkerLost, close_models
from tfs_lite.core.status import Status
from tfs_lite.core.threads import start_all
from tfs_lite.schedulers.batching.worker_threads import WorkerThread
from tfs_lite.schedulers.calls import Answer, count_run, failure_of
from tfs_lite.schedulers.sequence.request import SequenceItem, SequenceSlot, T
from tfs_lite.schedulers.sequence.sequence_manager import SequenceEntry, SequenceManager, Taken
from tfs_lite.schedulers.sequence.settings import DirectSettings
from tfs_lite.schedulers.sequence.states import Values
from tfs_lite.schedulers.sequence.worker_generation import WorkerGeneration

Batch = Sequence[Taken | None]
"""A row for each slot from the first on; None is a null row. At least one is a request."""


class DirectWorkers:
    """The threads that run Direct's batches. Promises: every request that was taken is answered exactly once.

    A failing batch fails all requests in it with the failure. It is not tried again in parts, for the state that a
    model keeps cannot be taken back; their sequences go on, with implicit state as it was before the batch. Requests
    that may not share a run (:meth:`RowPlan.fits`) run one after the other.
    """

    def __init__(
        self,
        manager: SequenceManager,
        models: Sequence[Model],
        settings: DirectSettings,
        on_batch: OnBatch,
        implicit: bool,
    ) -> None:
        """Takes the models over. ``implicit`` says that all state is."""
        self._manager = manager
        self._generations = [WorkerGeneration(model, implicit) for model in models]
        self._settings = settings
        self._on_batch = on_batch
        self._closing = threading.Event()
        self._workers = [
            WorkerThread(model, f"tfs-model-{manager.name}-{number}", partial(self._serve, number))
            for number, model in enumerate(models)
        ]
        self._timers: dict[int, Timer] = {}  # of workers that wait for more requests; guarded by the manager's lock

    @property
    def waiting(self) -> int:
        """Requests that were taken and do not run yet."""
        return 0

    def start(self) -> None:
        start_all([worker.thread for worker in self._workers])

    def wake(self, slots: Collection[SequenceSlot]) -> None:
        instances = {slot.instance for slot in slots}
        with self._manager.lock:
            workers = [self._workers[instance] for instance in instances if self._mark_awake(instance)]
        for worker in workers:
            worker.wake()

    def cancel(self, entry: SequenceEntry) -> None:
        self._manager.cancel(entry)

    def close(self) -> None:
        """Lets running batches finish, ends the threads, closes the models."""
        self._closing.set()
        self.wake([SequenceSlot(0, instance) for instance in range(len(self._workers))])
        for worker in self._workers:
            worker.thread.join()
        close_models([worker.model for worker in self._workers], self._manager.name)

    def _mark_awake(self, instance: int) -> bool:
        """Marks the instance's worker as awake, with the lock held. Returns whether the worker slept; then the caller
        wakes it."""
        worker = self._workers[instance]
        timer = self._timers.pop(instance, None)
        if timer is not None:
            timer.cancel()
        slept, worker.idle = worker.idle, False
        return slept

    def _serve(self, instance: int, worker: WorkerThread) -> None:
        while (batch := self._next(instance, worker)) is not None:
            self._run(instance, worker.model, batch)
            del batch

    def _next(self, instance: int, worker: WorkerThread) -> Batch | None:
        """The worker's next batch; blocks. None when the worker has to end."""
        while True:
            with self._manager.lock:
                if self._manager.closed:
                    return None
                ended = self._manager.expire()
                batch, wait_until = self._form(instance)
                if not batch:
                    self._rest(instance, worker, wait_until)
            self._manager.perform(ended)
            if batch:
                return batch
            worker.sleep(inf)

    def _rest(self, instance: int, worker: WorkerThread, until: float) -> None:
        """Marks the worker as idle, with the lock held: it is about to sleep, until ``until`` at the latest."""
        worker.idle = True
        if until < inf:
            delay = until - self._manager.clock.monotonic()
            self._timers[instance] = self._manager.clock.call_later(
                delay, partial(self.wake, [SequenceSlot(0, instance)])
            )

    def _form(self, instance: int) -> tuple[Batch, float]:
        """Forms the next batch, with the lock held, or gives the time until which there is none."""
        heads = self._manager.sequences.heads(instance)
        keys = {head.item: self._key(SequenceSlot(number, instance), head) for number, head in enumerate(heads) if head}
        decision = form_direct(heads, keys.__getitem__, self._settings, self._manager.clock.monotonic())
        slots = [None if row is None else SequenceSlot(number, instance) for number, row in enumerate(decision.rows)]
        if slots and not self._fits(slots, decision.rows):
            slots = self._alone(slots, decision.rows)
        batch = [None if slot is None else self._manager.take(slot) for slot in slots]
        for taken in batch:
            if taken is not None:
                taken.call.ticket = RUNNING  # and cannot be cancelled any more
        return batch, decision.wait_until

    def _fits(self, slots: Sequence[SequenceSlot | None], rows: Sequence[SequenceItem[SequenceEntry] | None]) -> bool:
        """With the lock held: whether these requests share a run."""
        plan = next(row.item.plan for row in rows if row is not None)
        found = [
            None if slot is None or row is None else Taken(slot, row, self._manager.state(slot, row)).row
            for slot, row in zip(slots, rows, strict=True)
        ]
        return plan.fits(found)

    def _alone(
        self, slots: Sequence[SequenceSlot | None], rows: Sequence[SequenceItem[SequenceEntry] | None]
    ) -> list[SequenceSlot | None]:
        """The slots of a run of the oldest of these requests: without null rows, unless the model finds its sequence by
        the row."""
        ready = [(row.arrived, number, row) for number, row in enumerate(rows) if row is not None]
        _, number, first = min(ready, key=itemgetter(0))
        return [slots[number]] if first.item.plan.movable else [*[None] * number, slots[number]]

    def _key(self, slot: SequenceSlot, request: SequenceItem[SequenceEntry]) -> Hashable:
        """Requests with equal keys can share a run. States count: their sizes may change."""
        entry = request.item
        state = self._manager.state(slot, request)
        return entry.plan.key, entry.shapes, tuple([array.shape for array in state.values()])

    def _run(self, instance: int, model: Model, batch: Batch) -> None:
        taken = [each for each in batch if each is not None]
        started = self._manager.clock.monotonic()
        for each in taken:
            each.call.queue_seconds = started - each.request.item.enqueued
        answers, lost = _attempt(model, batch, self._manager.name, self._generations[instance])
        seconds = self._manager.clock.monotonic() - started
        ok = any(not isinstance(answer, Status) for answer, _ in answers)
        waits = tuple([each.call.queue_seconds for each in taken])
        report = BatchReport(self._manager.id, len(taken), len(batch) - len(taken), seconds, waits, ok)
        count_run(self._on_batch, report, self._manager.name)
        if lost:
            self._manager.worker_lost(instance)
        for each, (answer, _) in zip(taken, answers, strict=True):
            each.call.run_seconds = seconds
            self._manager.answer(each.request.item, answer)
        self._manager.done(zip(taken, [state for _, state in answers], strict=True))
        if lost and model.recover(self._closing):
            self._generations[instance].lost()
            self._manager.worker_recovered(instance)


def _attempt(
    model: Model, batch: Batch, name: str, generation: WorkerGeneration
) -> tuple[list[tuple[Answer, Values]], bool]:
    """Runs a batch: gives for each request its answer and the state after it, which is the one before where the run
    failed; and whether the model's worker has died."""
    taken = [each for each in batch if each is not None]
    plan = taken[0].request.item.plan
    lost = False
    try:
        generation.check(name)
        inputs = plan.assemble(model, [None if each is None else each.row for each in batch])
        results = model.run(plan.key, inputs, plan.outputs([each.call for each in taken]))
        generation.check(name)
        failure = plan.fault(results, len(batch))
        if failure is not None and len(batch) > 1 and plan.movable:
            return _attempt_each(model, taken, name, generation)
    except BaseException as error:
        failure, lost = failure_of(error, name), isinstance(error, WorkerLost)
    if failure is not None:
        return [(failure, each.state) for each in taken], lost
    if len(batch) == 1:
        return [plan.outcome(results, None, each.call, each.state) for each in taken], False
    rows = [(index, each) for index, each in enumerate(batch) if each is not None]
    return [each.request.item.plan.outcome(results, index, each.call, each.state) for index, each in rows], False


def _attempt_each(
    model: Model, taken: Sequence[Taken], name: str, generation: WorkerGeneration
) -> tuple[list[tuple[Answer, Values]], bool]:
    """A run for each request, after one whose outputs had no row for each. The model keeps nothing of that."""
    answers, lost = list[tuple[Answer, Values]](), False
    for each in taken:
        found, gone = _attempt(model, [each], name, generation)
        answers, lost = answers + found, lost or gone
    return answers, lost


@dataclass(frozen=True, slots=True)
class DirectDecision(Generic[T]):
    """``rows`` run now, one per slot from slot 0 on; None is a null row. If empty, nothing runs; ask again at
    ``wait_until`` (in ``now``'s clock), or earlier when another request has come."""

    rows: tuple[SequenceItem[T] | None, ...] = ()
    wait_until: float = inf


def form_direct(
    heads: Sequence[SequenceItem[T] | None], key_of: Callable[[T], Hashable], settings: DirectSettings, now: float
) -> DirectDecision[T]:
    """Decides which requests of an idle instance run now. ``heads``: the next request of each slot, None where there is
    none. ``key_of``: what has to be equal in a batch, such as the shapes that may not differ and which inputs there
    are. Any thread.

    The batch reaches up to the highest slot that has a request. The lowest request decides the key; requests with
    another one wait for the next batch, and their row is a null row.
    """
    ready = [request for request in heads if request is not None]
    if not ready:
        return DirectDecision()
    if settings.max_delay > 0 and len(ready) / len(heads) < settings.minimum_utilization:
        end = min(request.arrived for request in ready) + settings.max_delay
        if now < end:
            return DirectDecision(wait_until=end)
    key = key_of(ready[0].item)
    rows = [request if request is not None and key_of(request.item) == key else None for request in heads]
    top = max(number for number, request in enumerate(heads) if request is not None)
    return DirectDecision(tuple(rows[: top + 1]))
