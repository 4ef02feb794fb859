"""Is the process alive, has it started, should it get traffic, and how is one model.

One object answers the HTTP probes and the gRPC health service alike. Readiness is reached once and then kept until
the server drains: one bad model never takes the traffic of the others away.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

SERVICES = (
    "",
    "ModelService",
    "PredictionService",
    "inference.GRPCInferenceService",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
)
"""Names that stand for the whole server: with and without the package."""


class ServingStatus(enum.IntEnum):
    """``grpc.health.v1.HealthCheckResponse.ServingStatus``."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """``is_model_available(name)`` is None for a model that nobody configured. Written by the server's control threads,
    read by the event loop; a flag only ever goes up."""

    def __init__(self, is_model_available: Callable[[str], bool | None]) -> None:
        self._is_model_available = is_model_available
        self._ready = False
        self._draining = False

    @property
    def ready(self) -> bool:
        return self._ready and not self._draining

    @property
    def draining(self) -> bool:
        return self._draining

    def set_ready(self) -> None:
        """What was known at the start has answered."""
        self._ready = True

    def set_draining(self) -> None:
        """No more traffic, please. Final."""
        self._draining = True

    def check(self, name: str) -> ServingStatus:
        """A service of the server, or a model."""
        if name in SERVICES:
            return ServingStatus.SERVING if self.ready else ServingStatus.NOT_SERVING
        available = self._is_model_available(name)
        if available is None:
            return ServingStatus.SERVICE_UNKNOWN
        return ServingStatus.SERVING if available and not self._draining else ServingStatus.NOT_SERVING


class ChangeSignal:
    """Tells waiting coroutines of one event loop that something changed; any thread may say so.

    Take ``next_change()`` before looking at the state and await it afterwards: no change is missed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._scheduled = False  # many changes in one turn of the loop are one

    def next_change(self) -> asyncio.Event:
        return self._event

    def notify(self) -> None:
        if self._scheduled:
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._fire)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def _fire(self) -> None:
        self._scheduled = False
        event, self._event = self._event, asyncio.Event()
        event.set()
