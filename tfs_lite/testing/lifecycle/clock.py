"""A clock that stands still until it is moved."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from tfs_lite.core.clock import DelayedCall, Timer


class VirtualClock:
    """A :class:`tfs_lite.core.clock.Clock`. Delayed calls run inside :meth:`advance`, in the order in which they are
    due, each at its own time; what they schedule in turn runs too if it falls into the same span."""

    def __init__(self, start: float = 1_000_000_000.0) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._start = start
        self._now = 0.0
        self._heap: list[DelayedCall] = []
        self._order = itertools.count()

    def time(self) -> float:
        with self._lock:
            return self._start + self._now

    def monotonic(self) -> float:
        with self._lock:
            return self._now

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        with self._lock:
            due = DelayedCall(self._now + max(delay, 0.0), next(self._order), call)
            heapq.heappush(self._heap, due)
            return due

    @property
    def pending(self) -> int:
        """Calls that are still to come."""
        with self._lock:
            return sum(due.call is not None for due in self._heap)

    @property
    def next_due(self) -> float | None:
        """Seconds until the next call; None if there is none."""
        with self._lock:
            times = [due.due for due in self._heap if due.call is not None]
            return min(times) - self._now if times else None

    def advance(self, seconds: float) -> None:
        """Moves the time forward and runs what falls due, on the caller's thread. What a call raises passes through."""
        with self._lock:
            end = self._now + seconds
        while (call := self._pop_due(end)) is not None:
            call()
        with self._lock:
            self._now = max(self._now, end)

    def slip(self, seconds: float) -> None:
        """Moves the time forward and runs nothing, as if the thread of a real clock were late. What is due runs inside
        the next :meth:`advance`."""
        with self._lock:
            self._now += seconds

    def _pop_due(self, end: float) -> Callable[[], None] | None:
        with self._lock:
            while self._heap and self._heap[0].due <= end:
                due = heapq.heappop(self._heap)
                if due.call is not None:
                    self._now = max(self._now, due.due)
                    return due.call
            return None
