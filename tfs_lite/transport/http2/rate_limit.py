"""A budget for what a peer may do for nothing: so many at once, so many a second after that."""

from __future__ import annotations

from collections.abc import Callable

from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.limits import FLOODS, Limits


class TokenBucket:
    """``take`` costs next to nothing until the burst is used up; only then the clock is read. On one thread."""

    __slots__ = ("_burst", "_clock", "_left", "_per_second", "_since")

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._left = burst
        self._since = clock()

    def take(self, amount: float = 1.0) -> bool:
        """False: there is not so much left, and nothing was taken."""
        if self._left < amount:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._since) * self._per_second)
            self._since = now
            if self._left < amount:
                return False
        self._left -= amount
        return True

    def give(self, amount: float = 1.0) -> None:
        """Earned by something useful."""
        self._left = min(self._burst, self._left + amount)


EARNED = {"updates": 2, "pings": 1}
"""By every HEADERS and DATA frame that was sent: a client may open windows for it, and measure how long it took."""


class Budgets:
    """All budgets of one connection, by the names of :data:`limits.FLOODS`."""

    __slots__ = ("_by_name", "_counted")

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._by_name: dict[str, TokenBucket] = {}
        for name in FLOODS:
            burst, per_second = getattr(limits, name)
            self._by_name[name] = TokenBucket(burst, per_second, clock)
        self._counted = dict.fromkeys(EARNED, 0)
        """Frames that were sent when it was last spent."""

    def spend(self, name: str) -> None:
        """Raises ConnectionFault when there is nothing left."""
        if not self._by_name[name].take():
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, FLOODS[name], FLOODS[name])

    def spend_earned(self, name: str, frames_sent: int) -> None:
        """As ``spend``, for one of :data:`EARNED`; ``frames_sent``: since the connection began."""
        new = frames_sent - self._counted[name]
        if new > 0:
            self._by_name[name].give(EARNED[name] * new)
            self._counted[name] = frames_sent
        self.spend(name)

    def earn_reset(self) -> None:
        self._by_name["resets"].give()
