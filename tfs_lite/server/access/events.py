"""Denials as events of the server's history."""

from __future__ import annotations

from collections.abc import Callable

from tfs_lite.core.history import Cause, EventKind, History, Origin
from tfs_lite.server.access.access import Denied

LEAST_SECONDS = 1.0
"""The seconds between two events: a flood of denials pushes no other event out of the history. The metric counts them
all."""


class DenialEvents:
    """The events of denied callers, on the event loop. ``clock`` gives seconds."""

    def __init__(self, history: History, clock: Callable[[], float]) -> None:
        self._history = history
        self._clock = clock
        self._next = 0.0

    def append(self, denied: Denied) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LEAST_SECONDS
        origin = Origin(Cause.OPERATOR, denied.caller)
        details = {"scope": denied.scope.name.lower(), "reason": denied.reason.value, "why": denied.message}
        self._history.append(EventKind.ACCESS_DENIED, origin=origin, details=details)
