"""The usual duration of a model's requests: the median of about the last minute, for a few additions a request."""

from __future__ import annotations

from math import frexp

WINDOW = 30.0
"""Seconds of each of the two halves that the median looks back on."""
LEAST = 20
"""Requests without which there is no median."""
MANY, EVERY = 2000, 32
"""The number of requests in a minute that is many, and the step at which requests of such a model count: one of so many
is enough."""
_STEPS = 4
"""Buckets for each power of two: a median is at most a quarter too high."""
_LOWEST = -24
"""The power of two of the first bucket: 60 ns."""
_BUCKETS = 40 * _STEPS


class RecentMedian:
    """Counts by length, of this half of a minute and of the one before. On one thread; times are in seconds."""

    __slots__ = ("_before", "_counts", "_due", "_median", "_since", "_total")

    def __init__(self, now: float) -> None:
        self._counts = [0] * _BUCKETS
        self._before = [0] * _BUCKETS
        self._since = now
        self._total = 0
        self._due = LEAST
        self._median: float | None = None

    @property
    def every(self) -> int:
        """One request of so many is enough."""
        return EVERY if self._total > MANY else 1

    def at(self, now: float) -> float | None:
        """None while there are too few."""
        return self._median if now - self._since < 2 * WINDOW else None

    def add(self, seconds: float, now: float) -> None:
        if now - self._since >= WINDOW:
            stale = now - self._since >= 2 * WINDOW
            self._before = [0] * _BUCKETS if stale else self._counts
            self._counts, self._since = [0] * _BUCKETS, now
            self._total = sum(self._before)
            self._due = max(LEAST, self._total)
            if stale:
                self._median = None
        fraction, power = frexp(seconds)
        at = (power - _LOWEST) * _STEPS + int((fraction - 0.5) * 2 * _STEPS)
        self._counts[min(max(at, 0), _BUCKETS - 1)] += 1
        self._total += 1
        if self._total >= self._due:
            self._median = self._find()
            self._due = self._total + max(LEAST, self._total // 8)

    def _find(self) -> float:
        """The upper end of the bucket with the middle request."""
        seen, half = 0, self._total / 2
        for at, (count, before) in enumerate(zip(self._counts, self._before, strict=True)):
            seen += count + before
            if seen >= half:
                power, step = divmod(at, _STEPS)
                return float(2.0 ** (power + _LOWEST) * (0.5 + (step + 1) / (2 * _STEPS)))
        return 0.0
