"""The table of routes, and the one way of a request to its answer, the same for every API.

    target -> the API that owns the path -> its first route that fits -> may the caller? -> handler -> compressed,
                                                                  headers for browsers -> an error, as the API prints it

An :class:`Api` is one protocol: the paths that it owns, its routes, and how it prints errors. A handler gives an
:data:`Answer` or raises ServingError; other exceptions are logged, and the client is told ``internal error``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote

from tfs_lite.core.servable import MAX_VERSION, ModelRef, parse_version
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.codes import http_status
from tfs_lite.server.access.access import Access, AccessDenied
from tfs_lite.server.access.rules import ALL_MODELS, PROXY_HEADERS
from tfs_lite.server.http.bodies import SMALLEST_ANSWER, Bodies
from tfs_lite.server.http.calls import HttpCall
from tfs_lite.server.http.compression import ENCODINGS, GZIP
from tfs_lite.server.http.message import Answer, Request, Response, StreamResponse
from tfs_lite.server.http.replies import HttpError, error_reply, failure_of, preflight_status
from tfs_lite.transport.backlog import OVERLOADED, Backlog
from tfs_lite.transport.table import Scope

P = TypeVar("P")
R = TypeVar("R", bound=Response | StreamResponse)
Tree: TypeAlias = dict[str, Any]
"""A JSON schema."""
RouteHandler: TypeAlias = Callable[[Request, P], Response | HttpCall | Awaitable[Response | StreamResponse]]

GET, HEAD_TOO, POST = ("GET",), ("GET", "HEAD"), ("POST",)
EVERY_METHOD = ()
CACHED_TARGETS, MAX_CACHED_LENGTH = 1024, 256
"""Targets whose routes are cached, and the most characters of such a target."""
CORS_HEADERS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "POST, GET",
    "access-control-allow-headers": "Content-Type",
    "access-control-expose-headers": "Content-Length, Inference-Header-Content-Length, Retry-After, Server-Timing, "
    "X-Model-Version, X-Request-Id, X-Should-Retry",
}
"""The headers on the answers of every API when cross-origin requests are allowed: TensorFlow Serving's, and the headers
of answers that pages may read."""
MAX_ASKED_HEADERS = 100
PREFLIGHT_SECONDS = 600
"""The seconds for which a browser may remember what a preflight has allowed."""
_SHARED = (Scope.OPEN, Scope.PREDICT)
_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_NAME = re.compile(r"\\{(\w+)\\}")


@dataclass(frozen=True, slots=True)
class About:
    """The description of a route: the operation's name and what it does; the schemas of its body and of its answer,
    with their media types; and the statuses of its failures."""

    name: str
    summary: str
    answer: str
    errors: tuple[str, ...] = ()
    body: str = ""
    media_types: tuple[str, ...] = ("application/json",)


@dataclass(frozen=True, slots=True)
class Route(Generic[P]):
    """``path`` has names in braces, as in ``/v2/models/{model}``. ``handler`` gets the request and what the names mean;
    it gives the response, the reply of a prediction that is queued, or a coroutine, which runs in a task. ``packs``
    tells whether answers are compressed for clients that accept it. ``refused_as``: the method under which a request is
    counted that is refused because too much waits (:class:`Overload`); empty: it is never refused so. ``scope`` is what
    its callers must be allowed to do. Rows may share a path, each with other methods. ``checks_models``: the handler
    itself asks ``Request.grant`` about each model that it tells of; else the router does about the one in the path, and
    without one the route concerns all models."""

    path: str
    methods: tuple[str, ...]
    handler: RouteHandler[P]
    packs: bool = False
    about: About | None = None
    refused_as: str = ""
    scope: Scope = Scope.MANAGE
    """A row that says nothing is closed to others, not open."""
    checks_models: bool = False


@dataclass(frozen=True, slots=True)
class Overload:
    """The rule by which predictions are refused by their heads: those that have ``seconds`` (None: any time) and would
    wait too long in the ``backlog``. ``refused`` is told the method and the model of each."""

    backlog: Backlog
    seconds: float | None
    refused: Callable[[str, str], None]


class Api(Generic[P]):
    """One protocol over HTTP. ``P`` is what its handlers get of the names in a path."""

    names: ClassVar[Mapping[str, str]] = {}
    """The regular expression of each name in braces."""
    query_in_path = False
    """Whether the query is part of the path."""
    cross_origin = True
    """Whether its answers have CORS headers, when cross-origin requests are allowed; then it answers OPTIONS. Routes
    that read or manage never have them: pages of other origins may predict."""
    always_preflight = False
    """Whether it answers OPTIONS in any case."""
    encodings: Collection[str] = ENCODINGS
    """The encodings of its answers."""

    def routes(self) -> Iterable[Route[P]]:
        """The routes in the order in which they are tried; the first path that fits counts, in all its rows."""
        raise NotImplementedError

    def schemas(self) -> Mapping[str, Tree]:
        """The JSON schemas that the routes' descriptions name."""
        return {}

    def owns(self, path: str) -> bool:
        """Whether the path, still percent-encoded and without its query, is one of this protocol, known or not."""
        raise NotImplementedError

    def target(self, names: Mapping[str, str]) -> P:
        """The target that the names in a path, still percent-encoded, make. Raises ServingError."""
        raise NotImplementedError

    def model_of(self, target: P) -> str:
        """The model that a request concerns; the empty text stands for all."""
        return ALL_MODELS

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        """The reason why no route answers. ``allowed`` are the methods of the path; None means that there is no such
        path."""
        raise NotImplementedError

    def error(self, request: Request, error: ServingError) -> Response:
        """The answer to a request that has failed."""
        raise NotImplementedError

    def pattern(self, path: str) -> str:
        """The regular expression of the path of a route."""
        return _NAME.sub(lambda found: f"(?P<{found[1]}>{self.names[found[1]]})", re.escape(path))


