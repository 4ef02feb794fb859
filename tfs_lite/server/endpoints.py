"""The endpoints of a server: every gRPC service and every HTTP route, in front of one core.

Everything here runs on one event loop. Slow work goes to small thread pools: reloads, which wait for models; metrics
pages; the parsing and printing of large bodies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tfs_lite.config.server_files import DEFAULT_PATH, read_monitoring_config
from tfs_lite.core.history import History
from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import REST
from tfs_lite.server.access.access import Access
from tfs_lite.server.access.access_file import AccessFile
from tfs_lite.server.access.events import DenialEvents
from tfs_lite.server.access.metrics import AccessCollector
from tfs_lite.server.access.rules import AUTO, AccessPolicy
from tfs_lite.server.feature import Doors, ServerFeature
from tfs_lite.server.grpc.channel_arguments import parse_grpc_arguments
from tfs_lite.server.grpc.checked_methods import checked_methods
from tfs_lite.server.grpc.factory import GrpcTransport, effective_arguments, make_grpc_server
from tfs_lite.server.grpc.health_service import HealthService
from tfs_lite.server.grpc.metrics import TransportCollector
from tfs_lite.server.grpc.reflection_service import ReflectionService
from tfs_lite.server.http.bodies import BodyCollector
from tfs_lite.server.http.connection import Waits
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import Api, Overload, Router
from tfs_lite.server.http.server import ConnectionCollector, HttpServer
from tfs_lite.server.http_app import http_app
from tfs_lite.server.inference.classify_regress import Inferences
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.metrics_pages import MetricsPages, ServerCollector
from tfs_lite.server.openai.app import OpenAiApp, OpenAiSettings
from tfs_lite.server.openai.routes import OpenAiApi
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import ChangeSignal, Health
from tfs_lite.server.runtime.sockets import is_loopback
from tfs_lite.server.runtime.tls import HTTP, TlsFile
from tfs_lite.server.tensorflow.generation_service import PredictStreamedService
from tfs_lite.server.tensorflow.model_service import ModelService
from tfs_lite.server.tensorflow.prediction_service import PredictionService
from tfs_lite.server.tensorflow.rest_models import ModelPages
from tfs_lite.server.tensorflow.rest_routes import RestApi
from tfs_lite.server.tensorflow.rest_service import RestService
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.server.v2.api import V2Api
from tfs_lite.serving.feature import starting
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.repository.control import RepositoryControl
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.transport.backlog import Backlog
from tfs_lite.transport.room import ConnectionShare
from tfs_lite.transport.table import Method

T = TypeVar("T")
logger = logging.getLogger(__name__)

MAX_PENDING_RELOADS = 8
MAX_PENDING_BODIES = 1000
LAST_PAGES = 1.0
"""Seconds for HTTP requests in flight when everything else has ended."""


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The settings that the options name by file or text, read and checked before the ports open. ``metrics_path`` is
    that of the page with TensorFlow Serving's names; None: there is no such page. ``access_file`` None: there are no
    tokens."""

    grpc_arguments: tuple[tuple[str, int | str], ...]
    tls: TlsFile | None
    metrics_path: str | None
    access_file: AccessFile | None

    @classmethod
    def read(cls, options: ServerOptions) -> EndpointSettings:
        """Raises ServingError that names flag or file and what is wrong."""
        file = options.monitoring_config_file
        return cls(
            effective_arguments(options.grpc_server, parse_grpc_arguments(options.grpc_channel_arguments)),
            TlsFile(options.ssl_config_file) if options.ssl_config_file else None,
            read_monitoring_config(file, Path.cwd()).prometheus_path if file else DEFAULT_PATH,
            AccessFile(options.access_file, time.monotonic) if options.access_file else None,
        )


