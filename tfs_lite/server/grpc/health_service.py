"""``grpc.health.v1.Health``: the state of the server, of each service and of each model, once or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tfs_lite.core.status import ServingError, StatusCode, not_found
from tfs_lite.protocols.messages import HealthCheckRequest, HealthCheckResponse
from tfs_lite.protocols.tensorflow.serving import parse
from tfs_lite.server.runtime.health import ChangeSignal, Health, ServingStatus
from tfs_lite.transport.table import CallContext, Method, Scope, server_stream, unary

MAX_WATCHERS = 10_000


class HealthService:
    """A watcher gets the current status and then every change. Its stream ends when the server drains."""

    def __init__(self, health: Health, changes: ChangeSignal, max_watchers: int = MAX_WATCHERS) -> None:
        self._health = health
        self._changes = changes
        self._max_watchers = max_watchers
        self._watchers = 0

    def methods(self) -> list[Method]:
        return [
            unary("/grpc.health.v1.Health/Check", self.check, scope=Scope.OPEN),
            server_stream("/grpc.health.v1.Health/Watch", self.watch, scope=Scope.OPEN),
        ]

    async def check(self, request: bytes, context: CallContext) -> bytes:
        name = parse(HealthCheckRequest, request).service
        status = self._health.check(name)
        if status is ServingStatus.SERVICE_UNKNOWN:
            raise not_found(f"no service and no model is called {name!r}")
        return _response(status)

    async def watch(self, request: bytes, context: CallContext) -> AsyncIterator[bytes]:
        name = parse(HealthCheckRequest, request).service
        if self._watchers >= self._max_watchers:
            raise ServingError(
                StatusCode.RESOURCE_EXHAUSTED, f"{self._watchers} health watchers are connected, no more are taken"
            )
        self._watchers += 1
        try:
            async for status in self._statuses(name):
                yield _response(status)
        finally:
            self._watchers -= 1

    async def _statuses(self, name: str) -> AsyncIterator[ServingStatus]:
        last = None
        while True:
            change = self._changes.next_change()
            draining, status = self._health.draining, self._health.check(name)
            if status is not last:
                yield status
                last = status
            if draining:
                return
            await change.wait()


def _response(status: ServingStatus) -> bytes:
    encoded: bytes = HealthCheckResponse(status=status).SerializeToString()
    return encoded