class OwnPages(Api[P]):
    """Exact paths that no protocol prescribes: they are not for pages of other origins, and errors look like those of
    TensorFlow Serving's REST API. A subclass has ``routes`` and ``target``."""

    cross_origin = False
    encodings = GZIP

    def owns(self, path: str) -> bool:
        return any(pattern.fullmatch(path) for pattern in self._patterns)

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [re.compile(self.pattern(route.path)) for route in self.routes()]

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        if allowed is None:
            return HttpError(StatusCode.NOT_FOUND, f"no such page: {path:.200}", 404)
        shown = ", ".join(name for name in allowed if name != "HEAD")
        message = f"{path:.200} answers {shown} only, not {method}"
        return HttpError(StatusCode.UNIMPLEMENTED, message, 405, {"allow": ", ".join(allowed)})

    def error(self, request: Request, error: ServingError) -> Response:
        return error_reply(error)


def model_in_path(names: Mapping[str, str]) -> ModelRef:
    """The model that the names in a path mean, still percent-encoded; its name is empty where there is none.
    INVALID_ARGUMENT for a version that is too large."""
    digits, label = names.get("version"), names.get("label")
    version = None if digits is None else parse_version(digits)
    if digits is not None and version is None:
        raise invalid_argument(f"Failed to convert version: {digits.lstrip('0'):.40} is more than {MAX_VERSION}")
    return ModelRef(unquote(names.get("model", "")), version, None if label is None else unquote(label))


class Found(NamedTuple):
    """The route that answers a request, and what it gets of the names in the path. ``checked``: the caller has to be.
    ``shared``: pages of other origins may read the answer, where they may at all."""

    api: Api[Any]
    route: Route[Any]
    target: Any
    checked: bool = False
    shared: bool = False


