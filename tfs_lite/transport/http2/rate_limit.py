"""Rate limits for frames that cost the server work and the client nothing: so many at once, so many a second."""

from __future__ import annotations

from collections.abc import Callable

from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.limits import FLOODS, Limits


class TokenBucket:
    """Reads the clock only when the burst is used up, so that ``take`` mostly costs a subtraction. One thread."""

    __slots__ = ("_burst", "_clock", "_left", "_per_second", "_since")

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._left = burst
        self._since = clock()

    def take(self, amount: float = 1.0) -> bool:
        """Whether there was so much left; if not, nothing is taken."""
        if self._left < amount:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._since) * self._per_second)
            self._since = now
            if self._left < amount:
                return False
        self._left -= amount
        return True

    def refill(self, amount: float) -> None:
        """Adds tokens, up to the burst."""
        self._left = min(self._burst, self._left + amount)


REFILLS = {"window_updates": 2, "pings": 1, "resets": 1}
"""Tokens for what the server has sent: for every HEADERS and DATA frame a client may widen windows, and measure its
delay; for every whole answer it may reset a stream."""


class RateLimits:
    """The rate limits of one connection, by the names of :data:`limits.FLOODS`."""

    __slots__ = ("_by_name", "_counted")

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._by_name: dict[str, TokenBucket] = {}
        for name in FLOODS:
            burst, per_second = getattr(limits, name)
            self._by_name[name] = TokenBucket(burst, per_second, clock)
        self._counted = dict.fromkeys(REFILLS, 0)
        """The counts of sent frames at the last refill."""

    def take(self, name: str) -> None:
        """Raises ConnectionFault if the client has exceeded the limit."""
        if not self._by_name[name].take():
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, FLOODS[name], FLOODS[name])

    def take_refilled(self, name: str, sent: int) -> None:
        """Does what ``take`` does for one of :data:`REFILLS`; ``sent`` counts from the beginning of the connection."""
        new = sent - self._counted[name]
        if new > 0:
            self._by_name[name].refill(REFILLS[name] * new)
            self._counted[name] = sent
        self.take(name)
