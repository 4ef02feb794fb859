"""Health of the server and of each model, for the HTTP probes and the gRPC health service.

The server becomes ready once and stays ready until it drains, so that one bad model never takes the traffic of the
others away.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from tfs_lite.serving.model_states import Answering

SERVICES = (
    "",
    "ModelService",
    "PredictionService",
    "inference.GRPCInferenceService",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
)
"""Names of the whole server, with and without package."""
ANSWERING_HEADER = "x-models-answering"


class ServingStatus(enum.IntEnum):
    """``grpc.health.v1.HealthCheckResponse.ServingStatus``."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """``is_model_available(name)`` is None for a model that is not in the config; ``answering`` tells how many models
    answer. Flags are set by the server's control threads and read by the event loop; they are never reset."""

    def __init__(
        self, is_model_available: Callable[[str], bool | None], answering: Callable[[], Answering] = Answering
    ) -> None:
        self._is_model_available = is_model_available
        self._answering = answering
        self._ready = False
        self._draining = False

    @property
    def ready(self) -> bool:
        return self._ready and not self._draining

    @property
    def remark(self) -> str:
        """The part that readiness does not tell: ``1 of 2 models answers``. Empty if all do."""
        found = self._answering()
        return str(found) if found.silent else ""

    @property
    def headers(self) -> dict[str, str]:
        """The same for programs, of every answer about readiness. Models are not named: everybody may ask."""
        found = self._answering()
        return {ANSWERING_HEADER: f"{found.count}/{found.total}"}

    @property
    def draining(self) -> bool:
        return self._draining

    def set_ready(self) -> None:
        """The models of the first config have loaded or failed."""
        self._ready = True

    def set_draining(self) -> None:
        """The server takes no more traffic. Final."""
        self._draining = True

    def check(self, name: str) -> ServingStatus:
        """``name``: a service of the server, or a model."""
        if name in SERVICES:
            return ServingStatus.SERVING if self.ready else ServingStatus.NOT_SERVING
        available = self._is_model_available(name)
        if available is None:
            return ServingStatus.SERVICE_UNKNOWN
        return ServingStatus.SERVING if available and not self._draining else ServingStatus.NOT_SERVING


class ChangeSignal:
    """Tells coroutines of one event loop that something changed; any thread may notify.

    Call ``next_change()`` before reading the state and await it afterwards, so that no change is missed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._scheduled = False  # many changes in one iteration of the loop are one

    def next_change(self) -> asyncio.Event:
        return self._event

    def notify(self) -> None:
        if self._scheduled:
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._fire)
        except RuntimeError:
            return  # the loop is closed

    def _fire(self) -> None:
        self._scheduled = False
        event, self._event = self._event, asyncio.Event()
        event.set()