class Router:
    """Answers every request. The first API that owns a path answers it, so that the last should own all. On the event
    loop. Raises nothing but CancelledError."""

    def __init__(
        self,
        apis: Sequence[Api[Any]],
        bodies: Bodies,
        enable_cors: bool = False,
        overload: Overload | None = None,
        access: Access | None = None,
    ) -> None:
        """``overload`` None: nothing is refused by its head. ``access`` None: everybody may do everything."""
        self._apis = apis
        self._bodies = bodies
        self._cors = CORS_HEADERS if enable_cors else {}
        self._overload = overload
        self._access = access
        self._routes = {api: [(re.compile(api.pattern(route.path)), route) for route in api.routes()] for api in apis}
        self._find_cached = lru_cache(CACHED_TARGETS)(self.find)

    def __call__(self, request: Request) -> Answer:
        head = request.head
        find = self._find_cached if len(head.target) <= MAX_CACHED_LENGTH else self.find
        try:
            found = find(head.method, head.target)
            if found.checked:
                self._check(request, found)
            answer = found.route.handler(request, found.target)
        except Exception as error:
            return self._fail(request, error)
        if isinstance(answer, HttpCall):
            answer.finish = partial(self._finish, request, found)
            return answer
        if not isinstance(answer, Response):
            return _Answering(answer, partial(self._answer, request, found, answer))
        if found.route.packs and len(answer.body) > SMALLEST_ANSWER:
            return self._packed(request, found, answer)
        return self._open(found.shared, answer)

    def _check(self, request: Request, found: Found) -> None:
        """Raises ServingError unless the caller may have the answer."""
        access, route = self._access, found.route
        assert access is not None
        head = request.head
        caller = access.http(request.peer, request.headers.find, f"{head.method} {head.path}")
        try:
            request.grant = access.check(route.scope, caller)
            if not route.checks_models:
                access.check_models(route.scope, caller, request.grant, [found.api.model_of(found.target)])
        except AccessDenied as error:
            raise _with_headers(error) from None

    def refusal(self, request: Request) -> Response | None:
        """The answer to a request that is refused by its head; None for one that is taken. A client that waits for 100
        before it sends the body is no part of a flood."""
        overload, head = self._overload, request.head
        if overload is None or overload.seconds is None or not overload.backlog.is_too_long(overload.seconds):
            return None
        if head.expects_continue or len(head.target) > MAX_CACHED_LENGTH:
            return None
        try:
            found = self._find_cached(head.method, head.target)
        except ServingError as error:
            return self._fail(request, error)
        if not found.route.refused_as:
            return None
        overload.refused(found.route.refused_as, found.target.name)
        return self._fail(request, ServingError(StatusCode.UNAVAILABLE, OVERLOADED))

    async def _answer(
        self, request: Request, found: Found, answer: Awaitable[Response | StreamResponse]
    ) -> Response | StreamResponse:
        try:
            response = await answer
        except Exception as error:
            return self._fail(request, error)
        if isinstance(response, Response):
            return await self._packed(request, found, response)
        return self._open(found.shared, response)

    async def _packed(self, request: Request, found: Found, response: Response) -> Response:
        if found.route.packs:
            await self._bodies.pack(response, request.headers.get("accept-encoding"), found.api.encodings)
        return self._open(found.shared, response)

    def _finish(
        self, request: Request, found: Found, done: Callable[[Answer], None], result: Response | Exception
    ) -> None:
        if isinstance(result, Exception):
            done(self._fail(request, result))
        elif found.route.packs and len(result.body) > SMALLEST_ANSWER:
            done(self._packed(request, found, result))
        else:
            done(self._open(True, result) if found.shared else result)

    def find(self, method: str, target: str) -> Found:
        """Finds the route by trying one after the other. Raises ServingError if none fits, or a name in the path is
        malformed."""
        path, _, query = target.partition("?")
        api = self._owner(path)
        if method == "OPTIONS" and (api.always_preflight or (self._cors and api.cross_origin)):
            shared = self._is_shared(api, path)
            return Found(api, _PREFLIGHT, shared, shared=shared)
        if api.query_in_path and query:
            path = target
        allowed: list[str] = []
        fits = ""
        for pattern, route in self._routes[api]:
            match = pattern.fullmatch(path)
            if match is None or (fits and route.path != fits):
                continue
            if route.methods and method not in route.methods:
                fits = route.path
                allowed += route.methods
                continue
            return Found(
                api,
                route,
                api.target(match.groupdict()),
                self._access is not None and self._access.checks(route.scope),
                self._is_shared(api, path),
            )
        raise api.refusal(method, path, tuple(allowed) or None)

    def _is_shared(self, api: Api[Any], path: str) -> bool:
        """Whether pages of other origins may read answers to this path, be they errors."""
        if not (self._cors and api.cross_origin):
            return False
        return all(route.scope in _SHARED for pattern, route in self._routes[api] if pattern.fullmatch(path))

    def _owner(self, path: str) -> Api[Any]:
        return next(api for api in self._apis if api.owns(path))

    def _fail(self, request: Request, error: Exception) -> Response:
        head = request.head
        api = self._owner(head.path)
        response = api.error(request, failure_of(error, f"{head.method} {head.path}"))
        return self._open(self._is_shared(api, head.path), response)

    def _open(self, shared: bool, response: R) -> R:
        """The response, with the headers for other origins where it is for them."""
        if shared:
            response.headers = {**self._cors, **response.headers}
        return response


class _Answering(Awaitable[Response | StreamResponse]):
    """An answer that a coroutine makes. ``close`` ends a coroutine that never began."""

    def __init__(self, answer: Any, run: Callable[[], Awaitable[Response | StreamResponse]]) -> None:
        self.close = answer.close
        self._run = run

    def __await__(self) -> Generator[Any, Any, Response | StreamResponse]:
        return self._run().__await__()


def _with_headers(error: AccessDenied) -> HttpError:
    headers = {"www-authenticate": "Bearer"} if error.code is StatusCode.UNAUTHENTICATED else {}
    if error.retry_after:
        headers["retry-after"] = str(error.retry_after)
    return HttpError(error.code, str(error), http_status(error.code), headers)


def _answer_preflight(request: Request, shared: bool) -> Response:
    """A browser asks which headers a page may send. All that it names are allowed but those that only proxies may set:
    clients for browsers have many of their own (``x-stainless-*``), and what no handler knows changes nothing."""
    origin = request.headers.get("origin")
    if not shared:
        return Response(status=preflight_status(origin))
    headers = {"access-control-max-age": str(PREFLIGHT_SECONDS)}
    asked = _allowed_headers(request.headers.get("access-control-request-headers"))
    if asked:
        headers["access-control-allow-headers"] = ", ".join(dict.fromkeys(("content-type", *asked)))
    return Response(status=200 if origin else 400, headers=headers)


def _allowed_headers(asked: str) -> list[str]:
    names = [name.strip().lower() for name in asked.split(",", MAX_ASKED_HEADERS)[:MAX_ASKED_HEADERS]]
    return [name for name in names if _TOKEN.fullmatch(name) and name not in PROXY_HEADERS]


_PREFLIGHT = Route("", ("OPTIONS",), _answer_preflight, scope=Scope.OPEN)
