"""How often a client may send PING: gRPC's rule.

A PING that comes sooner than ``min_ping_interval`` after the one before is a strike; when the server sends something
for a call, all is forgiven. With more strikes than allowed the client is sent GOAWAY "too_many_pings", and a client of
gRPC doubles its interval then.
"""

from __future__ import annotations

from math import inf

from tfs_lite.transport.limits import Limits

WITHOUT_CALLS = 7200.0
"""Seconds between two PINGs of a client that has no call inside, unless the limits say that it may."""


class PingPolicy:
    """Of one connection; times are seconds of one clock."""

    __slots__ = ("_answers_sent", "_limits", "_next", "_strikes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._answers_sent = 0
        self._next = -inf
        self._strikes = 0

    def allows(self, now: float, answers_sent: int, busy: bool) -> bool:
        """A PING has come. ``answers_sent``: HEADERS and DATA frames since the connection began. False: too many."""
        limits = self._limits
        if answers_sent != self._answers_sent:
            self._answers_sent = answers_sent
            self._strikes, self._next = 0, -inf
        early = now < self._next
        if not early:
            sparse = not busy and not limits.ping_without_calls
            self._next = now + (WITHOUT_CALLS if sparse else limits.min_ping_interval)
            return True
        self._strikes += 1
        return limits.max_ping_strikes == 0 or self._strikes <= limits.max_ping_strikes
