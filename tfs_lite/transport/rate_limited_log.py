"""Log lines about connections that ended through a fault of their clients: the address and why, at a limited rate.

A thousand clients with the same fault make one line now and one with their number later.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds between two lines about the same kind."""
QUIET = frozenset({"client", "drained", "idle", "age", "lingering"})
"""Kinds of ends that are no fault, and are not logged."""


class RateLimitedLog:
    """The rate-limited log of one server, on its event loop. ``protocol`` is named in every line; ``clock`` is in
    seconds."""

    def __init__(self, protocol: str, clock: Callable[[], float]) -> None:
        self._protocol = protocol
        self._clock = clock
        self._next: dict[str, float] = {}
        """The time from when on a kind may be logged again. The transport has a fixed set of kinds."""
        self._suppressed: Counter[str] = Counter()

    def connection_ended(self, kind: str, peer: object, why: str) -> None:
        """``peer`` is the socket's address; None means that it is not known any more."""
        if kind not in QUIET:
            self.warn(kind, f"{self._protocol} connection from {_name(peer)} ended, {kind}{why and f': {why}'}")

    def warn(self, kind: str, text: str) -> None:
        now = self._clock()
        if now < self._next.get(kind, now):
            self._suppressed[kind] += 1
            return
        self._next[kind] = now + EVERY
        more = self._suppressed.pop(kind, 0)
        logger.warning("%s%s", text, f" ({more} more of this kind since the last such line)" if more else "")


def _name(peer: object) -> str:
    if isinstance(peer, tuple) and len(peer) >= 2:
        return f"{peer[0]}:{peer[1]}"
    return "a client that has gone" if peer is None else "a UNIX socket"
