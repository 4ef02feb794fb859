"""Whether to wait for more calls although an instance is free.

Most callers wait for an answer before they ask again, and so all callers of a batch come back soon after it was
answered. Sending the first of them at once splits them into groups that take turns, each with a fraction of a batch,
and every batch has its price: a hand-over between threads, and a model that runs two rows hardly faster than sixty.
So, after a run, as many rows are expected as were inside when it ended: those that ran and those that waited. The wait
is over when they have come, when none has come for a while, or after a bound.

Waiting saves work and costs time. Where there is time to spare, work need not be saved: calls wait only while the
processor or the model is saturated (``cpu_saturation``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class BatchDelay:
    """A batch that could still grow, and that nothing else holds back, stays until ``until`` while fewer than ``rows``
    rows wait."""

    rows: int = 0
    until: float = -inf


NO_DELAY = BatchDelay()


class AdaptiveDelay:
    """The batch delay of one queue, which adapts to its runs. Its owner locks; times are in seconds of its clock. Call
    ``ended`` after every run and ``current`` whenever a batch could be sent."""

    __slots__ = ("_ended", "_gap", "_longest", "_rows")

    def __init__(self, longest: float = 0.010, gap: float = 0.004) -> None:
        """``longest`` bounds a wait; ``gap`` is how long no call may come during it."""
        self._longest = longest
        self._gap = gap
        self._ended = 0.0
        self._rows = 0

    def ended(self, now: float, inside: int, saturated: bool) -> None:
        """A run has ended; ``inside`` counts its rows and those that wait."""
        self._ended = now
        self._rows = inside if saturated else 0

    def current(self, youngest: float) -> BatchDelay:
        """The delay that counts now; ``youngest`` is when the call that came last was queued."""
        if self._rows <= 1:
            return NO_DELAY
        return BatchDelay(self._rows, min(max(self._ended, youngest) + self._gap, self._ended + self._longest))
