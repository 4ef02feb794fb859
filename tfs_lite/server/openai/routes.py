"""The routes of OpenAI's API, below ``/openai/``. A query is ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.http.router import HEAD_TOO, POST, Api, Route, RouteHandler
from tfs_lite.server.openai.app import OpenAiApp
from tfs_lite.server.openai.errors import openai_error
from tfs_lite.transport.table import Scope

_ROOT = "/openai/"


def _route(path: str, methods: tuple[str, ...], handler: RouteHandler[str]) -> Route[str]:
    """Its handler finds out which model a request concerns."""
    return Route(path, methods, handler, packs=True, scope=Scope.PREDICT, checks_models=True)


class OpenAiApi(Api[str]):
    """Its handlers get the name of the model in the path, or the empty text."""

    names = {"model": ".*"}  # noqa: RUF012

    def __init__(self, app: OpenAiApp) -> None:
        self._app = app

    def routes(self) -> Iterator[Route[str]]:
        app = self._app
        yield _route("/openai/v1/completions", POST, app.completions)
        yield _route("/openai/v1/chat/completions", POST, app.chat_completions)
        yield _route("/openai/v1/embeddings", POST, app.embeddings)
        yield _route("/openai/v1/models", HEAD_TOO, app.list_models)
        yield _route("/openai/v1/models/{model}", HEAD_TOO, app.retrieve_model)

    def owns(self, path: str) -> bool:
        return path.startswith(_ROOT)

    def target(self, names: Mapping[str, str]) -> str:
        return unquote(names.get("model", ""), errors="replace")

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        if allowed is None:
            return HttpError(StatusCode.NOT_FOUND, f"Invalid URL ({method} {path:.200})", 404)
        shown = ", ".join(allowed)
        message = f"{path:.200} answers {shown} only, not {method}"
        return HttpError(StatusCode.UNIMPLEMENTED, message, 405, {"allow": shown})

    def error(self, request: Request, error: ServingError) -> Response:
        return openai_error(error)
