"""The ways in: every service of the server on gRPC, every route on HTTP, in front of one core.

Everything here runs on one event loop. Slow work is handed to two small pools: reloads, which wait for models, and
pages, which take a moment to write.
"""

from __future__ import annotations

import asyncio

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tfs_lite.config.model_server import from_proto
from tfs_lite.protocols.messages import Message
from tfs_lite.server.background import BackgroundRunner
from tfs_lite.server.core import ServerCore
from tfs_lite.server.grpc_server import GrpcServer
from tfs_lite.server.grpc_table import Method
from tfs_lite.server.health import ChangeSignal, Health
from tfs_lite.server.health_service import HealthService
from tfs_lite.server.http_app import HttpRoutes
from tfs_lite.server.http_server import HttpServer
from tfs_lite.server.model_service import ModelService
from tfs_lite.server.plan import base_directory
from tfs_lite.server.prediction_service import PredictionService
from tfs_lite.server.predictor import Predictor

MAX_PENDING_RELOADS = 8
MAX_PENDING_PAGES = 16
LAST_PAGES = 1.0
"""Seconds for HTTP requests that are inside when everything else has ended."""


class Doors:
    """``open`` -> ``drain`` -> ``close``, all on the loop. From any other thread: ``close_reloads`` between the last
    two, ``close_pages`` at the end."""

    def __init__(self, core: ServerCore, health: Health) -> None:
        self._core = core
        self._health = health
        self._reloads = BackgroundRunner("reload", 1, MAX_PENDING_RELOADS)
        self._pages = BackgroundRunner("page", 1, MAX_PENDING_PAGES)
        self._grpc: GrpcServer | None = None
        self._http: HttpServer | None = None
        self.grpc_port: int | None = None
        self.rest_api_port: int | None = None

    async def open(self) -> None:
        """Listens. Raises FAILED_PRECONDITION, with nothing left open, if an address cannot be had."""
        options = self._core.options
        changes = ChangeSignal(asyncio.get_running_loop())
        self._core.changes.listen(changes.notify)
        self._grpc = GrpcServer(self._methods(changes), options.max_message_bytes)
        try:
            self.grpc_port = await self._grpc.start(options.host, options.port, options.grpc_socket_path)
            if options.rest_api_port is not None:
                self._http = HttpServer(self._routes().app())
                self.rest_api_port = await self._http.start(options.host, options.rest_api_port)
        except BaseException:
            await self.drain(0.0)
            await self.close()
            raise

    async def drain(self, grace: float) -> None:
        """Lets no more predictions in; returns when those inside are answered, at the latest after ``grace`` seconds. A
        second call with a shorter grace makes the first one return sooner. HTTP goes on telling how it fares."""
        if self._grpc is not None:
            await self._grpc.stop(grace)
        self._grpc = None  # the last reference ends gRPC's own thread

    async def close(self) -> None:
        """Closes the HTTP port, once there is nothing left to tell."""
        if self._http is not None:
            await self._http.stop(LAST_PAGES)
        self._http = None

    def close_reloads(self) -> None:
        self._reloads.close()

    def close_pages(self) -> None:
        self._pages.close()

    def _methods(self, changes: ChangeSignal) -> list[Method]:
        core, limit = self._core, self._core.options.max_message_bytes
        predictor = Predictor(core.handle, core.request_metrics)
        services = (
            PredictionService(predictor, core.handle, core.request_metrics, limit),
            ModelService(core.status, self._reload, self._reloads, core.request_metrics, core.counter_value),
            HealthService(self._health, changes),
        )
        return [method for service in services for method in service.methods()]

    def _routes(self) -> HttpRoutes:
        core = self._core
        return HttpRoutes(
            lookup=core.handle,
            status=core.status,
            models=core.models,
            health=self._health,
            metrics=core.request_metrics,
            metrics_page=lambda: (generate_latest(core.registry), CONTENT_TYPE_LATEST),
            background=self._pages,
        )

    def _reload(self, message: Message) -> None:
        self._core.reload(from_proto(message, base_directory(self._core.options)))
