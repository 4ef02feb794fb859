"""The log's word on connections that were ended for what their clients did: who and why, and not more than is read.

A thousand clients that do the same wrong are one line now and one with their number later.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds between two lines about the same kind."""
QUIET = frozenset({"client", "drained", "idle", "age", "lingering"})
"""Kinds of ends that are nobody's fault."""


class RateLimitedLog:
    """Of one server. On its event loop; ``clock`` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}
        """When the kind may be spoken of again. There are as many kinds as the transport has words for."""
        self._silent: Counter[str] = Counter()

    def about(self, kind: str, peer: object, why: str) -> None:
        """A connection has ended. ``peer`` is the address as sockets have it; None: it is not known any more."""
        if kind not in QUIET:
            self.say(kind, f"gRPC connection from {_name(peer)} ended, {kind}{why and f': {why}'}")

    def say(self, kind: str, text: str) -> None:
        now = self._clock()
        if now < self._next.get(kind, now):
            self._silent[kind] += 1
            return
        self._next[kind] = now + EVERY
        more = self._silent.pop(kind, 0)
        logger.warning("%s%s", text, f" ({more} more of this kind since the last such line)" if more else "")


def _name(peer: object) -> str:
    if isinstance(peer, tuple) and len(peer) >= 2:
        return f"{peer[0]}:{peer[1]}"
    return "a client that has gone" if peer is None else "a UNIX socket"
