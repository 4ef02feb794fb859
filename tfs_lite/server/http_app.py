"""The HTTP routes, as one ASGI application: TensorFlow Serving's REST API, probes, metrics and the API's description.
KServe V2 and OpenAI's API have applications of their own behind it.

It finds who answers, and sees to what all answers share: errors in the form that the answer would have had, headers for
browsers, compression. Paths below ``/v1/`` follow TensorFlow Serving's grammar, which no router has (``rest_path``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument, not_found
from tfs_lite.metrics.requests import REST, RequestMetrics
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.server import openapi
from tfs_lite.server.http import replies as cors
from tfs_lite.server.http.compression import SMALLEST_ANSWER, accepts_gzip, pack
from tfs_lite.server.http.replies import JSON, BodyFormat, HttpError, answer_form, error_reply
from tfs_lite.server.http.short_path import Answer, BufferedRequest, answer_of, success
from tfs_lite.server.openai.app import OpenAiApp, is_openai
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import Health
from tfs_lite.server.tensorflow.rest_models import ModelPages
from tfs_lite.server.tensorflow.rest_routes import Action, is_rest, parse_path, prediction_of
from tfs_lite.server.tensorflow.rest_service import RestService
from tfs_lite.server.v2.http_app import V2HttpApp
from tfs_lite.server.v2.http_paths import is_v2

logger = logging.getLogger(__name__)

Page: TypeAlias = Callable[[], tuple[bytes, str]]
"""Makes a page and its content type. It may take a moment, and runs on a thread."""


class HttpApp:
    """An ASGI application. Handlers run on the event loop; metrics pages are made on ``pages``, large answers packed on
    ``slow``. ``upstream_page`` is at ``upstream_metrics_path`` when there is one, before every other page."""

    def __init__(
        self,
        models: ModelPages,
        rest: RestService,
        health: Health,
        metrics: RequestMetrics,
        metrics_page: Page,
        pages: BackgroundRunner,
        slow: BackgroundRunner,
        enable_cors: bool = False,
        upstream_metrics_path: str | None = None,
        upstream_page: Page = lambda: (b"", "text/plain"),
        v2: V2HttpApp | None = None,
        openai: OpenAiApp | None = None,
    ) -> None:
        self._models = models
        self._rest = rest
        self._health = health
        self._metrics = metrics
        self._v2 = v2
        self._openai = openai
        self._background = pages
        self._slow = slow
        self._cors = cors.HEADERS if enable_cors else {}
        self._upstream_path = upstream_metrics_path
        self._upstream_page = upstream_page
        self._openapi = openapi.document()
        self._pages: dict[str, Callable[[], Awaitable[Response]]] = {
            "/livez": self._livez,
            "/startupz": self._livez,
            "/readyz": self._readyz,
            "/metrics": partial(self._page, metrics_page),
            "/openapi.json": self._description,
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        path = scope["raw_path"].decode("latin-1")
        rest = is_rest(path) and path != self._upstream_path
        query = scope["query_string"].decode("latin-1")
        whole = self._whole_api(path)
        if whole is not None:
            response = await self._answer_of(whole, request, path, query)
            await response(scope, receive, send)
            return
        answer = self._rest_answer if rest else self._page_answer
        try:
            response = await answer(request, path, query)
        except Exception as error:
            form = answer_form(request.headers) if path.endswith(":predict") else JSON
            response = self._failure(error, request.method, path, form)
        await self._finish(response, request.headers, rest)
        await response(scope, receive, send)

    def _whole_api(self, path: str) -> V2HttpApp | OpenAiApp | None:
        if path == self._upstream_path:
            return None
        if self._v2 is not None and is_v2(path):
            return self._v2
        return self._openai if is_openai(path) else None

    async def _answer_of(self, api: V2HttpApp | OpenAiApp, request: Request, path: str, query: str) -> Response:
        """Errors and packing are its own."""
        if request.method == "OPTIONS" and self._cors:
            response = Response(status_code=cors.preflight_status(request.headers.get("origin")))
        else:
            response = await api.answer(request, path, query)
        response.headers.update(self._cors)
        return response

    def takes_whole(self, target: str) -> ModelRef | None:
        """Of a prediction; the rest is seldom asked for."""
        return None if target == self._upstream_path else prediction_of(target)

    async def answer_whole(self, request: BufferedRequest) -> Answer:
        """The same answer as the long way's."""
        form = request.forms[1]
        try:
            data = await self._rest.predict_whole(request)
        except Exception as error:
            response = self._failure(error, "POST", request.target, form)
        else:
            if not self._cors and len(data) <= SMALLEST_ANSWER:
                return success(data, form)
            response = Response(data, media_type=form.media_type)
        await self._finish(response, request.headers, rest=True)
        return answer_of(response)

    async def _finish(self, response: Response, headers: Mapping[str, str], rest: bool) -> None:
        """What all answers share."""
        if rest:
            response.headers.update(self._cors)
        if len(response.body) > SMALLEST_ANSWER:
            await self._pack(response, headers)

    def _failure(self, error: Exception, method: str, path: str, form: BodyFormat) -> Response:
        """Errors become answers; what nobody expected goes to the log."""
        if not isinstance(error, ServingError):
            logger.error("%s %s failed", method, path, exc_info=error)
            error = ServingError(StatusCode.INTERNAL, "internal error")
        return error_reply(error, form)

    async def _page_answer(self, request: Request, path: str, query: str) -> Response:
        if path == self._upstream_path:
            if query:
                raise invalid_argument(f"Unexpected path: {path}?{query}")
            return await self._page(self._upstream_page)
        page = self._pages.get(path)
        if page is None:
            raise not_found(f"no such page: {path}")
        if request.method not in ("GET", "HEAD"):
            message = f"{path} answers GET only, not {request.method}"
            raise HttpError(StatusCode.UNIMPLEMENTED, message, 405, {"Allow": "GET, HEAD"})
        return await page()

    async def _rest_answer(self, request: Request, path: str, query: str) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=cors.preflight_status(request.headers.get("origin")))
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

    async def _page(self, make: Page) -> Response:
        page, content_type = await self._background.run(make)
        return Response(page, media_type=content_type)

    async def _pack(self, response: Response, headers: Mapping[str, str]) -> None:
        """Packs an answer that is worth it, for clients that can unpack it."""
        data = bytes(response.body)
        response.headers["Vary"] = "Accept-Encoding"
        if not accepts_gzip(headers.get("accept-encoding", "")):
            return
        try:
            packed = pack(data) if len(data) <= COMFORTABLE_BYTES else await self._slow.run(partial(pack, data))
        except ServingError:
            return  # the threads are busy: the answer goes out as it is
        response.body = packed
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(packed))
