"""One timer for the deadlines of thousands of requests, hardly any of which is reached.

The timer is set for the earliest deadline known. Requests mostly have the same time limit, so a later one hardly ever
has an earlier deadline, and most are answered long before the timer fires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MAX_DISCARDED = 1000
"""Discarded entries in the heap, beyond twice the number of the others, before the heap is rebuilt."""


class Deadlines(Generic[T]):
    """Deadlines of items: ``expired`` is called on time for each item that was added with ``add``, unless ``discard``
    came before. On the event loop, with times of its clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[T], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._entries: dict[T, list[Any]] = {}
        self._heap: list[list[Any]] = []
        """Entries of deadline, a unique number, and the item: None once it was discarded."""
        self._last = 0
        self._fires_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T, deadline: float) -> None:
        if item in self._entries:
            self.discard(item)
        self._last = number = self._last + 1
        self._entries[item] = entry = [deadline, number, item]
        heappush(self._heap, entry)
        if deadline < self._fires_at:
            self._set_timer(deadline)

    def discard(self, item: T) -> None:
        entry = self._entries.pop(item, None)
        if entry is not None:
            entry[2] = None
            if len(self._heap) > MAX_DISCARDED + 2 * len(self._entries):
                self._heap = [entry for entry in self._heap if entry[2] is not None]
                heapify(self._heap)

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, deadline: float) -> None:
        self.close()
        self._fires_at = deadline
        self._timer = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._timer, self._fires_at = None, inf
        now, due, heap = self._loop.time(), [], self._heap
        while heap and (heap[0][0] <= now or heap[0][2] is None):
            due.append(heappop(heap))
        if heap:
            self._set_timer(heap[0][0])
        for entry in due:
            item = entry[2]
            if item is not None:
                self.discard(item)
                self._expired(item)
