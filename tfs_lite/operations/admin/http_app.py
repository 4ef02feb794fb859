"""The routes of :class:`AdminControl` over HTTP. They are exact, and tried before TensorFlow Serving's grammar, which
stays as strict as it is. No other origin is ever allowed to read them.

A route is a row of the table: its path, and a function from what was asked to a JSON value, which runs on a thread of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import unquote

import orjson

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import StatusCode, invalid_argument
from tfs_lite.operations.admin.control import AdminControl
from tfs_lite.operations.admin.questions import read_body
from tfs_lite.operations.admin.schemas import schemas
from tfs_lite.server.http.bodies import Bodies
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.replies import JSON
from tfs_lite.server.http.router import GET, POST, About, OwnPages, Route, RouteHandler, Tree, model_in_path
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.transport.table import EVERYTHING, Grant, Scope

MAX_PENDING_QUESTIONS = 64
"""The most questions that may be pending; more are refused."""
MAX_PENDING_FORECASTS = 4
"""The same, of questions about configs, which are longer."""


@dataclass(frozen=True, slots=True)
class AdminQuery:
    """The question to a route: the model of its path, and its other names. ``paths``: whether the client may see paths
    of the server; ``grant``: which models it may see."""

    model: ModelRef
    names: Mapping[str, str]
    paths: bool = False
    grant: Grant = EVERYTHING


Answer: TypeAlias = Callable[[AdminControl, AdminQuery], Any]
"""A function from a question to a JSON value. Raises ServingError."""


def _route(
    path: str, handler: RouteHandler[AdminQuery], about: About, checks_models: bool = False
) -> Route[AdminQuery]:
    return Route(path, GET, handler, packs=True, about=about, scope=Scope.READ, checks_models=checks_models)


def _failed_request(control: AdminControl, query: AdminQuery) -> Any:
    return control.failed_request(query.names["request"])


def _failed_requests(control: AdminControl, query: AdminQuery) -> Any:
    return control.failed_requests(query.model.name, query.grant.allows)


def _verdicts(control: AdminControl, query: AdminQuery) -> Any:
    return {"models": [line.as_json for line in control.verdicts() if query.grant.allows(line.model)]}


def _explain(control: AdminControl, query: AdminQuery) -> Any:
    return control.explain(query.model, paths=query.paths).as_json


class AdminApi(OwnPages[AdminQuery]):
    """The admin API over HTTP, on the event loop; ``background`` runs the answers, ``forecasts`` those about configs.
    ``may_see_paths`` tells which clients are shown paths of the server."""

    names = {"model": "[^/:]+", "version": "[0-9]+", "label": "[^/:]+", "request": "[^/]+"}  # noqa: RUF012

    def __init__(
        self,
        control: AdminControl,
        background: BackgroundRunner,
        forecasts: BackgroundRunner,
        bodies: Bodies,
        may_see_paths: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        self._control = control
        self._bodies = bodies
        self._background = background
        self._forecasts = forecasts
        self._may_see_paths = may_see_paths

    def routes(self) -> Iterator[Route[AdminQuery]]:
        about = About("explainModels", "One line for each model, worst first.", "Verdicts", ("405", "429"))
        yield _route("/v1/models:explain", partial(self.answer, _verdicts), about, checks_models=True)
        errors = ("400", "405", "429")
        for version, which in (("", ""), ("/versions/{version}", "OfVersion"), ("/labels/{label}", "OfLabel")):
            about = About(f"explain{which}", "Why it is in its state, and what to do.", "Explanation", errors)
            yield _route("/v1/models/{model}" + version + ":explain", partial(self.answer, _explain), about)

        unknown = ("404", "405", "429")
        about = About("failedRequest", "A failed request, by its id or trace id.", "FailedRequests", unknown)
        yield _route("/v1/requests/{request}", partial(self.answer, _failed_request), about)
        failed = partial(self.answer, _failed_requests)
        about = About("failedRequests", "The last failed requests, the newest first.", "FailedRequests", ("405", "429"))
        yield _route("/v1/requests", failed, about, checks_models=True)
        about = About("failedRequestsOfModel", "The same of one model.", "FailedRequests", errors)
        yield _route("/v1/models/{model}:failures", failed, about)
        refused = ("400", "404", "405", "408", "409", "413", "415", "429", "503")
        about = About("explainConfig", "What a config would change.", "WhatIf", refused, "WhatIfBody")
        yield Route("/v1/config:explain", POST, self.what_if, packs=True, about=about, scope=Scope.MANAGE)

        about = About("readAgain", "Read the config and the disk again now.", "ReadAgain", ("400", "405", "429", "503"))
        yield Route("/v1/config:reload", POST, self.read_again, about=about, scope=Scope.MANAGE)

    def schemas(self) -> Mapping[str, Tree]:
        return schemas()

    def target(self, names: Mapping[str, str]) -> AdminQuery:
        return AdminQuery(model_in_path(names), {name: unquote(value) for name, value in names.items()})

    def model_of(self, target: AdminQuery) -> str:
        return target.model.name

    async def what_if(self, request: Request, query: AdminQuery) -> Response:
        """Answers on a thread of its own: a long config holds up no other question."""
        _refuse_query(request)
        body = await self._bodies.read(request, bytes, StatusCode.INVALID_ARGUMENT)
        return await _reply(self._forecasts, lambda: self._control.what_if(read_body(body)))

    async def read_again(self, request: Request, query: AdminQuery) -> Response:
        """Takes no body. On the thread of forecasts, because it reads the disk as they do."""
        _refuse_query(request)
        return await _reply(self._forecasts, lambda: self._control.read_again(request.caller))

    async def answer(self, answer: Answer, request: Request, query: AdminQuery) -> Response:
        _refuse_query(request)
        asked = replace(query, paths=self._may_see_paths(request), grant=request.grant)
        return await _reply(self._background, lambda: answer(self._control, asked))


def _refuse_query(request: Request) -> None:
    if request.head.query:
        raise invalid_argument(f"this page takes no query, got {request.head.query:.50}")


async def _reply(background: BackgroundRunner, answer: Callable[[], Any]) -> Response:
    body = await background.run(lambda: orjson.dumps(answer()))
    return Response(body, media_type=JSON.media_type, headers={"cache-control": "no-store"})
