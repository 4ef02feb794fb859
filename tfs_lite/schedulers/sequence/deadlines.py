"""Times at which something ends. Bookkeeping only: its owner has the clock."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SPARE = 16
"""How many outdated entries are kept in any case."""


class KeyDeadlines(Generic[K]):
    """The deadlines of keys, at most one time per key. Amortised O(log n) per call. Not for several threads at once.

    A heap of (time, serial, key) has, for every key, an entry that is not later than the key's time; entries of other
    times are outdated, and are put right when they come to the top.
    """

    __slots__ = ("_heap", "_serial", "_times")

    def __init__(self) -> None:
        self._times: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._times)

    def get(self, key: K) -> float:
        """Returns inf if none is set."""
        return self._times.get(key, inf)

    def set(self, key: K, time: float) -> None:
        """Replaces the time of the key, if it has one."""
        before = self._times.get(key, inf)
        self._times[key] = time
        if time < before:
            heappush(self._heap, (time, next(self._serial), key))
        self._tidy()

    def drop(self, key: K) -> None:
        """Forgets the key's time; does nothing if there is none."""
        self._times.pop(key, None)
        self._tidy()

    @property
    def next(self) -> float:
        """The first time of all; inf if none is set."""
        heap = self._heap
        while heap:
            time, serial, key = heap[0]
            right = self._times.get(key)
            if right == time:
                return time
            heappop(heap)
            if right is not None and right > time:
                heappush(heap, (right, serial, key))
        return inf

    def pop_due(self, now: float) -> list[K]:
        """Takes out the keys whose time has come, in order of time."""
        due: list[K] = []
        while self.next <= now:
            key = heappop(self._heap)[2]
            del self._times[key]
            due.append(key)
        return due

    def _tidy(self) -> None:
        """Removes what is outdated, when that is most of the heap."""
        if len(self._heap) > 2 * len(self._times) + SPARE:
            self._heap = [(time, next(self._serial), key) for key, time in self._times.items()]
            heapify(self._heap)
