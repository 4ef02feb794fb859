"""One or more equal models behind a queue: the servable that batches.

    submit -> [queue of the signature] -> an idle worker forms a batch -> assemble -> Model.run -> every call its rows

Decisions are made under one short lock by pure functions (``forming``, ``queue``, ``batch_delay``); models and callers
are called outside it. One wake-up per batch: a caller that adds to a batch which is not due wakes no worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.model import RUNNING, Model, OnBatch, PredictCall, SharedRuns, Traits, WorkerBusy, close_models
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, served
from tfs_lite.core.status import Status, StatusCode, queue_full
from tfs_lite.core.threads import start_all
from tfs_lite.schedulers.batching.cpu_saturation import saturation_of
from tfs_lite.schedulers.batching.execution import Execution
from tfs_lite.schedulers.batching.ordering import Order
from tfs_lite.schedulers.batching.queue import BatchJob
from tfs_lite.schedulers.batching.retries import Loss, Retries
from tfs_lite.schedulers.batching.rules import BatchRule, why_alone
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings
from tfs_lite.schedulers.batching.signature_queue import RuleOf, SignatureQueue
from tfs_lite.schedulers.batching.splitting import SplitCall, split
from tfs_lite.schedulers.batching.worker_threads import WorkerPool, WorkerThread, make_workers
from tfs_lite.schedulers.calls import CANCELLED, LOST_PROCESS, finish

ANSWERS_HELD = 2
"""Answers that may wait for an earlier one where answers keep their order, for each call that may wait for the model. A
call that is cancelled or late has left the queue, but its answer waits."""
PATIENCE = 1.0
"""Seconds for which calls wait when every worker has lost its process."""
BUSY_SECONDS = 0.01
"""Seconds that a worker pauses whose process takes no more requests."""
MOST_SHOWN = 4
"""Conditions of a model that a message names."""
logger = logging.getLogger(__name__)


class BatchingServable:
    """A :class:`~tfs_lite.core.model.Servable`.

    Order: ``submit``, ``cancel`` and ``resize`` any number of times, then ``close`` once. Threads: all any, but
    ``close`` not on one of its own. Promises: every call is answered exactly once, with its own rows or with a status:
    on the submitting thread if it is refused at once, else on a worker's thread, on the clock's or the canceller's; a
    failing batch is run again in halves until only the calls that fail alone are answered with the failure; while idle,
    nothing of the last batch is held. Errors, all through ``on_done``: UNAVAILABLE (queue full, closed, or every worker
    lost), DEADLINE_EXCEEDED and CANCELLED (before the start), INVALID_ARGUMENT (more rows than allowed), what the model
    raises, INTERNAL for anything else it raises.

    With ``retries``, calls whose worker's process was lost are queued again where that is safe, before all others, and
    calls wait for :data:`PATIENCE` seconds for a worker when every one has lost its process. Without, the calls of a
    lost batch, and what waits when every worker is lost, are answered UNAVAILABLE at once.
    """

    def __init__(
        self,
        models: Sequence[Model],
        servable_id: ServableId,
        settings: BatchSettings = ALONE,
        *,
        clock: Clock,
        on_batch: OnBatch = ignore,
        threads: int = 1,
        rule_of: RuleOf = BatchRule.of,
        traits: Traits | None = None,
        retries: Retries | None = None,
    ) -> None:
        """Takes the models over: closes them in the end. ``threads`` is how many each model gets, as far as it allows
        them. ``rule_of`` says which calls may share a run. ``traits`` None means those of the platform
        alone."""
        self.id = servable_id
        self.models: Sequence[Model] = tuple(models)
        self.traits = traits or Traits(models[0].platform)
        self._name = f"{servable_id.name}-{servable_id.version}"
        self._clock = clock
        self._execution = Execution(servable_id, self._name, clock, on_batch, self._ended)
        self._order = Order() if settings.preserve_ordering else None
        self._settings = settings
        self._threads = threads
        self.signatures: Mapping[str, Signature] = served(
            models[0].signatures, servable_id.name, self.traits.max_batch_size
        )
        reasons = list(map(why_alone, self.signatures.values())) if rule_of == BatchRule.of else [""]
        said = "; ".join(f"no two calls share a run: {reason}" for reason in sorted(set(filter(None, reasons))))
        shared = SharedRuns.BY_CONFIG if settings.merges else SharedRuns.OFF
        self.traits = replace(
            self.traits,
            runs_alone=said if settings.merges else "",
            shared_runs=SharedRuns.NEVER if all(reasons) else shared,
        )
        self._lock = threading.Lock()  # guards all below, and ``models``
        self._queues = {
            key: SignatureQueue(key, signature, settings, self._name, rule_of)
            for key, signature in self.signatures.items()
        }
        self._closed = False
        self._retries = retries
        self._patience: Timer | None = None  # runs while every worker has lost its process
        self._losses = 0  # how often it was started
        self._is_refusing = False  # because every worker has lost its process, and patience is over
        self._timer: Timer | None = None
        self._timer_due = inf
        workers = make_workers(models, self._name, threads, self._serve)
        self._workers = WorkerPool(workers)
        self._saturation = saturation_of(models, len(workers))
        start_all([worker.thread for worker in workers])

    @property
    def pending(self) -> int:
        with self._lock:
            return sum(queue.count for queue in self._queues.values())

    @property
    def pending_rows(self) -> int:
        with self._lock:
            return sum(queue.rows for queue in self._queues.values())

    # What callers do.

    def refusal(self, deadline: float | None) -> Status | None:
        """Asks every queue about a call of one row. What a call of another priority is answered is not known."""
        if self._settings.priority_levels:
            return None
        refusal, now = None, self._clock.monotonic()
        with self._lock:
            for key, queue in self._queues.items():
                least = PredictCall(key, {}, (), deadline, ignore)
                job = BatchJob(least, 1, None, now, expires=inf if deadline is None else deadline)
                refusal = self._check_capacity(queue, job)
                if refusal is None:
                    return None
        return refusal

    def submit(self, call: PredictCall) -> None:
        queue = self._queues[call.signature]
        job = queue.job(call, self._clock.monotonic())
        if job.expires <= job.enqueued or (job.size > queue.usual_rows and not job.alone):
            self._submit_unusual(queue, call, job)
            return
        worker = None
        with self._lock:
            refusal = self._check_capacity(queue, job)
            if refusal is None:
                if self._order is not None:
                    self._order.keep(call)
                call.ticket, call.admitted = job, True
                worker = self._add(queue, job)
        if refusal is not None:
            self._finish(call, refusal)
        elif worker is not None:
            worker.wake()

    def _submit_unusual(self, queue: SignatureQueue, call: PredictCall, job: BatchJob) -> None:
        """Refuses a call that cannot be queued whatever waits there, and splits one that is larger than a run."""
        refusal: Status | None
        if job.expires <= job.enqueued:
            reason = f"the deadline passed before the request reached {self._name}"
            refusal = Status(StatusCode.DEADLINE_EXCEEDED, reason)
        else:
            refusal = queue.misfit(job) or self._submit_large(queue, call, job)
        if refusal is not None:
            self._finish(call, refusal)

    def cancel(self, call: PredictCall) -> None:
        ticket = call.ticket
        if isinstance(ticket, SplitCall):
            self._cancel_all(ticket.unanswered())
            return
        if not isinstance(ticket, BatchJob):
            return
        queue = self._queues[call.signature]
        with self._lock:
            removed = queue.remove(ticket)
            worker = self._workers.pop_idle() if removed and queue.count else None
        if worker is not None:
            worker.wake()  # what is left may be a batch of a preferred size
        if removed:
            call.queue_seconds = self._clock.monotonic() - ticket.enqueued
            self._finish(call, CANCELLED)

    def _cancel_all(self, calls: Sequence[PredictCall]) -> None:
        for call in calls:
            self.cancel(call)

    def resize(self, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
        """Adds and removes models without blocking for a run: a model that leaves is closed when the last batch in it
        is over."""
        models = (*(model for model in self.models if all(model is not one for one in remove)), *add)
        workers = make_workers(add, self._name, self._threads, self._serve, self._workers.made)
        with self._lock:
            if self._closed or not models:
                return False
            start_all([worker.thread for worker in workers])  # here, because ``close`` joins all workers of the pool
            self.models = models
            idle = self._workers.change(workers, remove)
            waiting = self._look_for_losses()
            count = len(self._workers)
        for worker in idle:
            worker.wake()
        self._refuse(waiting, "has lost its worker process; try again later")
        saturation = saturation_of(models, count)
        with self._lock:
            self._saturation = saturation
        return True

    def close(self) -> None:
        """Answers what waits, lets running batches finish, ends the threads and closes the models."""
        self.release()
        close_models(self.models, self._name)

    def release(self) -> None:
        """Does what ``close`` does, and leaves the models open, for whoever gave them."""
        with self._lock:
            self._closed = True
            waiting = self._clear()
            idle = self._workers.end()
            timers = [timer for timer in (self._timer, self._patience) if timer is not None]
            self._timer = self._patience = None
        for timer in timers:
            timer.cancel()
        for worker in idle:
            worker.wake()
        self._refuse(waiting, "is being unloaded")
        self._workers.join()

    def _clear(self) -> list[BatchJob]:
        """Takes out all that waits. With the lock held."""
        return [job for queue in self._queues.values() for job in queue.clear()]

    def _refuse(self, jobs: Sequence[BatchJob], reason: str) -> None:
        for job in jobs:
            self._finish(job.call, self._unavailable(reason))

    # Admission.

    def _check_capacity(self, queue: SignatureQueue, job: BatchJob) -> Status | None:
        """The refusal of a job that there is no room for, or None. With the lock held."""
        if self._closed:
            return self._unavailable("is being unloaded")
        if self._is_refusing:
            return self._unavailable(f"{LOST_PROCESS}, and answers again once it has one; try again later")
        if self._order is not None and len(self._order) >= self._answers_held:
            return queue_full(f"{self._name} has too many answers that wait for an earlier one; try again later")
        return queue.refusal(job) or queue.overload(job, len(self._workers))

    @property
    def _answers_held(self) -> int:
        """The number of answers that may wait for an earlier one, those that run included. With the lock held."""
        settings = self._settings
        return ANSWERS_HELD * settings.max_queued_calls + len(self._workers) * max(settings.max_batch_size, 1)

    def _add(self, queue: SignatureQueue, job: BatchJob) -> WorkerThread | None:
        """Queues a job with the lock held. Returns the worker to wake, if the job makes a decision worth while."""
        worth_while = queue.admit(job)
        if queue.next_expiry < self._timer_due:
            self._arm(queue.next_expiry)
        return self._workers.pop_idle() if worth_while else None

    def _submit_large(self, queue: SignatureQueue, call: PredictCall, job: BatchJob) -> Status | None:
        """Splits a call: all splits are queued, or none is."""
        rule, workers, now = queue.rule, list[WorkerThread](), job.enqueued
        largest = queue.settings.max_batch_size if rule is None else rule.part_rows(call.inputs, job.rows)
        if not largest:
            shown = "; ".join(rule.conditions.shown()[:MOST_SHOWN]) if rule is not None and rule.conditions else ""
            return Status(
                StatusCode.INVALID_ARGUMENT,
                f"{job.rows} rows cannot be split into runs of at most {queue.settings.max_batch_size} that "
                f"{self._name} takes ({shown})",
            )
        with self._lock:
            refusal = self._check_capacity(queue, job)
            if refusal is not None:
                return refusal
            if self._order is not None:
                self._order.keep(call)
            parts = split(call, job.rows, queue.room(call, job.rows, largest), largest)
            whole = SplitCall(call, parts, self._cancel_all)
            call.ticket, call.admitted = whole, True
            for each in whole.unanswered():
                each.ticket = part = queue.job(each, now)
                part.level, part.times_out = job.level, job.times_out
                worker = self._add(queue, part)
                if worker is not None:
                    workers.append(worker)
        for worker in workers:
            worker.wake()
        return None

    # Calls that wait too long.

    def _arm(self, due: float) -> None:
        """Sets the timer of the sweep, with the lock held. Called seldom: deadlines mostly come in order, and only the
        earliest needs the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self._sweep)

    def _sweep(self) -> None:
        """Ends what has waited too long, on the clock's thread."""
        with self._lock:
            if self._closed:
                return
            now = self._clock.monotonic()
            self._timer, self._timer_due = None, inf
            dropped = [found for queue in self._queues.values() for found in queue.sweep(now)]
            due = min(queue.next_expiry for queue in self._queues.values())
            if due < inf:
                self._arm(due)
            worker = self._workers.pop_idle()
        if worker is not None:
            worker.wake()  # other calls may have come to the head
        self._drop(dropped, now)

    def _drop(self, dropped: Sequence[tuple[BatchJob, Status]], now: float) -> None:
        for job, status in dropped:
            job.call.queue_seconds = now - job.enqueued
            self._finish(job.call, status)

    # What workers do.

    def _serve(self, worker: WorkerThread) -> None:
        if not worker.model.worker.up:
            self._recover(worker)
        while True:
            queue, jobs = self._next(worker)
            if queue is None:
                self._leave(worker)
                return
            self._run(worker, queue, jobs)
            del queue, jobs

    def _leave(self, worker: WorkerThread) -> None:
        """The worker ends. It may have been woken for a batch, which another one has to take then."""
        with self._lock:
            last = self._workers.mark_ended(worker)
            other = self._workers.pop_idle() if self._has_waiting() else None
        if other is not None:
            other.wake()
        if last:
            close_models([worker.model], self._name)

    def _next(self, worker: WorkerThread) -> tuple[SignatureQueue | None, list[BatchJob]]:
        """The worker's next batch; blocks. Without a queue the worker has to end."""
        while True:
            dropped: list[tuple[BatchJob, Status]] = []
            with self._lock:
                if self._closed or worker.ending.is_set():
                    return None, []
                now = self._clock.monotonic()
                queue, jobs, until = self._choose(now, dropped)
                if queue is None:
                    self._workers.mark_idle(worker)
                other = self._workers.pop_idle() if queue is not None and self._has_waiting() else None
            if other is not None:
                other.wake()  # what is left may be a batch for it
            if dropped:
                self._drop(dropped, now)
            if queue is not None:
                return queue, jobs
            if not worker.sleep(until - now) and not self._woke(worker):
                worker.sleep(inf)  # another thread is about to wake it

    def _woke(self, worker: WorkerThread) -> bool:
        """The worker's sleep has timed out. Returns False if another thread has popped it, and will wake it."""
        with self._lock:
            return self._workers.mark_awake(worker)

    def _has_waiting(self) -> bool:
        """Whether anything waits. With the lock held."""
        for queue in self._queues.values():  # noqa: SIM110 - for every run
            if queue.count:
                return True
        return False

    def _choose(
        self, now: float, dropped: list[tuple[BatchJob, Status]]
    ) -> tuple[SignatureQueue | None, list[BatchJob], float]:
        """Chooses, with the lock held, the batch of the queue that has waited longest, or the time until which there is
        none."""
        until = inf
        queues: Sequence[SignatureQueue] = [queue for queue in self._queues.values() if queue.count]
        if len(queues) > 1:
            queues = sorted(queues, key=lambda queue: queue.oldest)
        for queue in queues:
            if queue.next_expiry <= now:
                dropped.extend(queue.sweep(now))
                if not queue.count:
                    continue
            dropped.extend(queue.shed(now))
            decision = queue.decide(now)
            if decision.take:
                return queue, queue.take(decision.take), until
            queue.wake_rows = decision.wake_rows
            until = min(until, decision.wait_until)
        return None, [], until

    def _run(self, worker: WorkerThread, queue: SignatureQueue, jobs: Sequence[BatchJob]) -> None:
        now = self._clock.monotonic()
        for job in jobs:
            job.call.queue_seconds = now - job.enqueued
            job.call.ticket = RUNNING  # a job and its call would keep each other alive
        loss = self._execution.run(worker.model, queue, jobs)
        if loss is not None:
            self._answer_loss(queue, loss)
            if isinstance(loss.error, WorkerBusy):
                worker.ending.wait(BUSY_SECONDS)
            else:
                self._recover(worker)

    def _answer_loss(self, queue: SignatureQueue, loss: Loss) -> None:
        """Queues again what may run again, and answers the others."""
        with self._lock:
            closed = self._closed
            again = [] if closed or self._retries is None else self._retries.choose(loss, self._clock.monotonic())
            for job in again:
                job.call.ticket = job
            queue.put_back(again)
            if queue.next_expiry < self._timer_due:
                self._arm(queue.next_expiry)
            other = self._workers.pop_idle() if again else None
        if other is not None:
            other.wake()
        waiting = set(again)
        status = self._unavailable("is being unloaded") if closed and loss.unread else loss.error.status
        for job in (*loss.inside, *loss.behind):
            if job not in waiting:
                finish(job.call, status, self._name)

    def _ended(self, queue: SignatureQueue, now: float, rows: int, seconds: float) -> None:
        with self._lock:
            self._saturation.ran(now, seconds)
            queue.ended(now, rows, seconds, self._saturation.saturated)

    def _recover(self, worker: WorkerThread) -> None:
        """Blocks until the worker's model can run again, or the worker has to end."""
        with self._lock:
            self._workers.mark_lost(worker)
            waiting = self._look_for_losses()
        self._refuse(waiting, "has lost its worker process; try again later")
        if not worker.model.recover(worker.ending):
            worker.ending.wait()  # it never runs again
        with self._lock:
            self._workers.mark_recovered(worker)
            self._look_for_losses()

    def _look_for_losses(self) -> list[BatchJob]:
        """Called with the lock held when workers have lost their processes or have got others. Returns the jobs to
        refuse: all that waits, if every worker is lost and patience is over."""
        if not self._workers.is_lost:
            patience, self._patience, self._is_refusing = self._patience, None, False
            if patience is not None:
                patience.cancel()
        elif self._retries is None:
            self._is_refusing = True
        elif self._patience is None and not self._closed:
            self._losses += 1
            self._patience = self._clock.call_later(PATIENCE, partial(self._lose_patience, self._losses))
        return self._clear() if self._is_refusing else []

    def _lose_patience(self, losses: int) -> None:
        """Gives up waiting for lost workers, on the clock's thread."""
        with self._lock:
            if self._workers.is_lost and self._losses == losses and not self._closed:
                self._is_refusing = True
            waiting = self._look_for_losses()
        self._refuse(waiting, "has lost its worker process; try again later")

    def _finish(self, call: PredictCall, status: Status) -> None:
        call.ticket = None
        finish(call, status, self._name)

    def _unavailable(self, reason: str) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} {reason}")
