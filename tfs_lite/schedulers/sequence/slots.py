"""The assignment of sequences to slots of instances, and which of their requests may run next.

Bookkeeping only: its owner has lock, clock and threads. Every ``now`` is in seconds of one clock and never less than
the one before. A request's way:

    expire, admit -> heads (a batch is chosen) -> take (it runs) -> done
                  -> cancel | expire | drop_instance | clear (it is answered without having run)
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.sequence.backlog import SequenceBacklog
from tfs_lite.schedulers.sequence.deadlines import KeyDeadlines
from tfs_lite.schedulers.sequence.request import (
    Admitted,
    OneSequence,
    SequenceId,
    SequenceItem,
    SequenceSlot,
    T,
    checked,
    full,
)
from tfs_lite.schedulers.sequence.settings import SequenceSettings

BACKLOG_EXPIRED = Status(
    StatusCode.UNAVAILABLE, "timeout of the corresponding sequence has been expired", Reason.QUEUE_TIMEOUT
)


class SequenceTable(Generic[T]):
    """The sequences and their slots, not for several threads at once. Calls cost O(1) or amortised O(log n), but for
    what they return.

    At most one request per slot runs at any time, with Direct as with Oldest: the next one is a head only after
    ``done``. A slot is free for another sequence when the END is taken, when the sequence is cancelled, and, after it
    has expired, when nothing of it waits or runs; then the backlog's first sequence has it at once. While sequences
    wait in the backlog, no slot is free.

    An id is forgotten when its END is admitted, when its sequence has expired, or is cancelled; the same id can START
    again then, in another slot, while requests of the old sequence still wait. :meth:`forgotten` tells.
    """

    def __init__(self, settings: SequenceSettings, instances: int, model: str = "model") -> None:
        """``model`` is its name, for messages; ``instances`` is 1 or more."""
        self._settings = settings
        self._model = model
        self._stopping = False
        self._ids: dict[SequenceId, OneSequence[T]] = {}
        self._of: dict[T, OneSequence[T]] = {}  # of every item that waits or runs
        self._backlog: SequenceBacklog[T] = SequenceBacklog()
        self._idle: KeyDeadlines[OneSequence[T]] = KeyDeadlines()  # of sequences in slots whose id is known
        slots = [SequenceSlot(number, i) for number in range(settings.slots_per_instance) for i in range(instances)]
        self._free = slots  # ascending, so it is a heap
        self._in: dict[SequenceSlot, OneSequence[T] | None] = dict.fromkeys(slots)
        self._running: dict[SequenceSlot, T] = {}
        self._pending = 0
        self._forgotten: dict[SequenceId, None] = {}

    @property
    def live(self) -> int:
        """Sequences that go on: whose id is known, in slots and in the backlog."""
        return len(self._ids)

    @property
    def pending(self) -> int:
        """Requests that wait, in slots and in the backlog."""
        return self._pending

    @property
    def backlogged(self) -> int:
        """Sequences in the backlog."""
        return len(self._backlog)

    @property
    def running(self) -> int:
        """Requests that were taken and are not done."""
        return len(self._running)

    def knows(self, id: SequenceId) -> bool:
        """Whether a request of this sequence needs no START."""
        return id in self._ids

    def stop(self) -> None:
        """Lets no START in from now on. Sequences go on until they end or expire."""
        self._stopping = True

    def admit(self, item: T, flags: SequenceFlags | None, rows: int, timeout: float, now: float) -> Admitted | Status:
        """Lets a request in, behind the others of its sequence, or says why not: see
        :func:`~tfs_lite.schedulers.sequence.request.checked`; then UNAVAILABLE when too many wait. A refusal changes
        nothing. ``timeout`` (seconds; 0: none) counts only if the request comes to the backlog. Call ``expire`` with
        the same ``now`` before. ValueError if the item is inside."""
        known = self._ids.get(flags.id) if flags is not None else None
        found = checked(flags, rows, self._model, known=known is not None, stopping=self._stopping)
        if isinstance(found, Status):
            return found
        if (status := self._full(known)) is not None:
            return status
        if item in self._of:
            raise ValueError(f"{item!r} is inside already")
        sequence = known or self._begin(found.id)
        sequence.seen = now
        self._add(sequence, SequenceItem(item, found.id, found.start, found.end, now), timeout)
        if found.end:
            self._forget(sequence)
        return Admitted(sequence.slot, restarted=known is not None and found.start)

    def heads(self, instance: int) -> tuple[SequenceItem[T] | None, ...]:
        """The request of each slot of the instance, in order, that may run next; None if there is none, or one of the
        slot runs."""
        return tuple(
            [self._head(SequenceSlot(number, instance)) for number in range(self._settings.slots_per_instance)]
        )

    def take(self, slot: SequenceSlot) -> SequenceItem[T]:
        """The slot's head, which runs from now on, until ``done``. An END leaves the slot to the next sequence.
        LookupError if it has no head."""
        head, sequence = self._head(slot), self._in[slot]
        if head is None or sequence is None:
            raise LookupError(f"nothing can be taken from {slot}")
        sequence.waiting.popleft()
        self._pending -= 1
        self._running[slot] = head.item
        if head.end:
            self._release(slot)
        return head

    def done(self, slot: SequenceSlot) -> None:
        """Records that the request taken from the slot is answered; its next request may run. LookupError if nothing
        was."""
        del self._of[self._running.pop(slot)]
        sequence = self._in[slot]
        if sequence is not None and sequence.expired and not sequence.waiting:
            self._release(slot)

    def cancel(self, item: T) -> list[T]:
        """The request is no longer wanted: what waits of its sequence leaves, in order, this request included, and is
        returned for an answer; the id is forgotten, the slot free. If the request runs, it is not returned, its
        successors are, and ``done`` has to follow. Returns nothing if it is not inside, or nothing waits."""
        sequence = self._of.get(item)
        return [] if sequence is None else self._drop(sequence)

    def expire(self, now: float) -> list[tuple[T, Status]]:
        """Ends what has waited too long in the backlog; every request of such a sequence is returned, with UNAVAILABLE.
        Forgets sequences in slots of which no request came for ``max_idle``; what waits of them still runs."""
        out = [
            (item, BACKLOG_EXPIRED)
            for sequence in self._backlog.ended(now)
            for item in self._drop(sequence, in_backlog=False)
        ]
        while due := self._idle.pop_due(now):  # a sequence from the backlog may be overdue when it comes to its slot
            for slot in sorted(slot for sequence in due if (slot := self._expire(sequence)) is not None):
                self._release(slot)
        return out

    @property
    def next_expiry(self) -> float:
        """The time before which ``expire`` finds nothing; inf if nothing can expire."""
        return min(self._idle.next, self._backlog.next_end)

    def drop_instance(self, instance: int) -> list[T]:
        """The instance has lost its state: its sequences end. What waits of them is returned, by slots and in order;
        what runs still needs its ``done``. The slots are free."""
        kept = [self._in[SequenceSlot(number, instance)] for number in range(self._settings.slots_per_instance)]
        return [item for sequence in kept if sequence is not None for item in self._drop(sequence)]

    def clear(self) -> list[T]:
        """Ends all sequences; what waits is returned, in order within a sequence."""
        out: list[T] = []
        while (sequence := self._backlog.next()) is not None:
            out += self._drop(sequence, in_backlog=False)
        for sequence in list(self._in.values()):
            out += self._drop(sequence) if sequence is not None else []
        return out

    def forgotten(self) -> tuple[SequenceId, ...]:
        """The ids forgotten since the last call of this method, without those that have started again since. Call it
        after each that may forget: ``admit``, ``cancel``, ``expire``, ``drop_instance``, ``clear``."""
        ids = tuple(self._forgotten)
        self._forgotten.clear()
        return ids

    def _full(self, known: OneSequence[T] | None) -> Status | None:
        settings = self._settings
        if self._pending >= settings.max_queued:
            return full(self._pending, "slots and backlog", self._model)
        backlogged = known.slot is None if known is not None else not self._free
        if backlogged and self._backlog.requests >= settings.max_backlog:
            return full(self._backlog.requests, "the backlog", self._model)
        return None

    def _begin(self, id: SequenceId) -> OneSequence[T]:
        sequence = self._ids[id] = OneSequence(id)
        self._forgotten.pop(id, None)
        if self._free:
            sequence.slot = heappop(self._free)
            self._in[sequence.slot] = sequence
        return sequence

    def _add(self, sequence: OneSequence[T], request: SequenceItem[T], timeout: float) -> None:
        self._of[request.item] = sequence
        self._pending += 1
        if sequence.slot is None:
            self._backlog.add(sequence, request, timeout)
        else:
            sequence.waiting.append(request)
            self._idle.set(sequence, sequence.seen + self._settings.max_idle)

    def _head(self, slot: SequenceSlot) -> SequenceItem[T] | None:
        sequence = self._in[slot]
        if sequence is None or not sequence.waiting or slot in self._running:
            return None
        return sequence.waiting[0]

    def _release(self, slot: SequenceSlot) -> None:
        """The slot is the next sequence's, if one waits. That one has been idle since its last request came."""
        sequence = self._in[slot] = self._backlog.next()
        if sequence is None:
            heappush(self._free, slot)
            return
        sequence.slot = slot
        if self._ids.get(sequence.id) is sequence:
            self._idle.set(sequence, sequence.seen + self._settings.max_idle)

    def _expire(self, sequence: OneSequence[T]) -> SequenceSlot | None:
        """The slot, if the sequence does not need it any more."""
        self._forget(sequence)
        sequence.expired = True
        return None if sequence.waiting or sequence.slot in self._running else sequence.slot

    def _drop(self, sequence: OneSequence[T], *, in_backlog: bool = True) -> list[T]:
        """Ends a sequence and returns what waits of it. ``in_backlog`` says that it has not been taken out of there
        yet."""
        items = [request.item for request in sequence.waiting]
        if sequence.slot is None and in_backlog:
            self._backlog.remove(sequence)
        sequence.waiting.clear()
        self._pending -= len(items)
        for item in items:
            del self._of[item]
        self._forget(sequence)
        if sequence.slot is not None and self._in[sequence.slot] is sequence:
            self._release(sequence.slot)
        return items

    def _forget(self, sequence: OneSequence[T]) -> None:
        self._idle.drop(sequence)
        if self._ids.get(sequence.id) is sequence:
            del self._ids[sequence.id]
            self._forgotten[sequence.id] = None
