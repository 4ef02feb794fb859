"""How long to wait before a process that has died is started again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Doubles from ``first`` to ``most`` seconds; a process that has run for ``well`` seconds makes up for all before.
    No lock: its owner has one."""

    first: float = 0.1
    most: float = 30.0
    well: float = 60.0
    failures: int = 0

    def next(self, ran_for: float) -> float:
        """Seconds to wait now that a process has died which had run for ``ran_for`` seconds (0: it never did)."""
        if ran_for >= self.well:
            self.failures = 0
        delay = min(self.first * 2.0 ** min(self.failures, 64), self.most)
        self.failures += 1
        return delay
