"""The table of routes, and the one way of a request to its answer, the same for every API.

    target -> the API that owns the path -> its first route that fits -> handler -> compressed, headers for browsers
                                                                  -> an error, as the API prints it

An :class:`Api` is one protocol: the paths that it owns, its routes, and how it prints errors. A handler raises
ServingError; other exceptions are logged, and the client is told ``internal error``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.bodies import SMALLEST_ANSWER, Bodies
from tfs_lite.server.http.calls import HttpCall
from tfs_lite.server.http.compression import ENCODINGS
from tfs_lite.server.http.message import Answer, Request, Response, Stream
from tfs_lite.server.http.replies import failure_of, preflight_status
from tfs_lite.transport.backlog import OVERLOADED, Backlog
from tfs_lite.transport.table import Scope

A = TypeVar("A")
P = TypeVar("P")
R = TypeVar("R", bound=Response | Stream)
RouteHandler: TypeAlias = Callable[[Request, P], Awaitable[Response | Stream]]
Shortcut: TypeAlias = Callable[[Request, P], HttpCall | None]

GET, HEAD_TOO, POST = ("GET",), ("GET", "HEAD"), ("POST",)
EVERY_METHOD = ()
CACHED_TARGETS, MAX_CACHED_LENGTH = 1024, 256
"""Targets whose routes are cached, and the most characters of such a target."""
CORS_HEADERS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "POST, GET",
    "access-control-allow-headers": "Content-Type",
}
"""TensorFlow Serving's, on the answers of every API when cross-origin requests are allowed."""
_NAME = re.compile(r"\\{(\w+)\\}")


@dataclass(frozen=True, slots=True)
class About:
    """What the API's description says of a route: the operation's name and what it does; the schemas of its body and of
    its answer, with their media types; and the statuses of its failures."""

    name: str
    summary: str
    answer: str
    errors: tuple[str, ...] = ()
    body: str = ""
    media_types: tuple[str, ...] = ("application/json",)


@dataclass(frozen=True, slots=True)
class Route(Generic[A, P]):
    """``path`` has names in braces, as in ``/v2/models/{model}``. ``handler`` gives that of an API. ``packs`` tells
    whether its answers are compressed for clients that accept it. ``shortcut`` gives what is tried first: it replies to
    requests that need no task, and returns None, with nothing begun, for others. ``refused_as``: the method under which
    a request is counted that is refused because too much waits (:class:`Overload`); empty: it is never refused so.
    ``scope`` is what its callers must be allowed to do. Rows may share a path, each with other methods.
    ``checks_models``: the handler itself asks ``Request.allows`` about each model that it tells of; else the router
    does about the one in the path, and without one the route concerns all models."""

    path: str
    methods: tuple[str, ...]
    handler: Callable[[A], RouteHandler[P]]
    packs: bool = False
    about: About | None = None
    shortcut: Callable[[A], Shortcut[P]] | None = None
    refused_as: str = ""
    scope: Scope = Scope.MANAGE
    """A row that says nothing is closed to others, not open."""
    checks_models: bool = False


@dataclass(frozen=True, slots=True)
class Overload:
    """When predictions are refused by their heads: those that have ``seconds`` (None: any time) and would wait too long
    in the ``backlog``. ``refused`` is told the method and the model of each."""

    backlog: Backlog
    seconds: float | None
    refused: Callable[[str, str], None]


class Api(Generic[P]):
    """One protocol over HTTP. ``P`` is what its handlers get of the names in a path."""

    routes: Sequence[Route[Any, Any]] = ()
    """In the order in which they are tried."""
    names: ClassVar[Mapping[str, str]] = {}
    """The regular expression of each name in braces."""
    query_in_path = False
    """Whether the query is part of the path."""
    cross_origin = True
    """Whether its answers have CORS headers, when cross-origin requests are allowed; then it answers OPTIONS."""
    always_preflight = False
    """Whether it answers OPTIONS in any case."""
    encodings: Collection[str] = ENCODINGS
    """Of its answers."""

    def owns(self, path: str) -> bool:
        """Whether the path, still percent-encoded and without its query, is one of this protocol, known or not."""
        raise NotImplementedError

    def target(self, names: Mapping[str, str]) -> P:
        """Of the names in a path, still percent-encoded. Raises ServingError."""
        raise NotImplementedError

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        """Why no route answers. ``allowed`` are the methods of the path; None means that there is no such path."""
        raise NotImplementedError

    def error(self, request: Request, error: ServingError) -> Response:
        """The answer to a request that has failed."""
        raise NotImplementedError

    def pattern(self, path: str) -> str:
        """The regular expression of the path of a route."""
        return _NAME.sub(lambda found: f"(?P<{found[1]}>{self.names[found[1]]})", re.escape(path))


