"""A feature with doors: what it answers over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfs_lite.server.access.access import Access
from tfs_lite.server.http.message import Request
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.router import Api
from tfs_lite.server.runtime.health import Health
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.repository.control import RepositoryControl
from tfs_lite.transport.table import CallContext, Method, Scope


@dataclass(frozen=True, slots=True)
class Doors:
    """The parts of a server in front of its core. ``read_again`` reads the config and the disk without waiting for the
    next poll. ``repository`` loads and unloads models by call; None: there are no such calls."""

    health: Health
    access: Access
    read_again: Callable[[], str]
    repository: RepositoryControl | None

    def may(self, request: Request) -> frozenset[Scope]:
        """The scopes that the client may use."""
        return self.access.may(self.access.http(request.peer, request.headers.find))

    def manages(self, request: Request) -> bool:
        """Whether the client may manage every model."""
        return self.access.manages_all(self.access.http(request.peer, request.headers.find))

    def manages_call(self, context: CallContext) -> bool:
        """The same of a gRPC call."""
        return self.access.manages_all(self.access.grpc(context))


class ServerFeature(Feature):
    """``attach`` -> ``http`` and ``grpc``, once each, on the event loop, before the ports open -> ``drained`` ->
    ``close_doors``."""

    def attach(self, doors: Doors) -> None:
        """The endpoints are made; nothing is open yet."""

    def http(self, resources: HttpResources) -> Sequence[Api[Any]]:
        """Its routes, if the server has HTTP. They are tried before those of the protocols."""
        return ()

    def grpc(self) -> Sequence[Method]:
        return ()

    def drained(self) -> None:
        """Called on the event loop when every request is answered or has run out of time; endless streams end now."""

    def close_doors(self) -> None:
        """Both ports are closed, and no model is loaded any more."""
