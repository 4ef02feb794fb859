"""A flood of predictions over HTTP: some are answered, the rest refused by their heads, and nothing else suffers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import MagicMock

import orjson
import pytest

from tests.support.servers.rest_fixture import ANSWER, ROW, TIMEOUT, RestFixture, head
from tfs_lite.server.http.router import Api
from tfs_lite.server.http_app import Pages
from tfs_lite.server.tensorflow.rest_routes import RestApi
from tfs_lite.server.v2.http_app import V2HttpApp
from tfs_lite.transport.backlog import ALWAYS_TAKEN, OVERLOADED, Backlog, ExpectedWait

REFUSED = 36
FLOOD = ALWAYS_TAKEN + REFUSED
BODY = orjson.dumps(ROW)
PREDICTION = head(f"Content-Length: {len(BODY)}") + BODY
ALIVE = b"ok\n"
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server(serve: Callable[..., RestFixture]) -> RestFixture:
    """It expects to need a second for each request, and each has 30."""
    return serve(backlog=Backlog(ExpectedWait(1.0)))


@contextmanager
def busy(server: RestFixture) -> Iterator[None]:
    """The loop reads nothing meanwhile, so that what is sent comes at once."""
    reached, leave = threading.Event(), threading.Event()

    def stay() -> None:
        reached.set()
        leave.wait(TIMEOUT)

    server.loop.loop.call_soon_threadsafe(stay)
    assert reached.wait(TIMEOUT)
    try:
        yield
    finally:
        leave.set()


class Client:
    """One connection; ``read`` gives status, head and body of the next answer."""

    def __init__(self, connected: socket.socket) -> None:
        self.send = connected.sendall
        self._file = connected.makefile("rb")

    def read(self) -> tuple[int, dict[bytes, bytes], bytes]:
        first, lines = self._file.readline(), dict[bytes, bytes]()
        while line := self._file.readline().strip():
            name, _, value = line.partition(b": ")
            lines[name] = value
        return int(first[9:12]), lines, self._file.read(int(lines[b"content-length"]))


@pytest.fixture
def clients(server: RestFixture) -> Iterator[list[Client]]:
    """Connections that the server knows of."""
    with ExitStack() as stack:
        found = [Client(stack.enter_context(server.raw(PROBE))) for _ in range(FLOOD)]
        for client in found:
            assert client.read()[2] == ALIVE
        yield found


def test_predictions_that_would_begin_too_late_are_refused(server: RestFixture, clients: list[Client]) -> None:
    with busy(server):
        for client in clients:
            client.send(PREDICTION)
    answers = [client.read() for client in clients]
    assert sorted(status for status, _, _ in answers) == [200] * ALWAYS_TAKEN + [503] * REFUSED
    for status, lines, body in answers:
        assert orjson.loads(body) == (ANSWER if status == 200 else {"error": OVERLOADED})
        assert lines.get(b"retry-after") == (None if status == 200 else b"1")
        assert lines[b"connection"] == b"keep-alive"
    assert server.count("OK", "Predict") == ALWAYS_TAKEN
    assert server.count("UNAVAILABLE", "Predict", version="") == REFUSED


def test_connection_goes_on_after_a_refusal_also_where_the_body_comes_later(
    server: RestFixture, clients: list[Client]
) -> None:
    with busy(server):
        for client in clients:
            client.send(PREDICTION[:-5])
    refused = list[Client]()
    for client in clients:
        client.send(PREDICTION[-5:] + PROBE)
        if client.read()[0] == 503:
            refused.append(client)
        assert client.read()[2] == ALIVE
    assert len(refused) == REFUSED
    for client in refused:
        client.send(PREDICTION)
        assert client.read()[0] == 200


def test_probes_and_pages_are_answered_in_the_flood(server: RestFixture, clients: list[Client]) -> None:
    *flooding, probing, looking = clients
    with busy(server):
        for client in flooding:
            client.send(PREDICTION)
        probing.send(PROBE)
        looking.send(b"GET /v1/models/m HTTP/1.1\r\nHost: x\r\n\r\n")
    assert probing.read()[2] == ALIVE
    assert looking.read()[0] == 200
    assert {client.read()[0] for client in flooding} == {200, 503}


def test_predictions_that_a_client_has_pipelined_are_refused_in_their_order(
    server: RestFixture, clients: list[Client]
) -> None:
    *flooding, last = clients
    with busy(server):
        for client in flooding:
            client.send(PREDICTION)
        last.send(PREDICTION + PROBE + PREDICTION * 50 + PROBE)
    for client in flooding:
        client.read()
    answers = [last.read() for _ in range(53)]
    assert [place for place, (_, _, body) in enumerate(answers) if body == ALIVE] == [1, 52]
    assert {status for status, _, _ in answers} <= {200, 503}


def test_only_predictions_can_be_refused() -> None:
    def refusable(api: type[Api[Any]]) -> set[str]:
        return {route.path.rpartition("}")[2] for route in api.routes(MagicMock()) if route.refused_as}

    assert refusable(RestApi) == {":predict", ":classify", ":regress"}
    assert refusable(V2HttpApp) == {"/infer"}
    assert refusable(Pages) == set()
