"""Time, passed in.

Nothing in the lifecycle reads the time or waits by itself: it asks a :class:`Clock`. The server uses
:class:`SystemClock`; tests use a virtual one and move it by hand.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from tfs_lite.core.callbacks import name_of
from tfs_lite.core.status import ServingError
from tfs_lite.core.threads import join, start

logger = logging.getLogger(__name__)


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """The call does not happen any more, unless it has begun. May be called often and from any thread."""


class Clock(Protocol):
    """Source of time and of delayed calls. All methods may be called from any thread."""

    def time(self) -> float:
        """Seconds since the epoch, for people."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back, for intervals."""

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        """Runs ``call`` once, ``delay`` seconds from now (at once when not positive), on the clock's own thread.

        The call must be short; it is never run inside ``call_later`` itself.
        """


class DelayedCall:
    """One entry of a clock's heap; ``due`` in the clock's seconds."""

    __slots__ = ("call", "due", "order")

    def __init__(self, due: float, order: int, call: Callable[[], None]) -> None:
        self.due, self.order = due, order
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: DelayedCall) -> bool:
        return (self.due, self.order) < (other.due, other.order)

    def cancel(self) -> None:
        self.call = None


class SystemClock:
    """The real time. Its one daemon thread starts with the first delayed call and ends with :meth:`close`. If the
    system refuses it then, the call is kept, and the next one tries again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._heap: list[DelayedCall] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        with self._changed:
            pending = DelayedCall(time.monotonic() + max(delay, 0.0), next(self._order), call)
            if self._closed:
                return pending
            heapq.heappush(self._heap, pending)
            self._staff()
            self._changed.notify()
        return pending

    def _staff(self) -> None:
        """Called with the lock held. The thread counts once it has been started."""
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="tfs-clock", daemon=True)
        try:
            start(thread)
        except ServingError as error:
            logger.warning("%s; what is due waits for the next delayed call", error)
        else:
            self._thread = thread

    def close(self) -> None:
        """Drops what is pending and joins the thread, for a bounded time. Later delayed calls never happen."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            join(thread)

    def _run(self) -> None:
        while (call := self._next_due()) is not None:
            try:
                call()
            except BaseException:
                logger.exception("a delayed call failed: %s", name_of(call))

    def _next_due(self) -> Callable[[], None] | None:
        """Waits for the next call that is due; None once closed."""
        with self._changed:
            while not self._closed:
                while self._heap and self._heap[0].call is None:
                    heapq.heappop(self._heap)
                wait = self._heap[0].due - time.monotonic() if self._heap else None
                if wait is not None and wait <= 0:
                    call, pending = None, heapq.heappop(self._heap)
                    call = pending.call
                    if call is not None:
                        return call
                    continue
                self._changed.wait(wait)
        return None
