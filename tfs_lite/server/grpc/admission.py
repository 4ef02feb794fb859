"""Who is let into the gRPC server: nobody while it shuts down, and no more calls at a time than it is meant to have.

Calls of health and reflection are always let in and never counted, so that a busy server is not taken for a dead one
and can be asked what it has.
"""

from __future__ import annotations

import asyncio
import time

from tfs_lite.core.status import ServingError, StatusCode

HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection."
QUIET = 0.1
"""Seconds without a new call."""


class AdmissionControl:
    """Used on the event loop only. ``max_calls``: how many may be inside; None: any number."""

    def __init__(self, max_calls: int | None = None) -> None:
        self._open = True
        self._max_calls = max_calls
        self._inside = 0
        self._knocked = asyncio.Event()

    def enter(self, path: str) -> bool:
        """Before a call. UNAVAILABLE once the door is shut, RESOURCE_EXHAUSTED when all places are taken. Whether the
        caller has to ``leave``."""
        self._knocked.set()
        if path.startswith((HEALTH, REFLECTION)):
            return False
        self._admit()
        self._inside += 1
        return True

    def leave(self) -> None:
        self._inside -= 1

    def shut(self) -> None:
        self._open = False

    async def quiet(self, patience: float) -> None:
        """Returns when nobody has knocked for a moment, at the latest after ``patience`` seconds."""
        ends = time.monotonic() + patience
        while (left := ends - time.monotonic()) > 0:
            self._knocked.clear()
            try:
                await asyncio.wait_for(self._knocked.wait(), min(QUIET, left))
            except TimeoutError:
                return

    def _admit(self) -> None:
        if not self._open:
            raise ServingError(StatusCode.UNAVAILABLE, "the server is shutting down; try another one")
        if self._max_calls is not None and self._inside >= self._max_calls:
            raise ServingError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the server has {self._inside} calls inside, the most it takes at a time (--grpc_max_threads)",
            )
