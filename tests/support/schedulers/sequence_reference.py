"""What the slots of a sequence batcher have to do, once more: as plainly as it can be said, whatever it costs.

Nothing is remembered that can be found out by looking at everything. Nothing of the real one is used but its values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

SlotKey = tuple[int, int]
"""(number, instance)."""


@dataclass(eq=False)
class PlainSequence:
    """A sequence. ``waiting``: (item, start, end), in order. ``known``: its id goes on with it."""

    id: int | str
    seen: float
    slot: SlotKey | None = None
    waiting: list[tuple[Any, bool, bool]] = field(default_factory=list)
    until: float = inf
    known: bool = True
    expired: bool = False


class Reference:
    """Answers as :class:`~tfs_lite.schedulers.sequence.slots.SequenceTable` should; refusals are words."""

    def __init__(self, slots: int, instances: int, max_idle: float, max_backlog: int, max_queued: int) -> None:
        self.slots = [(number, instance) for number in range(slots) for instance in range(instances)]
        self.max_idle, self.max_backlog, self.max_queued = max_idle, max_backlog, max_queued
        self.sequences: list[PlainSequence] = []
        self.running: dict[SlotKey, tuple[Any, PlainSequence]] = {}
        self.stopping = False
        self.forgotten: set[int | str] = set()

    @property
    def backlog(self) -> list[PlainSequence]:
        return [sequence for sequence in self.sequences if sequence.slot is None]

    @property
    def pending(self) -> int:
        return sum(len(sequence.waiting) for sequence in self.sequences)

    @property
    def live(self) -> int:
        return sum(sequence.known for sequence in self.sequences)

    def at(self, slot: SlotKey) -> PlainSequence | None:
        return next((sequence for sequence in self.sequences if sequence.slot == slot), None)

    def known(self, id: int | str) -> PlainSequence | None:
        return next((sequence for sequence in self.sequences if sequence.known and sequence.id == id), None)

    def free(self) -> list[SlotKey]:
        return [slot for slot in self.slots if self.at(slot) is None]

    def admit(
        self, item: Any, id: int | str, start: bool, end: bool, rows: int, timeout: float, now: float
    ) -> str | SlotKey | None:
        """Why not, or where; None: in the backlog."""
        if rows > 1:
            return "batch-size"
        if id in (0, ""):
            return "correlation ID"
        if start and self.stopping:
            return "stopping"
        sequence = self.known(id)
        if sequence is None and not start:
            return "START"
        waits_behind = sequence.slot is None if sequence else not self.free()
        if self.pending >= self.max_queued:
            return "queue size"
        if waits_behind and sum(len(sequence.waiting) for sequence in self.backlog) >= self.max_backlog:
            return "queue size"
        if sequence is None:
            sequence = PlainSequence(id, now, self.free()[0] if self.free() else None)
            self.sequences.append(sequence)
            self.forgotten.discard(id)
        sequence.seen = now
        sequence.waiting.append((item, start, end))
        if sequence.slot is None and timeout:
            sequence.until = min(sequence.until, now + timeout)
        if end:
            self.forget(sequence)
        return sequence.slot

    def heads(self, instance: int) -> list[Any]:
        found = []
        for slot in self.slots:
            if slot[1] == instance:
                sequence = self.at(slot)
                ready = sequence is not None and sequence.waiting and slot not in self.running
                found.append(sequence.waiting[0] if sequence is not None and ready else None)
        return found

    def take(self, slot: SlotKey) -> Any:
        sequence = self.at(slot)
        assert sequence is not None
        taken = sequence.waiting.pop(0)
        self.running[slot] = (taken[0], sequence)
        self.settle()
        return taken

    def done(self, slot: SlotKey) -> None:
        del self.running[slot]
        self.settle()

    def cancel(self, item: Any) -> list[Any]:
        """Also of what runs: those that come after it."""
        for sequence in self.sequences:
            if any(item is other for other, _, _ in sequence.waiting):
                return self.drop(sequence)
        for other, sequence in self.running.values():
            if other is item and sequence in self.sequences:
                return self.drop(sequence)
        return []

    def expire(self, now: float) -> list[Any]:
        """Whatever is answered, in any order."""
        over = [sequence for sequence in self.backlog if sequence.until <= now]
        out = [item for sequence in over for item in self.drop(sequence)]
        while idle := [sequence for sequence in self.sequences if self.idle_at(sequence) <= now]:
            for sequence in idle:
                self.forget(sequence)
                sequence.expired = True
            self.settle()
        return out

    def idle_at(self, sequence: PlainSequence) -> float:
        return sequence.seen + self.max_idle if sequence.known and sequence.slot is not None else inf

    @property
    def next_expiry(self) -> float:
        return min(
            (min(self.idle_at(sequence), inf if sequence.slot else sequence.until) for sequence in self.sequences),
            default=inf,
        )

    def drop_instance(self, instance: int) -> list[Any]:
        lost = [sequence for sequence in self.sequences if sequence.slot is not None and sequence.slot[1] == instance]
        return [
            item for sequence in sorted(lost, key=lambda sequence: sequence.slot or ()) for item in self.drop(sequence)
        ]

    def drop(self, sequence: PlainSequence) -> list[Any]:
        self.forget(sequence)
        self.sequences.remove(sequence)
        self.settle()
        return [item for item, _, _ in sequence.waiting]

    def forget(self, sequence: PlainSequence) -> None:
        if sequence.known:
            sequence.known = False
            self.forgotten.add(sequence.id)

    def settle(self) -> None:
        """A sequence ends that can do nothing more; one that has expired stays until its last request is done. Then
        slots go to those that have waited longest."""
        busy = [sequence for _, sequence in self.running.values() if sequence.expired]
        self.sequences = [
            sequence for sequence in self.sequences if sequence.known or sequence.waiting or sequence in busy
        ]
        for slot, sequence in zip(self.free(), self.backlog, strict=False):
            sequence.slot = slot
