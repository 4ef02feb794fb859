"""What has to be done when a deadline passes, for thousands of requests that hardly ever see theirs.

One timer, for the earliest deadline heard of since it last rang. Requests mostly come with the same time limit, so that
a later one hardly ever has an earlier deadline; most are long answered when the timer rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST_DISCARDED = 1000
"""Deadlines of items that are long done, beyond twice the number of those that are not."""


class Deadlines(Generic[T]):
    """On the event loop. ``add`` -> ``expired`` on time or ``discard`` before; times are those of the loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[T], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._entries: dict[T, list[Any]] = {}
        self._heap: list[list[Any]] = []
        """Deadline, a number that is nobody else's, and the item: None once it was discarded."""
        self._last = 0
        self._rings = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T, deadline: float) -> None:
        self.discard(item)
        self._last = number = self._last + 1
        self._entries[item] = entry = [deadline, number, item]
        heappush(self._heap, entry)
        if deadline < self._rings:
            self._ring_at(deadline)

    def discard(self, item: T) -> None:
        entry = self._entries.pop(item, None)
        if entry is not None:
            entry[2] = None
            if len(self._heap) > MOST_DISCARDED + 2 * len(self._entries):
                self._heap = [entry for entry in self._heap if entry[2] is not None]
                heapify(self._heap)

    def close(self) -> None:
        """No timer is left."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = deadline
        self._timer = self._loop.call_at(deadline, self._rang)

    def _rang(self) -> None:
        self._timer, self._rings = None, inf
        now, late, heap = self._loop.time(), [], self._heap
        while heap and (heap[0][0] <= now or heap[0][2] is None):
            late.append(heappop(heap))
        if heap:
            self._ring_at(heap[0][0])
        for entry in late:
            item = entry[2]
            if item is not None:
                self.discard(item)
                self._expired(item)
