"""The HTTP routes: TensorFlow Serving's status and metadata, the list of models, probes, metrics.

Every answer about models is JSON, errors too: ``{"error": "..."}``. Paths below ``/v1/`` follow TensorFlow Serving's
grammar, which is stricter than a router's (``rest_path`` reads it).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.codes import http_status
from tfs_lite.protocols.serving import ModelRef, VersionStatus, model_status, signature_def_map, status_json
from tfs_lite.server.background import BackgroundRunner
from tfs_lite.server.health import Health
from tfs_lite.server.model_report import ModelReport
from tfs_lite.server.predictor import Lookup
from tfs_lite.server.request_metrics import RequestMetrics
from tfs_lite.server.rest_path import Action, parse_path

logger = logging.getLogger(__name__)

JSON = "application/json"
Endpoint = Callable[[Request], Awaitable[Response]]
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


class HttpRoutes:
    """Handlers run on the event loop. ``status`` and ``models`` are short; ``metrics_page`` is not, and runs on
    ``background``."""

    def __init__(
        self,
        lookup: Lookup,
        status: Callable[[ModelRef], list[VersionStatus]],
        models: Callable[[], Sequence[ModelReport]],
        health: Health,
        metrics: RequestMetrics,
        metrics_page: Callable[[], tuple[bytes, str]],
        background: BackgroundRunner,
    ) -> None:
        self._lookup = lookup
        self._status = status
        self._models = models
        self._health = health
        self._metrics = metrics
        self._metrics_page = metrics_page
        self._background = background

    def app(self) -> Starlette:
        pages = {
            "/livez": self.livez,
            "/startupz": self.livez,
            "/readyz": self.readyz,
            "/metrics": self.metrics,
            "/monitoring/prometheus/metrics": self.metrics,
            "/v1/models": self.list_models,
        }
        routes = [Route(path, _guarded(endpoint)) for path, endpoint in pages.items()]
        return Starlette(routes=[*routes, Route("/{path:path}", _guarded(self.rest), methods=METHODS)])

    async def livez(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        if self._health.ready:
            return PlainTextResponse("ok\n")
        reason = "draining" if self._health.draining else "models are being loaded"
        return PlainTextResponse(f"{reason}\n", status_code=503)

    async def metrics(self, request: Request) -> Response:
        page, content_type = await self._background.run(self._metrics_page)
        return Response(page, media_type=content_type)

    async def list_models(self, request: Request) -> Response:
        return _json({"models": [_report(report) for report in self._models()]})

    async def rest(self, request: Request) -> Response:
        raw_path: bytes = request.scope["raw_path"]
        if raw_path[:4].lower() != b"/v1/":
            return _error(404, f"no such page: {request.url.path}")
        action, ref = parse_path(request.method, raw_path.decode("latin-1"))
        if action is Action.STATUS:
            return self._model_status(ref)
        if action is Action.METADATA:
            return self._model_metadata(ref)
        raise ServingError(
            StatusCode.UNIMPLEMENTED, "REST predictions are not available in this version of the server; gRPC's are"
        )

    def _model_status(self, ref: ModelRef) -> Response:
        with self._metrics.record("GetModelStatus", ref.name):
            return Response(status_json(model_status(self._status(ref))), media_type=JSON)

    def _model_metadata(self, ref: ModelRef) -> Response:
        with self._metrics.record("GetModelMetadata", ref.name) as record, self._lookup(ref) as handle:
            record.version = handle.id.version
            signatures = MessageToDict(
                signature_def_map(handle.servable.signatures),
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            spec = {"name": ref.name, "signature_name": "", "version": str(handle.id.version)}
        return _json({"model_spec": spec, "metadata": {"signature_def": signatures}})


def _report(report: ModelReport) -> dict[str, Any]:
    """A model in the list: the same statuses as its own page, and the reason when it has nothing to offer."""
    statuses = orjson.loads(status_json(model_status(report.versions)))
    body = {"name": report.name, "model_version_status": statuses["model_version_status"]}
    if not report.problem.ok:
        body["reason"] = report.problem.message
    return body


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body, option=orjson.OPT_INDENT_2), status, media_type=JSON)


def _error(status: int, message: str) -> Response:
    return _json({"error": message}, status)


def _guarded(endpoint: Endpoint) -> Endpoint:
    """Errors become JSON; what nobody expected goes to the log."""

    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ServingError as error:
            return _error(http_status(error.code), str(error))
        except Exception:
            logger.exception("%s %s failed", request.method, request.url.path)
            return _error(500, "internal error")

    return call
