"""A budget for what a peer may do for nothing: so many at once, so many a second after that."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
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
