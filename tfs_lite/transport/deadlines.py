"""What has to be done when a deadline passes, for thousands of requests that hardly ever see theirs.

One timer, for the earliest deadline heard of since it last rang. Requests mostly come with the same time limit, so that
a later one hardly ever has an earlier deadline; most are long answered when the timer rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_DISCARDED = 1000
"""Deadlines of items that are long done, beyond twice the number of those that are not."""


class Deadlines(Generic[T]):
    """On the event loop. ``add`` -> ``expired`` on time or ``discard`` before; times are those of the loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[T], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._numbers: dict[T, int] = {}
        self._items: dict[int, T] = {}
        self._heap: list[tuple[float, int]] = []
        """Deadlines with the numbers of their items, those that were discarded among them."""
        self._last = 0
        self._rings = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T, deadline: float) -> None:
        self.discard(item)
        self._last = number = self._last + 1
        self._numbers[item] = number
        self._items[number] = item
        heappush(self._heap, (deadline, number))
        if deadline < self._rings:
            self._ring_at(deadline)

    def discard(self, item: T) -> None:
        number = self._numbers.pop(item, None)
        if number is not None:
            del self._items[number]
            if len(self._heap) > MOST_DISCARDED + 2 * len(self._items):
                self._heap = [entry for entry in self._heap if entry[1] in self._items]
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
        now, late = self._loop.time(), []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._items):
            _, number = heappop(self._heap)
            if number in self._items:
                late.append(number)
        if self._heap:
            self._ring_at(self._heap[0][0])
        for number in late:
            item = self._items.get(number)
            if item is not None:
                self.discard(item)
                self._expired(item)
