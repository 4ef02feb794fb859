"""Admission of gRPC calls: none while the server shuts down, and no more at a time than ``--grpc_max_threads``.

Calls of health and reflection are always admitted and never counted, so that a busy server does not look dead.
"""

from __future__ import annotations

import asyncio
import time

from tfs_lite.core.status import ServingError, StatusCode

HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection."
QUIET_SECONDS = 0.1
"""Seconds without a new call after which the server counts as quiet."""


class AdmissionControl:
    """The bound on gRPC calls, on the event loop. ``max_calls`` bounds the calls in flight; None: no bound."""

    def __init__(self, max_calls: int | None = None) -> None:
        self._open = True
        self._max_calls = max_calls
        self._in_flight = 0
        self._arrivals = 0

    def acquire(self, path: str) -> bool:
        """Admits a call; True if it has to be released. UNAVAILABLE after ``close``, RESOURCE_EXHAUSTED beyond the
        bound."""
        self._arrivals += 1
        if path.startswith((HEALTH, REFLECTION)):
            return False
        if not self._open:
            raise ServingError(StatusCode.UNAVAILABLE, "the server is shutting down; try another one")
        if self._max_calls is not None and self._in_flight >= self._max_calls:
            raise ServingError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the server has {self._in_flight} calls inside, the most it takes at a time (--grpc_max_threads)",
            )
        self._in_flight += 1
        return True

    def release(self) -> None:
        self._in_flight -= 1

    def close(self) -> None:
        self._open = False

    async def wait_quiet(self, max_seconds: float) -> None:
        """Returns when no call has arrived for a moment, at the latest after ``max_seconds``."""
        ends = time.monotonic() + max_seconds
        while (left := ends - time.monotonic()) > 0:
            arrivals = self._arrivals
            await asyncio.sleep(min(QUIET_SECONDS, left))
            if self._arrivals == arrivals:
                return