class Endpoints:
    """``open`` -> ``drain`` -> ``close``, all on the loop. From another thread: ``close_reloads`` between the last
    two, ``close_workers`` at the end."""

    def __init__(
        self,
        core: ServerCore,
        health: Health,
        settings: EndpointSettings,
        read_again: Callable[[], str],
        repository: RepositoryControl | None = None,
    ) -> None:
        """``read_again`` reads the config and the disk without waiting for the next poll. ``repository`` loads and
        unloads models by call; None: there are no such calls."""
        options = core.options
        self._core = core
        self._health = health
        self._settings = settings
        self._reloads = BackgroundRunner("reload", 1, MAX_PENDING_RELOADS)
        self._large_bodies = BackgroundRunner("large body", options.rest_api_num_threads, MAX_PENDING_BODIES)
        timeout = options.rest_api_timeout_in_ms / 1e3
        limits = HttpLimits(options.max_message_bytes, timeout_seconds=timeout if timeout > 0 else None)
        self._resources = HttpResources(limits, self._large_bodies)
        core.registry.register(BodyCollector(self._resources.bodies))
        core.registry.register(ServerCollector(lambda: health.ready))
        self._metrics_pages = MetricsPages(
            core.registry,
            core.metrics.requests.tensorflow,
            settings.metrics_path,
            lambda: core.statistics.statistics.lines(core.view.queues()),
        )
        self._predictor = Predictor(
            core.handle,
            core.metrics.requests,
            options.max_message_bytes,
            core.sequences.routes.handle,
            core.on_call,
            core.features.trials,
        )
        self._inferences = Inferences(
            self._predictor,
            options.enable_signature_method_name_check,
            max_bytes=options.max_message_bytes,
            on_examples=core.metrics.requests.tensorflow.on_examples,
            background=self._large_bodies,
        )
        core.metrics.requests.server_timing = options.server_timing
        self._predict_settings = PredictSettings.from_options(options)
        self._access = _make_access(options, settings.access_file, core.history)
        core.registry.register(AccessCollector(self._access))
        self._doors = Doors(health, self._access, read_again, repository)
        self._features: list[ServerFeature] = []  # those that are attached
        self._backlog = Backlog()
        self._share = ConnectionShare()
        self._v2 = V2Api(core, health, repository, self._predictor, self._large_bodies)
        self._grpc: GrpcTransport | None = None
        self._http: HttpServer | None = None
        self.grpc_port: int | None = None
        self.rest_api_port: int | None = None

    async def open(self) -> None:
        """Listens. Raises FAILED_PRECONDITION, with nothing left open, if an address cannot be had or a feature is
        broken."""
        options = self._core.options
        for feature in self._core.features:
            if isinstance(feature, ServerFeature):
                with starting(feature, "be attached"):
                    feature.attach(self._doors)
                self._features.append(feature)
        self._grpc = self._make_grpc_server()
        try:
            self.grpc_port = await self._grpc.start(options.host, options.port, options.grpc_socket_path)
            if options.rest_api_port is not None:
                tls = partial(self._settings.tls.context, HTTP) if self._settings.tls and options.rest_api_tls else None
                router = self._make_http_app()
                waits = Waits(
                    options.rest_api_idle_timeout_seconds,
                    options.rest_api_read_timeout_seconds,
                    options.rest_api_write_timeout_seconds,
                )
                self._http = HttpServer(
                    router, waits, tls=tls, backlog=self._backlog, refusal=router.refusal, share=self._share
                )
                self._core.registry.register(ConnectionCollector(self._http))
                self.rest_api_port = await self._http.start(options.host, options.rest_api_port)
        except BaseException:
            await self.drain(0.0)
            await self.close()
            raise

    async def leave(self) -> None:
        """Answers of HTTP close their connections from now on; everything is still accepted."""
        if self._http is not None:
            self._http.leave()

    async def drain(self, grace: float) -> None:
        """Returns when the predictions in flight are answered, at the latest after ``grace`` seconds. A second call
        with a shorter grace makes the first one return sooner. HTTP still answers probes and pages, also on new
        connections."""
        http = asyncio.create_task(self._drain_http(grace))
        if self._grpc is not None:
            await self._grpc.stop(grace)
        self._grpc = None  # the last reference ends the thread of gRPC's library
        await http
        self._core.features.ask("drained", lambda feature: feature.drained(), self._features)

    async def _drain_http(self, grace: float) -> None:
        ends = time.monotonic() + grace
        if self._http is not None:
            await self._http.drain(grace)
        await self._resources.calls.drain(max(ends - time.monotonic(), 0.0))

    async def close(self) -> None:
        """Closes the HTTP port."""
        if self._http is not None:
            await self._http.stop(LAST_PAGES)
        self._http = None
        self._resources.close()

    def close_reloads(self) -> None:
        self._reloads.close()
        self._v2.close_loads()

    def close_workers(self) -> None:
        self._v2.close()
        self._metrics_pages.close()
        self._core.features.ask("close_doors", lambda feature: feature.close_doors(), self._features)
        self._large_bodies.close()

    def _make_grpc_server(self) -> GrpcTransport:
        options, settings = self._core.options, self._settings
        server = make_grpc_server(
            options.grpc_server,
            self._grpc_methods(),
            options.max_message_bytes,
            arguments=settings.grpc_arguments,
            tls=settings.tls,
            max_concurrent_calls=options.grpc_max_threads or None,
            backlog=self._backlog,
            share=self._share,
            on_unread=self._core.metrics.requests.unread,
        )
        if server.numbers is not None:
            self._core.registry.register(TransportCollector(server.numbers))
        return server

    def _grpc_methods(self) -> list[Method]:
        core, settings = self._core, self._predict_settings
        metrics, predictor = core.metrics.requests, self._predictor
        changes = ChangeSignal(asyncio.get_running_loop())
        core.changes.listen(changes.notify)
        services = (
            PredictionService(predictor, self._inferences, core.handle, metrics, settings, core.request_logs),
            PredictStreamedService(predictor, metrics, settings),
            ModelService(core, self._reloads),
            HealthService(self._health, changes),
            self._v2,
        )
        methods = [method for service in services for method in service.methods()]
        methods += self._offered(lambda feature: feature.grpc())
        methods += ReflectionService(method.service for method in methods).methods()
        return checked_methods(methods, self._access)

    def _make_http_app(self) -> Router:
        core, http, predictor = self._core, self._resources, self._predictor
        metrics, settings = core.metrics.requests, OpenAiSettings(timeout=core.options.openai_timeout_seconds)
        openai = OpenAiApp(predictor, core.handle, core.view.availability, metrics, http, settings)
        core.registry.register(openai.ignored.collector)
        service = RestService(predictor, self._inferences, metrics, http, self._predict_settings, core.request_logs)
        apis: tuple[Api[Any], ...] = (
            *self._offered(lambda feature: feature.http(http)),
            RestApi(service, ModelPages(core), metrics),
            self._v2.app(http),
            OpenAiApi(openai),
        )
        overload = Overload(self._backlog, http.calls.timeout, self._count_refused)
        enable_cors = core.options.rest_api_enable_cors_support
        return http_app(apis, self._health, self._metrics_pages, http, enable_cors, overload, self._access)

    def _offered(self, offer: Callable[[ServerFeature], Sequence[T]]) -> list[T]:
        found: list[T] = []
        for feature in self._features:
            with starting(feature, "say what it answers"):
                found.extend(offer(feature))
        return found

    def _count_refused(self, method: str, model: str) -> None:
        record = RequestRecord(method, model, REST)
        self._core.metrics.requests.observe(record, StatusCode.UNAVAILABLE, 0.0)


def _make_access(options: ServerOptions, file: AccessFile | None, history: History) -> Access:
    manage = options.management_access
    if manage == AUTO and file is None and not is_loopback(options.host):
        logger.info(
            "reload, load, unload and settings work from this machine only; --access_file lets tokens do so from "
            "elsewhere, --management_access=open everybody"
        )
    policy = AccessPolicy(options.predict_access, options.read_access, manage, has_file=file is not None)
    access = Access(policy, file, options.allowed_hosts)
    access.on_denied(DenialEvents(history, time.monotonic).append)
    return access
