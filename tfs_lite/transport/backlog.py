"""Predictions that have arrived and have not begun: in which order they begin, and which of them are refused because
they would begin too late. One backlog for all servers on one event loop.

    the head of a request -> is_too_long -> refused, by its head alone
                                         -> the rest of it arrives -> put -> [backlog] -> begun, some in each turn

A server that is asked more than it can do, and begins whatever has arrived, answers everything too late. So a request
is refused as soon as its head says that it has less time than it would need to wait. The wait is the number of those
before it times the time that the loop has lately taken for one. Nobody is overtaken: what was taken begins in the order
of arrival, and what is refused would have been late. Requests without a time limit are never too late. Health checks,
probes and the like do not wait here: their servers begin them in the next turn.

A refusal helps only if it is much cheaper than an answer, so nothing but the head is read for it; and only if it comes
soon, so a turn of the loop begins requests for a few milliseconds, and then reads what has come meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

OVERLOADED = "the server is overloaded: the request would not be answered before its deadline; try again later"
"""The error text that a refused client gets."""
ALWAYS_TAKEN = 64
"""This many requests may wait whatever the estimate says: they are begun within a few turns, and no estimate is that
good."""
MARGIN = 2.0
"""A wait is too long if it would take more than half of the time that is left, as in the queues of models: estimates
are not exact, and a request that has begun needs time, too."""
FIRST_SECONDS = 1e-4
"""Seconds that a request is expected to take before any was measured."""
RECENT_SECONDS = 1.0
"""Measurements older than this many seconds with a backlog hardly count. A single turn says little: some begin more
than they answer, and others answer what was begun before."""
TURN_SECONDS = 0.003
"""How long a turn of the loop begins requests ..."""
SHARE = 1 / 4
"""... or for this share of its time, if that is longer: even under a flood of requests to be refused the loop keeps the
rest."""


class ExpectedWait:
    """How long a request will wait behind others. Pure. ``seconds`` is what the loop has lately taken for one: to read,
    begin and answer it, and for whatever else it did meanwhile."""

    __slots__ = ("_all_seconds", "_count", "seconds")

    def __init__(self, seconds: float = FIRST_SECONDS) -> None:
        self.seconds = seconds
        self._all_seconds, self._count = RECENT_SECONDS / 4, RECENT_SECONDS / 4 / seconds

    def took(self, count: int, seconds: float) -> None:
        """Records that, while others waited, ``count`` requests together took the loop ``seconds``."""
        self._all_seconds += seconds
        self._count += count
        self.seconds = self._all_seconds / self._count
        while self._all_seconds > RECENT_SECONDS:
            self._all_seconds /= 2
            self._count /= 2

    def is_too_long(self, waiting: int, left: float) -> bool:
        """Whether a request with ``left`` seconds behind so many others should not wait."""
        return waiting >= ALWAYS_TAKEN and waiting * self.seconds * MARGIN > left


class Backlog:
    """Requests that wait for their turn on one event loop."""

    __slots__ = ("_expected", "_scheduled", "_turn_ended", "_waiting")

    def __init__(self, expected: ExpectedWait | None = None) -> None:
        self._expected = expected or ExpectedWait()
        self._waiting: deque[Callable[[], object]] = deque()
        self._scheduled = False
        self._turn_ended: float | None = None
        """When the last turn ended, if requests were left waiting."""

    def is_too_long(self, left: float) -> bool:
        """Whether a request that arrives now, and has ``left`` seconds, is to be refused."""
        return self._expected.is_too_long(len(self._waiting), left)

    def put(self, begin: Callable[[], object]) -> None:
        """Calls ``begin`` after those before it and in a later turn of the loop: what has come at once begins together,
        so that work for a thread is handed over at once, and the thread does not compete for the interpreter's lock
        with the reading."""
        self._waiting.append(begin)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        waiting, begun, now = self._waiting, 0, monotonic()
        others = 0.0 if self._turn_ended is None else now - self._turn_ended
        most, ends = len(waiting), now + max(TURN_SECONDS, others * SHARE / (1 - SHARE))
        try:
            while begun < most and now < ends:
                begun += 1
                waiting.popleft()()
                now = monotonic()
        finally:
            self._end_turn(begun, now)

    def _end_turn(self, begun: int, now: float) -> None:
        if self._turn_ended is not None:
            self._expected.took(begun, now - self._turn_ended)
        self._scheduled = False
        self._turn_ended = now if self._waiting else None
        if self._waiting:
            self._schedule()
