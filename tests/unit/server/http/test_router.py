"""The way of a request through the router: which API and route, errors as the API prints them, headers, compression."""

from __future__ import annotations

import gc
import gzip
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeAlias

import pytest

from tests.support.servers.http_handlers import response_to
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument, not_found
from tfs_lite.server.http.message import Headers, HttpHead, IncomingBody, Request, Response, StreamResponse
from tfs_lite.server.http.replies import HttpError, error_reply
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import (
    CACHED_TARGETS,
    CORS_HEADERS,
    EVERY_METHOD,
    HEAD_TOO,
    MAX_CACHED_LENGTH,
    POST,
    Api,
    Route,
    Router,
)
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.transport.table import Scope

LARGE = bytes(5000)
Ask: TypeAlias = Callable[..., Awaitable[Response | StreamResponse]]


class Shop(Api[str]):
    """An API below ``/shop`` with a few things."""

    names: Mapping[str, str] = {"thing": "[a-z%0-9]+", "other": "[a-z%0-9]+"}

    def __init__(self) -> None:
        self.read: list[str] = []

    def routes(self) -> Iterator[Route[str]]:
        yield Route("/shop", HEAD_TOO, self.show, scope=Scope.PREDICT)
        yield Route("/shop/{thing}", HEAD_TOO, self.show, packs=True, scope=Scope.PREDICT)
        yield Route("/shop/{thing}", POST, self.fail, scope=Scope.PREDICT)
        yield Route("/shop/{other}", ("PATCH",), self.show, scope=Scope.PREDICT)
        yield Route("/shop/{thing}/buy", POST, self.fail_at_once, scope=Scope.PREDICT)
        yield Route("/shop/{thing}/large", HEAD_TOO, self.show, scope=Scope.PREDICT)
        yield Route("/shop/{thing}/stream", HEAD_TOO, self.stream, packs=True, scope=Scope.PREDICT)
        yield Route("/shop/{thing}/stock", HEAD_TOO, self.show, scope=Scope.READ)
        yield Route("/shop/{thing}/price", HEAD_TOO, self.show_at_once, packs=True, scope=Scope.PREDICT)
        yield Route("/shop/{thing}/price", POST, self.show)

    def owns(self, path: str) -> bool:
        return path.startswith("/shop")

    def target(self, names: Mapping[str, str]) -> str:
        thing = names.get("thing", "")
        self.read.append(thing)
        if thing == "bad":
            raise invalid_argument("a bad thing")
        return thing

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        return not_found(f"{method} {path} {allowed}")

    def error(self, request: Request, error: ServingError) -> Response:
        return error_reply(error)

    async def show(self, request: Request, thing: str) -> Response:
        return Response(LARGE if "large" in request.head.path else thing.encode())

    def show_at_once(self, request: Request, thing: str) -> Response:
        return Response(LARGE)

    async def fail(self, request: Request, thing: str) -> Response:
        return self.fail_at_once(request, thing)

    def fail_at_once(self, request: Request, thing: str) -> Response:
        if thing == "crash":
            raise RuntimeError("the secret")
        raise HttpError(StatusCode.ABORTED, "sold out", 410, {"x-why": "popular"})

    async def stream(self, request: Request, thing: str) -> StreamResponse:
        async def chunks() -> Any:
            yield LARGE

        return StreamResponse(chunks())


class Rest(Shop):
    """Everything else: the query is part of the path, and there is nothing for other origins."""

    names: Mapping[str, str] = {"thing": ".*"}
    query_in_path = True
    cross_origin = False
    always_preflight = True

    def routes(self) -> Iterator[Route[str]]:
        yield Route("/rest{thing}", EVERY_METHOD, self.show)

    def owns(self, path: str) -> bool:
        return True


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def make(shop: Shop) -> Iterator[Callable[..., Ask]]:
    background = BackgroundRunner("test", 1, 1)

    def make(enable_cors: bool = False) -> Ask:
        router = Router([shop, Rest()], HttpResources(HttpLimits(), background).bodies, enable_cors)

        async def ask(method: str, target: str, **headers: str) -> Response | StreamResponse:
            fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
            head = HttpHead(method, target, Headers(fields))
            return await response_to(router, Request(head, IncomingBody(), 0.0))

        return ask

    yield make
    background.close()


@pytest.mark.parametrize(
    ("method", "target", "status", "body"),
    [
        ("GET", "/shop", 200, b""),
        ("HEAD", "/shop/hat?colour=red", 200, b"hat"),
        ("POST", "/shop/hat", 410, b'{"error":"sold out"}'),
        ("PATCH", "/shop/hat", 404, b"{\"error\":\"PATCH /shop/hat ('GET', 'HEAD', 'POST')\"}"),
        ("GET", "/shop/hat/buy", 404, b'{"error":"GET /shop/hat/buy (\'POST\',)"}'),
        ("POST", "/shop/hat/buy", 410, b'{"error":"sold out"}'),
        ("GET", "/shop/HAT", 404, b'{"error":"GET /shop/HAT None"}'),
        ("GET", "/shop/bad", 400, b'{"error":"a bad thing"}'),
        ("ODD", "/rest/x?y=1", 200, b"/x?y=1"),
        ("GET", "/rest/x?", 200, b"/x"),
        ("GET", "/other", 404, b'{"error":"GET /other None"}'),
    ],
)
async def test_first_route_that_fits_answers_and_else_the_api_refuses(
    make: Callable[..., Ask], method: str, target: str, status: int, body: bytes
) -> None:
    answer = await make()(method, target)
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (status, body)


