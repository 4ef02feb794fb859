"""One or more equal models behind a queue: who runs next, and with whom. What handles give out.

    submit -> [queue of the signature] -> an idle lane forms a batch -> assemble -> Model.run -> every call its rows

Decisions are made under one short lock by pure functions (``forming``, ``queue``, ``patience``); models and callers are
called outside it. One wake-up per batch: a caller that adds to a batch which is not due rings no bell.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from math import inf

from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.model import Model, OnBatch, PredictCall, Traits, WorkerLost, nobody_counts
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.cpu_saturation import strain_of
from tfs_lite.schedulers.batching.execution import CANCELLED, Execution, finish
from tfs_lite.schedulers.batching.job import Job
from tfs_lite.schedulers.batching.ordering import Order
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings
from tfs_lite.schedulers.batching.signature_queue import RuleOf, SignatureQueue
from tfs_lite.schedulers.batching.splitting import SplitCall, split
from tfs_lite.schedulers.batching.worker_threads import WorkerPool, WorkerThread, make_lanes

ANSWERS_HELD = 2
"""Answers that may wait for an earlier one, for each call that may wait for the model, where they keep their order: a
call that is cancelled or late has left the queue, but its answer waits."""
logger = logging.getLogger(__name__)


class BatchingServable(Traits):
    """A :class:`~tfs_lite.core.model.Servable`.

    Order: ``submit``, ``cancel`` and ``resize`` any number of times, then ``close`` once. Threads: all any, but
    ``close`` not on one of its own. Promises: every call is answered exactly once, with its own rows or with a status:
    on the submitting thread if it is refused at once, else on a lane's thread, on the clock's or the canceller's; a
    failing batch is run again in halves until only the calls that fail alone are answered with the failure; while idle,
    nothing of the last batch is held. Errors, all through ``on_done``: UNAVAILABLE (queue full, closed, or every worker
    lost), DEADLINE_EXCEEDED and CANCELLED (before the start), INVALID_ARGUMENT (more rows than allowed), what the model
    raises, INTERNAL for anything else it raises.
    """

    def __init__(
        self,
        models: Sequence[Model],
        servable_id: ServableId,
        settings: BatchSettings = ALONE,
        *,
        clock: Clock,
        on_batch: OnBatch = nobody_counts,
        threads: int = 1,
        rule_of: RuleOf = BatchRule.of,
    ) -> None:
        """Takes the models over: closes them in the end. ``threads``: of each model, as far as it bears them.
        ``rule_of`` says which calls may share a run."""
        self.id = servable_id
        self.models: Sequence[Model] = tuple(models)
        self._name = f"{servable_id.name}-{servable_id.version}"
        self._clock = clock
        self._execution = Execution(servable_id, self._name, clock, on_batch, self._ended)
        self._order = Order() if settings.preserve_ordering else None
        self._settings = settings
        self._threads = threads
        self.signatures: Mapping[str, Signature] = models[0].signatures
        self._lock = threading.Lock()  # guards all below, the lines, the crew, and ``models``
        self._lines = {
            key: SignatureQueue(key, signature, settings, self._name, rule_of)
            for key, signature in self.signatures.items()
        }
        self._closed = False
        self._timer: Timer | None = None
        self._timer_due = inf
        lanes = make_lanes(models, self._name, threads, self._serve)
        self._crew = WorkerPool(lanes)
        self._strain = strain_of(models, len(lanes))
        for lane in lanes:
            lane.thread.start()

    @property
    def platform(self) -> str:
        return self.models[0].platform

    @property
    def pending(self) -> int:
        with self._lock:
            return sum(len(line.queue) for line in self._lines.values())

    @property
    def pending_rows(self) -> int:
        with self._lock:
            return sum(line.queue.rows for line in self._lines.values())

    # What callers do.

    def submit(self, call: PredictCall) -> None:
        line = self._lines[call.signature]
        job = line.job(call, self._clock.monotonic())
        refusal = self._hindrance(line, job)
        if refusal is None and line.is_large(job):
            refusal = self._submit_large(line, call, job)
            if refusal is None:
                return
        lane = None
        if refusal is None:
            with self._lock:
                refusal = self._closed_to(line, job)
                if refusal is None:
                    self._keep_order(call)
                    call.ticket, call.admitted = job, True
                    lane = self._add(line, job)
        if refusal is not None:
            self._finish(call, refusal)
        elif lane is not None:
            lane.ring()

    def cancel(self, call: PredictCall) -> None:
        ticket = call.ticket
        if isinstance(ticket, SplitCall):
            self._cancel_all(ticket.unanswered())
            return
        if not isinstance(ticket, Job):
            return
        line = self._lines[call.signature]
        with self._lock:
            removed = line.remove(ticket)
            lane = self._crew.pop_idle() if removed and len(line.queue) else None
        if lane is not None:
            lane.ring()  # what is left may be a batch of a preferred size
        if removed:
            call.queue_seconds = self._clock.monotonic() - ticket.enqueued
            self._finish(call, CANCELLED)

    def _cancel_all(self, calls: Sequence[PredictCall]) -> None:
        for call in calls:
            self.cancel(call)

    def resize(self, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
        """Never blocks for a run: a model that leaves is closed when the last batch in it is over."""
        models = (*(model for model in self.models if all(model is not one for one in remove)), *add)
        lanes = make_lanes(add, self._name, self._threads, self._serve, self._crew.made)
        with self._lock:
            if self._closed or not models:
                return False
            self.models = models
            idle = self._crew.change(lanes, remove)
            for lane in lanes:
                lane.thread.start()  # here, because ``close`` joins all that are in the crew
            waiting = self._clear() if self._crew.is_lost else []
            count = len(self._crew)
        for lane in idle:
            lane.ring()
        self._refuse(waiting, "has lost its worker process; try again later")
        strain = strain_of(models, count)
        with self._lock:
            self._strain = strain
        return True

    def close(self) -> None:
        """Answers what waits, lets running batches finish, ends the threads and closes the models."""
        with self._lock:
            self._closed = True
            waiting = self._clear()
            idle = self._crew.end()
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        for lane in idle:
            lane.ring()
        self._refuse(waiting, "is being unloaded")
        self._crew.join()
        for model in self.models:
            model.close()

    def _clear(self) -> list[Job]:
        """With the lock held. All that waits."""
        return [job for line in self._lines.values() for job in line.clear()]

    def _refuse(self, jobs: Sequence[Job], reason: str) -> None:
        for job in jobs:
            self._finish(job.call, self._unavailable(reason))

    # Admission.

    def _hindrance(self, line: SignatureQueue, job: Job) -> Status | None:
        """Why the call is not even worth queueing."""
        if job.expires <= job.enqueued:
            return Status(StatusCode.DEADLINE_EXCEEDED, f"the deadline passed before the request reached {self._name}")
        return line.refusal(job)

    def _closed_to(self, line: SignatureQueue, job: Job) -> Status | None:
        """With the lock held."""
        if self._closed:
            return self._unavailable("is being unloaded")
        if self._crew.is_lost:
            return self._unavailable("has lost its worker process, which is being started again; try again later")
        if self._order is not None and len(self._order) >= self._answers_held:
            return self._unavailable("has too many answers that wait for an earlier one; try again later")
        return line.queue.refusal(job) or line.lateness(job, len(self._crew))

    @property
    def _answers_held(self) -> int:
        """With the lock held. How many answers may wait for an earlier one, those that run included."""
        settings = self._settings
        return ANSWERS_HELD * settings.max_queued_calls + len(self._crew) * max(settings.max_batch_size, 1)

    def _keep_order(self, call: PredictCall) -> None:
        """With the lock held, so that the order is that of the queue."""
        if self._order is not None:
            self._order.keep(call)

    def _add(self, line: SignatureQueue, job: Job) -> WorkerThread | None:
        """With the lock held. The lane to ring, if the job makes a decision worth while."""
        worth_while = line.add(job)
        if line.queue.next_expiry < self._timer_due:
            self._arm(line.queue.next_expiry)
        return self._crew.pop_idle() if worth_while else None

    def _submit_large(self, line: SignatureQueue, call: PredictCall, job: Job) -> Status | None:
        """A call that has to be cut: all of its pieces are queued, or none is."""
        settings, lanes, now = line.settings, [], job.enqueued
        with self._lock:
            refusal = self._closed_to(line, job)
            if refusal is not None:
                return refusal
            room = -line.queue.rows % settings.max_batch_size
            self._keep_order(call)
            joined = SplitCall(call, split(call, job.rows, room, settings.max_batch_size), self._cancel_all)
            call.ticket, call.admitted = joined, True
            for piece in joined.pieces:
                piece.ticket = part = line.job(piece, now)
                part.level, part.times_out = job.level, job.times_out
                lane = self._add(line, part)
                if lane is not None:
                    lanes.append(lane)
        for lane in lanes:
            lane.ring()
        return None

    # Calls that wait too long.

    def _arm(self, due: float) -> None:
        """With the lock held. Seldom: deadlines mostly come in order, and only the earliest needs the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self._sweep)

    def _sweep(self) -> None:
        """On the clock's thread."""
        with self._lock:
            if self._closed:
                return
            now = self._clock.monotonic()
            self._timer, self._timer_due = None, inf
            dropped = [found for line in self._lines.values() for found in line.sweep(now)]
            due = min(line.queue.next_expiry for line in self._lines.values())
            if due < inf:
                self._arm(due)
            lane = self._crew.pop_idle()
        if lane is not None:
            lane.ring()  # other calls may have come to the head
        self._drop(dropped, now)

    def _drop(self, dropped: Sequence[tuple[Job, Status]], now: float) -> None:
        for job, status in dropped:
            job.call.queue_seconds = now - job.enqueued
            self._finish(job.call, status)

    # What lanes do.

    def _serve(self, lane: WorkerThread) -> None:
        while True:
            line, jobs = self._next(lane)
            if line is None:
                self._leave(lane)
                return
            self._run(lane, line, jobs)
            del line, jobs

    def _leave(self, lane: WorkerThread) -> None:
        """The lane's work is over. It may have been woken for a batch, which another one has to take then."""
        with self._lock:
            last = self._crew.left(lane)
            other = self._crew.pop_idle() if self._anybody_waits() else None
        if other is not None:
            other.ring()
        if last:
            try:
                lane.model.close()
            except Exception:
                logger.exception("closing an instance of %s failed", self._name)

    def _next(self, lane: WorkerThread) -> tuple[SignatureQueue | None, list[Job]]:
        """The lane's next batch; blocks. No line: the lane's work is over."""
        while True:
            dropped: list[tuple[Job, Status]] = []
            with self._lock:
                if self._closed or lane.ending.is_set():
                    return None, []
                now = self._clock.monotonic()
                line, jobs, until = self._choose(now, dropped)
                if line is None:
                    self._crew.rest(lane)
                other = self._crew.pop_idle() if line is not None and self._anybody_waits() else None
            if other is not None:
                other.ring()  # what is left may be a batch for it
            self._drop(dropped, now)
            if line is not None:
                return line, jobs
            if not lane.sleep(until - now) and not self._woke(lane):
                lane.sleep(inf)  # somebody is about to ring

    def _woke(self, lane: WorkerThread) -> bool:
        """The lane has woken by itself. False: somebody has taken it for idle already, and will ring."""
        with self._lock:
            return self._crew.leave_idle(lane)

    def _anybody_waits(self) -> bool:
        """With the lock held."""
        return any(len(line.queue) for line in self._lines.values())

    def _choose(self, now: float, dropped: list[tuple[Job, Status]]) -> tuple[SignatureQueue | None, list[Job], float]:
        """With the lock held: the batch of the line that has waited longest, or until when there is none."""
        until = inf
        lines: Sequence[SignatureQueue] = [line for line in self._lines.values() if len(line.queue)]
        if len(lines) > 1:
            lines = sorted(lines, key=lambda line: line.queue.oldest)
        for line in lines:
            queue = line.queue
            if queue.next_expiry <= now:
                dropped.extend(line.sweep(now))
                if not len(queue):
                    continue
            decision = line.decide(now)
            if decision.take:
                return line, line.take(decision), until
            line.wake_rows = decision.wake_rows
            until = min(until, decision.wait_until)
        return None, [], until

    def _run(self, lane: WorkerThread, line: SignatureQueue, jobs: Sequence[Job]) -> None:
        now = self._clock.monotonic()
        calls = [job.call for job in jobs]
        for job in jobs:
            job.call.queue_seconds = now - job.enqueued
            job.call.ticket = None  # or each would keep the other alive
        try:
            self._execution.run(lane.model, line, calls, [job.size for job in jobs])
        except WorkerLost:
            self._recover(lane)

    def _ended(self, line: SignatureQueue, now: float, rows: int, seconds: float) -> None:
        with self._lock:
            self._strain.ran(now, seconds)
            line.ended(now, rows, seconds, self._strain.strained)

    def _recover(self, lane: WorkerThread) -> None:
        """Until the lane's model can run again. While no lane has one, nobody waits in vain."""
        with self._lock:
            waiting = self._clear() if self._crew.lose(lane) else []
        self._refuse(waiting, "has lost its worker process; try again later")
        lane.model.recover(lane.ending)
        with self._lock:
            self._crew.regain(lane)

    def _finish(self, call: PredictCall, status: Status) -> None:
        call.ticket = None
        finish(call, status, self._name)

    def _unavailable(self, reason: str) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} {reason}")
