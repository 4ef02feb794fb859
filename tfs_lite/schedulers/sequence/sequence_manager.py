"""Keeps the requests of a servable's sequences, for Direct and for Oldest: lock, clock and answers.

    admit -> (Direct's workers or Oldest's batchers: take -> run -> answered) -> done
          -> cancel | sweep | worker_lost | close: answered without having run

Decisions are those of :class:`~tfs_lite.schedulers.sequence.slots.SequenceTable`, made under the lock; what follows
from them (answers, forgotten ids, who may have work now) happens outside it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from math import inf

from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.calls import CANCELLED, LOST_PROCESS, Answer, finish
from tfs_lite.schedulers.sequence.deadlines import KeyDeadlines
from tfs_lite.schedulers.sequence.request import STOPPING, SequenceId, SequenceItem, SequenceSlot
from tfs_lite.schedulers.sequence.rows import Row, RowPlan
from tfs_lite.schedulers.sequence.settings import SequenceSettings
from tfs_lite.schedulers.sequence.slots import SequenceTable
from tfs_lite.schedulers.sequence.states import Memory, Values
from tfs_lite.schedulers.sequence.worker_generation import LOST

logger = logging.getLogger(__name__)
MAX_LOST_SEQUENCES = 10_000
"""Lost sequences that are remembered until their clients have been told."""
PREDECESSOR_DROPPED = Status(StatusCode.CANCELLED, "an earlier request of its sequence was cancelled or came too late")

OnForgotten = Callable[[ServableId, SequenceId], None]
"""A function called for every sequence that has ended; must be short and must not raise."""


@dataclass(slots=True, eq=False)
class SequenceEntry:
    """A call while it waits or runs; ``shapes`` as :meth:`RowPlan.shape_key` says. The rest is guarded by the manager's
    lock.

    ``slot`` is None while it waits; then the slot from which it was taken to run. ``cancelled`` says that it was taken
    before it was cancelled. ``inner`` is the call that stands for it in a batcher.
    """

    call: PredictCall
    plan: RowPlan
    shapes: Hashable
    enqueued: float = field(default=0.0)
    slot: SequenceSlot | None = field(default=None)
    cancelled: bool = field(default=False)
    inner: PredictCall | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Taken:
    """A request that was taken to run. ``state`` is that of its sequence before it."""

    slot: SequenceSlot
    request: SequenceItem[SequenceEntry]
    state: Values

    @property
    def call(self) -> PredictCall:
        return self.request.item.call

    @property
    def row(self) -> Row:
        flags = self.call.sequence
        assert flags is not None  # or it would not have been let in
        return Row(self.call, flags, self.state)


@dataclass(slots=True)
class Effects:
    """The effects of a decision, to be performed without the lock. ``ready`` are slots that may have a request to
    run."""

    dropped: list[tuple[SequenceEntry, Status]] = field(default_factory=list)
    forgotten: list[SequenceId] = field(default_factory=list)
    ready: list[SequenceSlot] = field(default_factory=list)


class SequenceManager:
    """Manages the sequences of one servable, on any thread. ``wake`` is called, without the lock, with slots that may
    have a request to run.

    The runner of the requests may hold ``lock`` around several of the methods that say so, and its own decisions.
    """

    def __init__(
        self,
        settings: SequenceSettings,
        instances: int,
        servable_id: ServableId,
        clock: Clock,
        on_forgotten: OnForgotten | None,
        wake: Callable[[Collection[SequenceSlot]], None],
    ) -> None:
        self.id = servable_id
        self.name = f"{servable_id.name}-{servable_id.version}"
        self.clock = clock
        self.lock = threading.Lock()  # guards all below, entries' ``inner``, and what its users put under it
        self.sequences: SequenceTable[SequenceEntry] = SequenceTable(settings, instances, servable_id.name)
        self.closed = False
        self._instances = instances
        self._on_forgotten = on_forgotten
        self._wake = wake
        self._memory = Memory()
        self._deadlines: KeyDeadlines[SequenceEntry] = KeyDeadlines()  # of calls that wait
        self._lost: set[int] = set()
        self._lost_sequences: dict[SequenceId, None] = {}  # sequences that ended with a worker, the oldest first
        self._timer: Timer | None = None
        self._timer_due = inf

    # What callers do.

    def admit(self, entry: SequenceEntry, rows: int) -> None:
        """Queues the call, or answers it with the reason why not."""
        call = entry.call
        with self.lock:
            now = entry.enqueued = self.clock.monotonic()
            effects = self._expire(now)
            refusal = self._check_call(now, call) or self._admit(entry, rows, now, effects)
            self._arm()
        self.perform(effects)
        if refusal is not None:
            finish(call, refusal, self.name)

    def cancel(self, entry: SequenceEntry) -> bool:
        """Cancels a call: if it waits, it is answered; its sequence ends, and all calls that wait there are answered
        too. Returns False if it was taken already."""
        effects = Effects()
        with self.lock:
            if entry.slot is not None:
                entry.cancelled = True
                return False
            self._end(entry, CANCELLED, PREDECESSOR_DROPPED, effects)
            self._settle(effects)
        self.perform(effects)
        return True

    @property
    def pending(self) -> int:
        """Calls that wait and were not taken."""
        with self.lock:
            return self.sequences.pending

    @property
    def kept_states(self) -> int:
        with self.lock:
            return len(self._memory)

    def stop(self) -> None:
        """Starts no sequence from now on; those that go on may."""
        with self.lock:
            self.sequences.stop()

    def close(self) -> None:
        """Answers what waits, and every later call."""
        with self.lock:
            self.closed = True
            self.sequences.stop()
            effects = Effects([(item, STOPPING) for item in self.sequences.clear()])
            self._settle(effects)
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.perform(effects)

    # What the runners of requests do.

    def expire(self) -> Effects:
        """Ends what has waited too long, with the lock held, before requests are chosen: however late the clock's
        thread is, a freed slot then has its next sequence. Call :meth:`perform` without the lock."""
        now = self.clock.monotonic()
        return self._expire(now) if self._next_end() <= now else Effects()

    def take(self, slot: SequenceSlot) -> Taken:
        """Takes the slot's next request, which runs from now on, with the lock held. LookupError if there is none."""
        request = self.sequences.take(slot)
        request.item.slot = slot
        self._deadlines.drop(request.item)
        return Taken(slot, request, self.state(slot, request))

    def state(self, slot: SequenceSlot, request: SequenceItem[SequenceEntry]) -> Values:
        """The state that the request would find. With the lock held."""
        kept = None if request.start else self._memory.find(slot)
        return request.item.plan.states.initial() if kept is None else kept

    def answer(self, entry: SequenceEntry, answer: Answer) -> None:
        """Answers a call, without the lock."""
        finish(entry.call, answer, self.name)

    def done(self, taken: Iterable[tuple[Taken, Values]]) -> None:
        """Records that these requests were run and answered; the values are the states after them."""
        with self.lock:
            for each, state in taken:
                slot, request = each.slot, each.request
                self.sequences.done(slot)
                if request.end or not state or not (self.sequences.knows(request.id) or self._waits(slot)):
                    self._memory.drop(slot)
                else:
                    self._memory.keep(slot, request.id, state)
            self._arm()  # a sequence that has come from the backlog may expire before all others

    def end(self, entry: SequenceEntry, status: Status) -> None:
        """The call was taken but will never run: its sequence ends, and its waiting calls are answered with
        ``status``."""
        effects = Effects()
        with self.lock:
            self._end(entry, status, status, effects)
            self._settle(effects)
        self.perform(effects)

    def worker_lost(self, instance: int) -> None:
        """The worker of an instance has died, and with it what the model knew of the sequences there: they end. When no
        instance is left, all others end too."""
        status = self.unavailable(LOST)
        with self.lock:
            self._lost.add(instance)
            items = self.sequences.drop_instance(instance)
            if len(self._lost) == self._instances:
                items += self.sequences.clear()
            effects = Effects([(item, status) for item in items])
            self._settle(effects)
            for id in effects.forgotten:
                self._lost_sequences[id] = None
            while len(self._lost_sequences) > MAX_LOST_SEQUENCES:
                del self._lost_sequences[next(iter(self._lost_sequences))]
        self.perform(effects)

    def worker_recovered(self, instance: int) -> None:
        """Records that a worker which was lost runs again."""
        with self.lock:
            self._lost.discard(instance)
            ready = self._ready([instance])
        self._wake(ready)

    def is_lost(self, instance: int) -> bool:
        """Whether the instance's worker is lost. With the lock held."""
        return instance in self._lost

    def unavailable(self, reason: str) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self.name} {reason}")

    # With the lock held.

    def _check_call(self, now: float, call: PredictCall) -> Status | None:
        """Returns why the call cannot be let in, whatever its sequence."""
        if self.closed:
            return STOPPING
        if call.deadline is not None and call.deadline <= now:
            return self._deadline_exceeded()
        if len(self._lost) == self._instances:
            return self.unavailable(f"{LOST_PROCESS}, and answers again once it has one; try again later")
        return None

    def _admit(self, entry: SequenceEntry, rows: int, now: float, effects: Effects) -> Status | None:
        call = entry.call
        admitted = self.sequences.admit(entry, call.sequence, rows, call.timeout, now)
        flags = call.sequence
        if isinstance(admitted, Status):
            lost = flags is not None and not flags.start and flags.id in self._lost_sequences
            return self.unavailable(LOST) if lost else admitted
        if flags is not None:
            self._lost_sequences.pop(flags.id, None)
        call.ticket, call.admitted = entry, True
        if call.deadline is not None:
            self._deadlines.set(entry, call.deadline)
        if admitted.slot is not None:
            effects.ready.append(admitted.slot)
        effects.forgotten += self.sequences.forgotten()
        return None

    def _expire(self, now: float) -> Effects:
        """Ends what has waited too long, with the calls behind it in its sequence."""
        effects = Effects(self.sequences.expire(now))
        for entry in self._deadlines.pop_due(now):
            self._end(entry, self._deadline_exceeded(), PREDECESSOR_DROPPED, effects)
        self._settle(effects)
        return effects

    def _end(self, entry: SequenceEntry, status: Status, others: Status, effects: Effects) -> None:
        for item in self.sequences.cancel(entry):
            effects.dropped.append((item, status if item is entry else others))

    def _settle(self, effects: Effects) -> None:
        """Drops the states of sequences that have ended; others may have come from the backlog to any slot."""
        for entry, _ in effects.dropped:
            self._deadlines.drop(entry)
        effects.forgotten += self.sequences.forgotten()
        if effects.forgotten or effects.dropped:
            self._memory.forget(set(effects.forgotten), self._waits)
            effects.ready += self._ready(range(self._instances))
        self._arm()

    def _waits(self, slot: SequenceSlot) -> bool:
        """Whether the slot's sequence has a request that goes on from a state."""
        head = self.sequences.heads(slot.instance)[slot.number]
        return head is not None and not head.start

    def _ready(self, instances: Iterable[int]) -> list[SequenceSlot]:
        return [
            SequenceSlot(number, instance)
            for instance in instances
            for number, head in enumerate(self.sequences.heads(instance))
            if head is not None
        ]

    def _arm(self) -> None:
        due = self._next_end()
        if due >= self._timer_due or self.closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self.clock.call_later(due - self.clock.monotonic(), self._sweep)

    def _next_end(self) -> float:
        """The time when something has waited too long next."""
        return min(self.sequences.next_expiry, self._deadlines.next)

    # Without it.

    def _sweep(self) -> None:
        """Ends what has waited too long, on the clock's thread."""
        with self.lock:
            self._timer, self._timer_due = None, inf
            if self.closed:
                return
            effects = self._expire(self.clock.monotonic())
        self.perform(effects)

    def perform(self, effects: Effects) -> None:
        """Performs what follows from a decision: answers, forgotten ids, who may have work now."""
        now = self.clock.monotonic() if effects.dropped else 0.0
        for entry, status in effects.dropped:
            entry.call.ticket = None
            entry.call.queue_seconds = now - entry.enqueued
            finish(entry.call, status, self.name)
        if self._on_forgotten is not None:
            for id in effects.forgotten:
                try:
                    self._on_forgotten(self.id, id)
                except Exception:  # those that have a slot now must not wait for ever
                    logger.exception("a sequence of %s could not be forgotten", self.name)
        if effects.ready:
            self._wake(effects.ready)

    def _deadline_exceeded(self) -> Status:
        return Status(StatusCode.DEADLINE_EXCEEDED, f"the deadline passed while the request waited for {self.name}")
