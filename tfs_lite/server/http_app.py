"""Everything that HTTP answers, as one router: the APIs, and the pages that belong to none of them, which are probes,
metrics and the description of the API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfs_lite.core.status import ServingError, not_found
from tfs_lite.server.access.access import Access
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.replies import JSON
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.router import EVERY_METHOD, HEAD_TOO, About, Api, Overload, OwnPages, Route, Router
from tfs_lite.server.metrics_pages import MetricsPages
from tfs_lite.server.openapi import document
from tfs_lite.server.runtime.health import Health
from tfs_lite.transport.table import Scope

_TEXT = "text/plain; charset=utf-8"


class TensorflowPage(OwnPages[None]):
    """The page with TensorFlow Serving's metrics."""

    def __init__(self, metrics: MetricsPages, path: str) -> None:
        self._metrics = metrics
        self._path = path

    def routes(self) -> Iterator[Route[None]]:
        about = About("prometheusMetrics", "Metrics.", "Metrics", ("400", "405", "429"))
        yield Route(self._path, EVERY_METHOD, self._metrics.tensorflow, packs=True, about=about, scope=Scope.READ)

    def target(self, names: Mapping[str, str]) -> None:
        return None

    def pattern(self, path: str) -> str:
        return re.escape(path)


class Pages(OwnPages[None]):
    """Owns every path, so that it comes last."""

    def __init__(self, health: Health, metrics: MetricsPages, others: Sequence[Api[Any]]) -> None:
        """``others``: the other APIs that this server answers."""
        self._metrics = metrics
        self._health = health
        self._document = document((*others, self))

    def routes(self) -> Iterator[Route[None]]:
        about = About("livez", "Whether the process is alive.", "Yes", ("405",))
        yield Route("/livez", HEAD_TOO, self.live, about=about, scope=Scope.OPEN)
        about = About("startupz", "Whether the process has started.", "Yes", ("405",))
        yield Route("/startupz", HEAD_TOO, self.live, about=about, scope=Scope.OPEN)
        about = About("readyz", "Whether traffic is welcome.", "Ready", ("405",))
        yield Route("/readyz", HEAD_TOO, self.ready, about=about, scope=Scope.OPEN)
        about = About("metrics", "Metrics.", "Metrics", ("405", "429"))
        yield Route("/metrics", HEAD_TOO, self._metrics.own, packs=True, about=about, scope=Scope.READ)
        about = About("openapi", "The description of this API.", "Document", ("405",))
        yield Route("/openapi.json", HEAD_TOO, self.description, packs=True, about=about, scope=Scope.OPEN)

    def owns(self, path: str) -> bool:
        return True

    def target(self, names: Mapping[str, str]) -> None:
        return None

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        return not_found(f"no such page: {path}") if allowed is None else super().refusal(method, path, allowed)

    def live(self, request: Request, target: None) -> Response:
        return Response(b"ok\n", media_type=_TEXT)

    def ready(self, request: Request, target: None) -> Response:
        health = self._health
        if health.ready:
            text = f"ok, but {health.remark}\n" if health.remark else "ok\n"
            return Response(text.encode(), 200, _TEXT, health.headers)
        reason = b"draining\n" if health.draining else b"models are being loaded\n"
        return Response(reason, 503, _TEXT, health.headers)

    def description(self, request: Request, target: None) -> Response:
        return Response(self._document, media_type=JSON.media_type)


def http_app(
    apis: Sequence[Api[Any]],
    health: Health,
    metrics: MetricsPages,
    http: HttpResources,
    enable_cors: bool = False,
    overload: Overload | None = None,
    access: Access | None = None,
) -> Router:
    """The page with TensorFlow Serving's metrics is where the configuration wants it, before every other route."""
    path = metrics.tensorflow_path
    first = [] if path is None else [TensorflowPage(metrics, path)]
    found = [*first, *apis]
    return Router([*found, Pages(health, metrics, found)], http.bodies, enable_cors, overload, access)
