"""What has to be done when a deadline passes, for thousands of requests that hardly ever see theirs.

One timer, for the earliest deadline heard of since it last rang. Requests mostly come with the same time limit, so that
a later one hardly ever has an earlier deadline; most are long answered when the timer rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """On the event loop. ``add`` -> ``expired`` on time or ``discard`` before; times are those of the loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[T], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._due: dict[T, float] = {}
        self._rings = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T, deadline: float) -> None:
        self._due[item] = deadline
        if deadline < self._rings:
            self._ring_at(deadline)

    def discard(self, item: T) -> None:
        self._due.pop(item, None)

    def _ring_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = deadline
        self._timer = self._loop.call_at(deadline, self._rang)

    def _rang(self) -> None:
        self._timer, self._rings = None, inf
        now = self._loop.time()
        for item in [item for item, deadline in self._due.items() if deadline <= now]:
            del self._due[item]
            self._expired(item)
        if self._due:
            self._ring_at(min(self._due.values()))
