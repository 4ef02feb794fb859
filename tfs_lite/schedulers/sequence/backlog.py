"""The sequences that wait for a slot, in order of arrival. Bookkeeping only: its owner has lock and clock."""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Generic

from tfs_lite.schedulers.sequence.deadlines import KeyDeadlines
from tfs_lite.schedulers.sequence.request import OneSequence, SequenceItem, T


class SequenceBacklog(Generic[T]):
    """An entry has all requests of its sequence so far. It ends when the first of their timeouts does. Every call is
    O(1) or, with timeouts, amortised O(log n) in the number of entries."""

    __slots__ = ("_ends", "_entries", "requests")

    def __init__(self) -> None:
        self._entries: OrderedDict[OneSequence[T], None] = OrderedDict()
        self._ends: KeyDeadlines[OneSequence[T]] = KeyDeadlines()
        self.requests = 0
        """How many requests all entries have."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: OneSequence[T], request: SequenceItem[T], timeout: float) -> None:
        """Appends the request to its sequence; a new sequence comes last. ``timeout`` 0 means none."""
        self._entries.setdefault(sequence)
        sequence.waiting.append(request)
        self.requests += 1
        end = request.arrived + timeout if timeout > 0 else inf
        if end < self._ends.get(sequence):
            self._ends.set(sequence, end)

    def next(self) -> OneSequence[T] | None:
        """Takes out the sequence that has waited longest."""
        if not self._entries:
            return None
        sequence = next(iter(self._entries))
        self.remove(sequence)
        return sequence

    def remove(self, sequence: OneSequence[T]) -> None:
        """Takes out one that is here; its requests stay with it."""
        del self._entries[sequence]
        self._ends.drop(sequence)
        self.requests -= len(sequence.waiting)

    @property
    def next_end(self) -> float:
        """The time when :meth:`ended` finds something next; inf means never."""
        return self._ends.next

    def ended(self, now: float) -> list[OneSequence[T]]:
        """Takes out those whose time is over, in that order."""
        over = self._ends.pop_due(now)
        for sequence in over:
            self.remove(sequence)
        return over
