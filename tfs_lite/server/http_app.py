"""The HTTP routes, as one ASGI application: TensorFlow Serving's REST API, probes, metrics and the API's description.
KServe V2 and OpenAI's API are applications of their own behind it.

It routes requests and does what all answers share: errors in the format of the answer, CORS headers, compression. Paths
below ``/v1/`` follow TensorFlow Serving's grammar (``tensorflow.rest_routes``), which no router can express.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument, not_found
from tfs_lite.metrics.requests import REST, RequestMetrics
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.server import openapi
from tfs_lite.server.http.compression import SMALLEST_ANSWER, accepts_gzip, pack
from tfs_lite.server.http.replies import (
    CORS_HEADERS,
    JSON,
    BodyFormat,
    HttpError,
    answer_format,
    error_reply,
    preflight_status,
)
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.short_path import Answer, BufferedRequest, answer_of, success
from tfs_lite.server.metrics_pages import MetricsPages
from tfs_lite.server.openai.app import OpenAiApp, is_openai
from tfs_lite.server.runtime.health import Health
from tfs_lite.server.tensorflow.rest_models import ModelPages
from tfs_lite.server.tensorflow.rest_routes import Action, is_rest, parse_path, prediction_of
from tfs_lite.server.tensorflow.rest_service import RestService
from tfs_lite.server.v2.http_app import V2HttpApp
from tfs_lite.server.v2.http_paths import is_v2

logger = logging.getLogger(__name__)


class HttpApp:
    """An ASGI application, on the event loop. The page with TensorFlow Serving's metrics goes before every other
    route."""

    def __init__(
        self,
        rest: RestService,
        models: ModelPages,
        health: Health,
        metrics: RequestMetrics,
        http: HttpResources,
        metrics_pages: MetricsPages,
        *,
        v2: V2HttpApp | None = None,
        openai: OpenAiApp | None = None,
        enable_cors: bool = False,
    ) -> None:
        self._rest = rest
        self._models = models
        self._health = health
        self._metrics = metrics
        self._http = http
        self._metrics_pages = metrics_pages
        self._v2 = v2
        self._openai = openai
        self._cors = CORS_HEADERS if enable_cors else {}
        self._openapi = openapi.document()
        self._pages: dict[str, Callable[[], Awaitable[Response]]] = {
            "/livez": self._livez,
            "/startupz": self._livez,
            "/readyz": self._readyz,
            "/metrics": metrics_pages.own,
            "/openapi.json": self._description,
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        path = scope["raw_path"].decode("latin-1")
        rest = is_rest(path) and path != self._metrics_pages.tensorflow_path
        query = scope["query_string"].decode("latin-1")
        api = self._find_api(path)
        if api is not None:
            response = await self._api_answer(api, request, path, query)
            await response(scope, receive, send)
            return
        answer = self._rest_answer if rest else self._page_answer
        try:
            response = await answer(request, path, query)
        except Exception as error:
            format = answer_format(request.headers) if path.endswith(":predict") else JSON
            response = self._failure(error, request.method, path, format)
        await self._finish(response, request.headers, rest)
        await response(scope, receive, send)

    def _find_api(self, path: str) -> V2HttpApp | OpenAiApp | None:
        if path == self._metrics_pages.tensorflow_path:
            return None
        if self._v2 is not None and is_v2(path):
            return self._v2
        return self._openai if is_openai(path) else None

    async def _api_answer(self, api: V2HttpApp | OpenAiApp, request: Request, path: str, query: str) -> Response:
        """The application answers errors and compresses answers by itself."""
        if request.method == "OPTIONS" and self._cors:
            response = Response(status_code=preflight_status(request.headers.get("origin")))
        else:
            response = await api.answer(request, path, query)
        response.headers.update(self._cors)
        return response

    def short_path_model(self, target: str) -> ModelRef | None:
        """Only predictions take the short path, because they are frequent."""
        return None if target == self._metrics_pages.tensorflow_path else prediction_of(target)

    async def answer_buffered(self, request: BufferedRequest) -> Answer:
        """The same answer as over ASGI."""
        format = request.formats[1]
        try:
            data = await self._rest.predict_buffered(request)
        except Exception as error:
            response = self._failure(error, "POST", request.target, format)
        else:
            if not self._cors and len(data) <= SMALLEST_ANSWER:
                return success(data, format)
            response = Response(data, media_type=format.media_type)
        await self._finish(response, request.headers, rest=True)
        return answer_of(response)

    async def _finish(self, response: Response, headers: Mapping[str, str], rest: bool) -> None:
        if rest:
            response.headers.update(self._cors)
        if len(response.body) > SMALLEST_ANSWER:
            await self._pack(response, headers)

    def _failure(self, error: Exception, method: str, path: str, format: BodyFormat) -> Response:
        """The answer for an error. An unexpected exception is logged and not shown to the client."""
        if not isinstance(error, ServingError):
            logger.error("%s %s failed", method, path, exc_info=error)
            error = ServingError(StatusCode.INTERNAL, "internal error")
        return error_reply(error, format)

    async def _page_answer(self, request: Request, path: str, query: str) -> Response:
        if path == self._metrics_pages.tensorflow_path:
            if query:
                raise invalid_argument(f"Unexpected path: {path}?{query}")
            return await self._metrics_pages.tensorflow()
        page = self._pages.get(path)
        if page is None:
            raise not_found(f"no such page: {path}")
        if request.method not in ("GET", "HEAD"):
            message = f"{path} answers GET only, not {request.method}"
            raise HttpError(StatusCode.UNIMPLEMENTED, message, 405, {"Allow": "GET, HEAD"})
        return await page()

    async def _rest_answer(self, request: Request, path: str, query: str) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=preflight_status(request.headers.get("origin")))
        try:
            action, ref = parse_path(request.method, f"{path}?{query}" if query else path)
        except ServingError:
            with self._metrics.record("", "", REST):
                raise
        match action:
            case Action.LIST:
                return self._models.list()
            case Action.STATUS:
                return self._models.status(ref)
            case Action.METADATA:
                return self._models.metadata(ref)
            case Action.PREDICT:
                return await self._rest.predict(request, ref)
            case Action.CLASSIFY:
                return await self._rest.classify(request, ref)
            case Action.REGRESS:
                return await self._rest.regress(request, ref)

    async def _livez(self) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self) -> Response:
        if self._health.ready:
            return PlainTextResponse("ok\n")
        reason = "draining" if self._health.draining else "models are being loaded"
        return PlainTextResponse(f"{reason}\n", status_code=503)

    async def _description(self) -> Response:
        return Response(self._openapi, media_type=JSON.media_type)

    async def _pack(self, response: Response, headers: Mapping[str, str]) -> None:
        """Compresses an answer for clients that accept gzip."""
        data = bytes(response.body)
        response.headers["Vary"] = "Accept-Encoding"
        if not accepts_gzip(headers.get("accept-encoding", "")):
            return
        try:
            packed = await self._http.run(len(data) > COMFORTABLE_BYTES, lambda: pack(data))
        except ServingError:
            return  # the threads are busy: the answer is sent as it is
        response.body = packed
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(packed))
