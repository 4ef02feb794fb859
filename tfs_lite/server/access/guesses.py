"""The bound on the wrong tokens that one peer may send, so that guessing costs time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MOST = 20
"""Wrong tokens of one peer within ``WINDOW``; after that it waits for ``PAUSE``."""
WINDOW, PAUSE = 10.0, 10.0
"""Seconds."""
MAX_PEERS = 1000
"""Addresses in the table; one more pushes out the one that was wrong the longest ago."""


@dataclass(slots=True)
class _Count:
    since: float
    wrong: int = 0
    blocked_until: float = 0.0


class Guesses:
    """The wrong tokens of each peer, on the event loop. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    def seconds_blocked(self, address: str) -> float:
        """The seconds for which no token of this peer is looked at; 0 if they are."""
        count = self._counts.get(address)
        return 0.0 if count is None else max(count.blocked_until - self._clock(), 0.0)

    def wrong(self, address: str) -> None:
        """The peer has sent a wrong token."""
        now = self._clock()
        count = self._counts.pop(address, None)
        if count is None or now - count.since >= WINDOW:
            count = _Count(now)
        count.wrong += 1
        if count.wrong >= MOST:
            count.blocked_until = now + PAUSE
        self._counts[address] = count
        if len(self._counts) > MAX_PEERS:
            self._counts.popitem(last=False)