async def test_unexpected_exception_is_logged_and_not_shown(
    make: Callable[..., Ask], caplog: pytest.LogCaptureFixture
) -> None:
    answer = await make()("POST", "/shop/crash/buy")
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (500, b'{"error":"internal error"}')
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "POST /shop/crash/buy failed"
    ]
    assert "the secret" in caplog.text


async def test_targets_that_were_found_are_not_looked_for_again(make: Callable[..., Ask], shop: Shop) -> None:
    ask = make()
    for _ in range(3):
        await ask("GET", "/shop/hat")
        await ask("GET", "/shop/bad")
    assert shop.read == ["hat", "bad", "bad", "bad"], "a refusal is made anew each time"
    long = "x" * MAX_CACHED_LENGTH
    for _ in range(2):
        await ask("GET", f"/shop/{long}")
    assert shop.read.count(long) == 2


async def test_targets_that_are_remembered_are_few(make: Callable[..., Ask], shop: Shop) -> None:
    ask = make()
    for number in range(CACHED_TARGETS + 1):
        await ask("GET", f"/shop/{number}")
    await ask("GET", "/shop/0")
    assert shop.read.count("0") == 2


@pytest.mark.parametrize("target", ["/shop/hat", "/shop/HAT", "/shop/hat/stream"])
async def test_answers_of_an_api_have_cors_headers_where_they_are_wanted(make: Callable[..., Ask], target: str) -> None:
    assert not CORS_HEADERS.keys() & (await make()("GET", target)).headers.keys()
    assert CORS_HEADERS.items() <= (await make(enable_cors=True)("GET", target)).headers.items()
    assert not CORS_HEADERS.keys() & (await make(enable_cors=True)("GET", "/rest")).headers.keys()


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("target", ["/shop/hat/stock", "/shop/hat/price"])
async def test_paths_that_read_or_manage_never_have_cors_headers(
    make: Callable[..., Ask], method: str, target: str
) -> None:
    assert not CORS_HEADERS.keys() & (await make(enable_cors=True)(method, target)).headers.keys()


@pytest.mark.parametrize(
    ("enable_cors", "target", "status"),
    [(True, "/shop/hat", 200), (True, "/shop/none/of/it", 200), (False, "/shop/hat", 404), (False, "/rest", 200)],
)
async def test_options_are_answered_where_cors_is_enabled_or_the_api_always_does(
    make: Callable[..., Ask], enable_cors: bool, target: str, status: int
) -> None:
    ask = make(enable_cors)
    assert (await ask("OPTIONS", target, origin="https://a.example")).status == status
    assert (await ask("OPTIONS", target)).status == (400 if status == 200 else 404)


async def asked_headers(ask: Ask, target: str, names: str) -> str | None:
    answer = await ask("OPTIONS", target, origin="https://a.example", access_control_request_headers=names)
    return answer.headers.get("access-control-allow-headers")


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("authorization,content-type,x-stainless-os", "content-type, authorization, x-stainless-os"),
        ("Inference-Header-Content-Length, traceparent", "content-type, inference-header-content-length, traceparent"),
        ("x-forwarded-for,forwarded,x-real-ip,x-request-id", "content-type, x-request-id"),
        ("a b,x\r\nset-cookie: a,,\u00e4,ok", "content-type, ok"),
        ("via", "Content-Type"),
        ("", "Content-Type"),
    ],
)
async def test_preflight_allows_every_header_that_a_page_asks_for_but_those_of_proxies(
    make: Callable[..., Ask], asked: str, allowed: str
) -> None:
    assert await asked_headers(make(enable_cors=True), "/shop/hat", asked) == allowed


async def test_preflight_allows_a_hundred_headers(make: Callable[..., Ask]) -> None:
    asked = ",".join(f"x-{number}" for number in range(1000))
    allowed = await asked_headers(make(enable_cors=True), "/shop/hat", asked)
    assert allowed is not None
    assert allowed.split(", ") == ["content-type", *asked.split(",")[:100]]


@pytest.mark.parametrize("target", ["/shop/hat/stock", "/rest"])
async def test_preflight_allows_nothing_where_pages_of_other_origins_have_no_part(
    make: Callable[..., Ask], target: str
) -> None:
    assert await asked_headers(make(enable_cors=True), target, "authorization") is None


async def test_page_without_an_origin_of_its_own_is_one_of_every_origin(make: Callable[..., Ask]) -> None:
    assert (await make(enable_cors=True)("OPTIONS", "/shop/hat", origin="null")).status == 200


@pytest.mark.parametrize(
    ("target", "packed"),
    [("/shop/large", True), ("/shop/hat/price", True), ("/shop/hat", False), ("/shop/hat/large", False)],
)
async def test_large_answers_of_routes_that_pack_are_packed(
    make: Callable[..., Ask], target: str, packed: bool
) -> None:
    answer = await make()("GET", target, accept_encoding="gzip")
    assert isinstance(answer, Response)
    assert answer.headers.get("content-encoding") == ("gzip" if packed else None)
    if packed:
        assert gzip.decompress(answer.body) == LARGE


async def test_streams_are_not_packed(make: Callable[..., Ask]) -> None:
    answer = await make()("GET", "/shop/hat/stream", accept_encoding="gzip")
    assert isinstance(answer, StreamResponse)
    assert "content-encoding" not in answer.headers


@pytest.mark.filterwarnings("error")
async def test_answer_that_nobody_has_waited_for_leaves_nothing_behind(shop: Shop) -> None:
    bodies: Any = None
    request = Request(HttpHead("GET", "/shop/hat", Headers()), IncomingBody(), 0.0)
    answer: Any = Router([shop], bodies)(request)
    answer.close()
    del answer
    gc.collect()
