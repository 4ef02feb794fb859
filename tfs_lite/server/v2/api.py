"""The KServe V2 protocol as a whole: one inference path, one control, in front of them gRPC and HTTP.

gRPC service --\\                /-> V2Inference -> Predictor
                -> V2 (here) --
HTTP app ------/                \\-> V2Control -> core, repository, statistics, settings, shared memory
"""

from __future__ import annotations

from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import Health
from tfs_lite.server.runtime.sockets import is_loopback
from tfs_lite.server.v2.control import MAX_PENDING_CALLS, V2Control
from tfs_lite.server.v2.fast_path import V2FastPath
from tfs_lite.server.v2.grpc_service import V2GrpcService
from tfs_lite.server.v2.http_app import V2HttpApp
from tfs_lite.server.v2.inference import V2Inference
from tfs_lite.server.v2.shared_memory import SharedRegions
from tfs_lite.serving.config_sources import ModelLocator
from tfs_lite.serving.repository.control import RepositoryControl
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.transport.table import Method


class V2Api:
    """``methods`` and ``app`` once each; at the end ``close_loads``, on a thread other than the loop's, then ``close``,
    when the ports are closed."""

    def __init__(
        self,
        core: ServerCore,
        health: Health,
        repository: RepositoryControl | None,
        predictor: Predictor,
        background: BackgroundRunner,
    ) -> None:
        """Clients share memory with a server that only its own machine can reach. ``background`` reads large inputs."""
        options = core.options
        self._memory = SharedRegions(enabled=is_loopback(options.host), max_bytes=options.max_message_bytes)
        self._loads = BackgroundRunner("repository call", 1, MAX_PENDING_CALLS)
        self._control = V2Control(core, health, ModelLocator(options), repository, self._loads, self._memory)
        self._inference = V2Inference(
            predictor,
            core.metrics.requests,
            self._memory,
            lambda name: [found.version for found in core.states.report(name).versions],
            background=background,
        )
        self._fast = V2FastPath(predictor, self._inference)

    def methods(self) -> list[Method]:
        return V2GrpcService(self._inference, self._control, self._fast).methods()

    def app(self, http: HttpResources) -> V2HttpApp:
        return V2HttpApp(self._inference, self._control, http, self._fast)

    def close_loads(self) -> None:
        """Waits for the call that is being carried out."""
        self._loads.close()

    def close(self) -> None:
        self._memory.close()
