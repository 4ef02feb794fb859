"""The ways in: every service of the server on gRPC, every route on HTTP, in front of one core.

Everything here runs on one event loop. Slow work is handed to small pools: reloads, which wait for models; pages, which
take a moment to write; the parsing and printing of large bodies.

What the doors need to know before they open: the files and texts that options name, read and checked once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tfs_lite.config.model_server import from_proto
from tfs_lite.config.server_files import DEFAULT_PATH, read_monitoring_config
from tfs_lite.metrics import tensorflow as upstream_metrics
from tfs_lite.protocols.messages import Message
from tfs_lite.server.grpc.channel_arguments import parse_grpc_arguments
from tfs_lite.server.grpc.factory import GrpcTransport, make_grpc_server, settled
from tfs_lite.server.grpc.health_service import HealthService
from tfs_lite.server.grpc.metrics import TransportCollector
from tfs_lite.server.grpc.reflection_service import ReflectionService
from tfs_lite.server.grpc.tls import TlsFile
from tfs_lite.server.http.bodies import BodyCollector
from tfs_lite.server.http.server import HttpServer
from tfs_lite.server.http_app import HttpApp
from tfs_lite.server.inference.classify_regress import Inferences
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.openai.app import OpenAiApp, OpenAiSettings
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import ChangeSignal, Health
from tfs_lite.server.tensorflow.generation_service import PredictStreamedService
from tfs_lite.server.tensorflow.model_service import ModelService
from tfs_lite.server.tensorflow.prediction_service import PredictionService
from tfs_lite.server.tensorflow.rest_models import ModelPages
from tfs_lite.server.tensorflow.rest_service import RestService, RestSettings
from tfs_lite.server.v2.api import V2Api
from tfs_lite.serving.config_checks import base_directory
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.repository.control import RepositoryControl
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.transport.table import Method

MAX_PENDING_RELOADS = 8
MAX_PENDING_PAGES = 16
MAX_PENDING_BODIES = 1000
OWN_METRICS = "/metrics"
LAST_PAGES = 1.0
"""Seconds for HTTP requests that are inside when everything else has ended."""


class Endpoints:
    """``open`` -> ``drain`` -> ``close``, all on the loop. From any other thread: ``close_reloads`` between the last
    two, ``close_workers`` at the end."""

    def __init__(
        self, core: ServerCore, health: Health, settings: EndpointSettings, repository: RepositoryControl | None = None
    ) -> None:
        """``repository`` loads and unloads models by call; None: nobody does."""
        options = core.options
        self._core = core
        self._health = health
        self._settings = settings
        self._reloads = BackgroundRunner("reload", 1, MAX_PENDING_RELOADS)
        self._pages = BackgroundRunner("page", 1, MAX_PENDING_PAGES)
        self._bodies = BackgroundRunner("large body", options.rest_api_num_threads, MAX_PENDING_BODIES)
        self._predictor = Predictor(
            core.handle,
            core.request_metrics,
            options.max_message_bytes,
            core.services.routes.handle,
            core.services.on_call,
        )
        self._inferences = Inferences(
            self._predictor,
            options.enable_signature_method_name_check,
            max_bytes=options.max_message_bytes,
            on_examples=core.request_metrics.upstream.on_examples,
            background=self._bodies,
        )
        timeout = options.rest_api_timeout_in_ms / 1e3
        bounds = RestSettings(
            options.max_message_bytes,
            timeout_seconds=timeout if timeout > 0 else None,
            check_method_names=options.enable_signature_method_name_check,
        )
        metrics, log = core.request_metrics, core.request_logs
        self._rest = RestService(self._predictor, self._inferences, metrics, self._bodies, bounds, log)
        self._v2 = V2Api(core, health, repository, self._predictor)
        core.registry.register(BodyCollector(lambda: self._rest.bodies.numbers))
        self._grpc: GrpcTransport | None = None
        self._http: HttpServer | None = None
        self.grpc_port: int | None = None
        self.rest_api_port: int | None = None

    async def open(self) -> None:
        """Listens. Raises FAILED_PRECONDITION, with nothing left open, if an address cannot be had."""
        options = self._core.options
        changes = ChangeSignal(asyncio.get_running_loop())
        self._core.changes.listen(changes.notify)
        self._grpc = self._transport(self._methods(changes))
        try:
            self.grpc_port = await self._grpc.start(options.host, options.port, options.grpc_socket_path)
            if options.rest_api_port is not None:
                self._http = HttpServer(self._app())
                self.rest_api_port = await self._http.start(options.host, options.rest_api_port)
        except BaseException:
            await self.drain(0.0)
            await self.close()
            raise

    async def drain(self, grace: float) -> None:
        """Lets no more predictions in; returns when those inside are answered, at the latest after ``grace`` seconds. A
        second call with a shorter grace makes the first one return sooner. HTTP goes on telling how it fares."""
        rest = asyncio.create_task(self._rest.calls.drain(grace))
        if self._grpc is not None:
            await self._grpc.stop(grace)
        self._grpc = None  # the last reference ends the thread of gRPC's library
        await rest

    async def close(self) -> None:
        """Closes the HTTP port, once there is nothing left to tell."""
        if self._http is not None:
            await self._http.stop(LAST_PAGES)
        self._http = None
        self._rest.heap.close()

    def close_reloads(self) -> None:
        self._reloads.close()
        self._v2.close_loads()

    def close_workers(self) -> None:
        self._v2.close()
        self._pages.close()
        self._bodies.close()

    def _transport(self, methods: list[Method]) -> GrpcTransport:
        options, settings = self._core.options, self._settings
        server = make_grpc_server(
            options.grpc_server,
            methods,
            options.max_message_bytes,
            arguments=settings.grpc_arguments,
            tls=settings.tls,
            max_concurrent_calls=options.grpc_max_threads or None,
        )
        if server.numbers is not None:
            self._core.registry.register(TransportCollector(server.numbers))
        return server

    def _methods(self, changes: ChangeSignal) -> list[Method]:
        core, options = self._core, self._core.options
        prediction = PredictionService(
            self._predictor,
            self._inferences,
            core.handle,
            core.request_metrics,
            options.max_message_bytes,
            as_tensor_content=options.enable_serialization_as_tensor_content,
            check_method_names=options.enable_signature_method_name_check,
            log=core.request_logs,
        )
        streamed = PredictStreamedService(
            self._predictor,
            core.request_metrics,
            options.max_message_bytes,
            as_tensor_content=options.enable_serialization_as_tensor_content,
            check_method_names=options.enable_signature_method_name_check,
        )
        models = ModelService(core.status, self._reload, self._reloads, core.request_metrics, core.counter_value)
        services = (prediction, streamed, models, HealthService(self._health, changes))
        rows = [*(method for service in services for method in service.methods()), *self._v2.methods()]
        return [*rows, *ReflectionService(row.service for row in rows).methods()]

    def _app(self) -> HttpApp:
        core = self._core
        return HttpApp(
            ModelPages(core.handle, core.status, core.models, core.request_metrics),
            self._rest,
            self._health,
            core.request_metrics,
            metrics_page=lambda: (self._own_page(), CONTENT_TYPE_LATEST),
            pages=self._pages,
            slow=self._bodies,
            enable_cors=core.options.rest_api_enable_cors_support,
            upstream_metrics_path=self._settings.metrics_path,
            upstream_page=self._upstream_page,
            v2=self._v2.app(self._rest, self._bodies),
            openai=self._openai(),
        )

    def _openai(self) -> OpenAiApp:
        """Bodies, deadlines and the end of the server are those of REST."""
        core, rest = self._core, self._rest
        return OpenAiApp(
            self._predictor,
            core.handle,
            core.availability,
            core.request_metrics,
            rest.bodies,
            rest.calls,
            self._bodies,
            rest.heap,
            core.options.max_message_bytes,
            OpenAiSettings(timeout=core.options.openai_timeout_seconds),
        )

    def _own_page(self) -> bytes:
        """Triton's names, which the library would change, follow ours."""
        triton = "".join(f"{line}\n" for line in self._core.services.statistics.lines(self._core.queues()))
        return generate_latest(self._core.registry) + triton.encode()

    def _upstream_page(self) -> tuple[bytes, str]:
        """Our own names follow where the page takes the place of ours."""
        core = self._core
        own = self._own_page() if self._settings.metrics_path == OWN_METRICS else b""
        return core.request_metrics.upstream.page() + own, upstream_metrics.CONTENT_TYPE

    def _reload(self, message: Message) -> str:
        return self._core.reload(from_proto(message, base_directory(self._core.options)))


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """``metrics_path`` is that of the page with TensorFlow Serving's names; None: there is none."""

    grpc_arguments: tuple[tuple[str, int | str], ...]
    tls: TlsFile | None
    metrics_path: str | None

    @classmethod
    def read(cls, options: ServerOptions) -> EndpointSettings:
        """Raises ServingError that names flag or file and what is wrong."""
        return cls(
            settled(options.grpc_server, parse_grpc_arguments(options.grpc_channel_arguments)),
            TlsFile(options.ssl_config_file) if options.ssl_config_file else None,
            _metrics_path(options.monitoring_config_file),
        )


def _metrics_path(monitoring_config_file: str) -> str | None:
    """The page is on unless a file moves it or turns it off."""
    if not monitoring_config_file:
        return DEFAULT_PATH
    return read_monitoring_config(monitoring_config_file, Path.cwd()).prometheus_path
