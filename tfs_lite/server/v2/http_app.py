"""KServe V2 over HTTP: answers every request below ``/v2``, errors included."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.encoded_bodies import EncodedBodies
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.http_infer import V2HttpInfer
from tfs_lite.server.v2.http_paths import Action, Target, parse_path
from tfs_lite.server.v2.http_replies import v2_error
from tfs_lite.server.v2.http_routes import V2HttpRoutes
from tfs_lite.server.v2.inference import V2Inference

logger = logging.getLogger(__name__)

_PACKED = (Action.INFER, Action.GENERATE)
"""Answers that are compressed for clients that accept it. Triton's clients always accept, but decompress only these."""


class V2HttpApp:
    """On the event loop."""

    def __init__(self, inference: V2Inference, control: V2Control, http: HttpResources) -> None:
        self._bodies = EncodedBodies(http)
        self._infer = V2HttpInfer(inference, control, http, self._bodies)
        self._routes = V2HttpRoutes(control, self._bodies)

    async def answer(self, request: Request, path: str, query: str) -> Response:
        """The complete answer except the headers for browsers, compressed if the client accepts that. ``path`` is still
        percent-encoded; ``query`` is ignored. The caller must call the response in the same task, at once, because a
        stream holds its request until it is sent. Raises nothing but CancelledError."""
        try:
            target = parse_path(request.method, path)
            response = await self._answer(request, target)
        except ServingError as error:
            return v2_error(error)
        except Exception:
            logger.exception("%s %s failed", request.method, path)
            return v2_error(ServingError(StatusCode.INTERNAL, "internal error"))
        if target.action in _PACKED:
            await self._bodies.pack(response, request.headers.get("accept-encoding", ""))
        return response

    async def _answer(self, request: Request, target: Target) -> Response:
        match target.action, target.model:
            case Action.INFER, str(model):
                return await self._infer.infer(request, model, target)
            case Action.GENERATE, str(model):
                return await self._infer.generate(request, model, target)
            case Action.GENERATE_STREAM, str(model):
                return await self._infer.generate_stream(request, model, target)
            case _:
                return await self._routes.answer(request, target)
