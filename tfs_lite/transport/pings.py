"""How often a client may send PING: gRPC's rule.

A PING that arrives sooner than ``min_ping_interval`` after the one before is a strike; strikes are forgotten when the
server sends HEADERS or DATA. A client with too many strikes is sent GOAWAY "too_many_pings"; gRPC's clients double
their interval then.
"""

from __future__ import annotations

from math import inf

from tfs_lite.transport.limits import Limits

WITHOUT_CALLS = 7200.0
"""Seconds between two PINGs of a client without calls, unless ``ping_without_calls`` is set."""


class PingPolicy:
    """Decides how often the client of one connection may ping; times are seconds of one clock."""

    __slots__ = ("_frames_sent", "_limits", "_next", "_strikes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._frames_sent = 0
        self._next = -inf
        self._strikes = 0

    def allows(self, now: float, frames_sent: int, busy: bool) -> bool:
        """Whether the PING that has arrived is still within the rule. ``frames_sent`` counts HEADERS and DATA frames
        since the connection began; ``busy``: it has calls."""
        limits = self._limits
        if frames_sent != self._frames_sent:
            self._frames_sent = frames_sent
            self._strikes, self._next = 0, -inf
        if now >= self._next:
            rare = not busy and not limits.ping_without_calls
            self._next = now + (WITHOUT_CALLS if rare else limits.min_ping_interval)
            return True
        self._strikes += 1
        return limits.max_ping_strikes == 0 or self._strikes <= limits.max_ping_strikes