class Found(NamedTuple):
    """What answers a request, and what it gets of the names in the path."""

    api: Api[Any]
    handler: RouteHandler[Any]
    target: Any
    packs: bool = False
    shortcut: Shortcut[Any] | None = None
    refused_as: str = ""


class Router:
    """Answers every request. The first API that owns a path answers it, so that the last should own all. On the event
    loop. Raises nothing but CancelledError."""

    def __init__(
        self, apis: Sequence[Api[Any]], bodies: Bodies, enable_cors: bool = False, overload: Overload | None = None
    ) -> None:
        """``overload`` None: nothing is refused by its head."""
        self._apis = apis
        self._bodies = bodies
        self._cors = CORS_HEADERS if enable_cors else {}
        self._overload = overload
        self._routes = {api: [(re.compile(api.pattern(route.path)), route) for route in api.routes] for api in apis}
        self._find_cached = lru_cache(CACHED_TARGETS)(self.find)

    def __call__(self, request: Request) -> Answer:
        head = request.head
        find = self._find_cached if len(head.target) <= MAX_CACHED_LENGTH else self.find
        try:
            found = find(head.method, head.target)
            reply = found.shortcut(request, found.target) if found.shortcut else None
        except Exception as error:
            return self._fail(request, error)
        if reply is None:
            return self._answer(request, found)
        reply.finish = partial(self._finish, request, found)
        return reply

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
        if not found.refused_as:
            return None
        overload.refused(found.refused_as, found.target.name)
        return self._fail(request, ServingError(StatusCode.UNAVAILABLE, OVERLOADED))

    async def _answer(self, request: Request, found: Found) -> Response | Stream:
        try:
            response = await found.handler(request, found.target)
        except Exception as error:
            return self._fail(request, error)
        if isinstance(response, Response):
            return await self._packed(request, found, response)
        return self._open(found.api, response)

    async def _packed(self, request: Request, found: Found, response: Response) -> Response:
        if found.packs:
            await self._bodies.pack(response, request.headers.get("accept-encoding"), found.api.encodings)
        return self._open(found.api, response)

    def _finish(
        self, request: Request, found: Found, done: Callable[[Answer], None], result: Response | Exception
    ) -> None:
        if isinstance(result, Exception):
            done(self._fail(request, result))
        elif found.packs and len(result.body) > SMALLEST_ANSWER:
            done(self._packed(request, found, result))
        else:
            done(self._open(found.api, result) if self._cors else result)

    def find(self, method: str, target: str) -> Found:
        """By trying one route after the other. Raises ServingError if none fits, or a name in the path is malformed."""
        path, _, query = target.partition("?")
        api = self._owner(path)
        if method == "OPTIONS" and (api.always_preflight or (self._cors and api.cross_origin)):
            return Found(api, _answer_preflight, None)
        if api.query_in_path and query:
            path = target
        for pattern, route in self._routes[api]:
            match = pattern.fullmatch(path)
            if match is not None:
                if route.methods and method not in route.methods:
                    raise api.refusal(method, path, route.methods)
                shortcut = route.shortcut(api) if route.shortcut else None
                target = api.target(match.groupdict())
                return Found(api, route.handler(api), target, route.packs, shortcut, route.refused_as)
        raise api.refusal(method, path, None)

    def _owner(self, path: str) -> Api[Any]:
        return next(api for api in self._apis if api.owns(path))

    def _fail(self, request: Request, error: Exception) -> Response:
        head = request.head
        api = self._owner(head.path)
        response = api.error(request, failure_of(error, f"{head.method} {head.path}"))
        return self._open(api, response)

    def _open(self, api: Api[Any], response: R) -> R:
        """The response, with the headers for other origins where it is for them."""
        if self._cors and api.cross_origin:
            response.headers.update(self._cors)
        return response


async def _answer_preflight(request: Request, target: None) -> Response:
    return Response(status=preflight_status(request.headers.get("origin")))
