"""Whether and when a failed load is tried again: one pure decision, used by the load flow.

No thread sleeps between attempts. The flow asks :func:`next_delay` after each failure and lets the clock call it back,
so a broken version occupies no thread while it waits, and un-aspiring it ends the wait at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``max_retries`` further attempts after the first, ``interval`` seconds apart (not positive: at once)."""

    max_retries: int = 5
    interval: float = 60.0

    @property
    def max_attempts(self) -> int:
        return max(self.max_retries, 0) + 1


def next_delay(policy: RetryPolicy, failures: int, *, retryable: bool, cancelled: bool) -> float | None:
    """Seconds until the next attempt after ``failures`` failed ones; None means to give up."""
    if cancelled or not retryable or failures >= policy.max_attempts:
        return None
    return max(policy.interval, 0.0)
