"""Bodies over a real HTTP server: packed, in pieces, too large, too late, given up; and what is left of them."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import orjson
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.rest_fixture import ANSWER, PREDICT, ROW, TIMEOUT, RestFixture, error, head
from tfs_lite.server.http.connection import Waits
from tfs_lite.server.runtime.event_loop import BackgroundRunner

T = TypeVar("T")
MIB = 1 << 20

Serve = Callable[..., RestFixture]


def read_all(connection: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(65536), b""))
    return b""


def predict_on_wire() -> bytes:
    body = orjson.dumps(ROW)
    return head(f"Content-Length: {len(body)}") + body


def read_answer(connection: socket.socket) -> bytes:
    """One, on a connection that stays open."""
    received = b""
    while not received.endswith(orjson.dumps(ANSWER)):
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
@pytest.mark.parametrize("rows", [1, 20_000])
def test_packed_bodies_are_taken(shared: RestFixture, rows: int, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    body = orjson.dumps({"instances": [[1.0, 2.0, 3.0]] * rows})
    answer = shared.post(pack(body), content_encoding=encoding)
    assert answer.json()["predictions"] == ANSWER["predictions"] * rows
    ((*_, size, _),) = shared.log.offers
    assert size == len(body) + len(answer.content)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "words"),
    [
        (gzip.compress(orjson.dumps(ROW))[:-3], "gzip", 400, "the gzip body ends too early"),
        (orjson.dumps(ROW), "gzip", 400, "not valid gzip"),
        (gzip.compress(bytes(MIB)), "gzip", 413, "larger than 100000 bytes"),
        (b"", "gzip", 400, "The document is empty"),
        (gzip.compress(orjson.dumps(ROW)), "br", 415, "Content-Encoding 'br' is not supported"),
    ],
    ids=["truncated", "json", "bomb", "empty", "brotli"],
)
def test_packed_body_that_is_no_good_is_refused(
    serve: Serve, body: bytes, encoding: str, status: int, words: str
) -> None:
    server = serve(max_body_bytes=100_000)
    answer = server.post(body, content_encoding=encoding)
    assert answer.status_code == status
    assert words in error(answer)
    assert server.is_empty()


def test_packed_body_is_large_to_the_heap_once_it_is_unpacked(
    shared: RestFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, sizes = orjson.dumps({"instances": [[1.0, 2.0, 3.0]] * 20_000}), list[int]()
    monkeypatch.setattr(shared.http.heap, "note", sizes.append)
    assert shared.post(gzip.compress(body), content_encoding="gzip").status_code == 200
    assert sizes == [len(body)]


@pytest.mark.parametrize("chunked", [False, True])
def test_body_past_the_bound_is_refused(serve: Serve, chunked: bool) -> None:
    server = serve(max_body_bytes=100_000)
    content: Any = (bytes(10_000) for _ in range(20)) if chunked else bytes(200_000)
    answer = server.client.post(PREDICT, content=content)
    assert answer.status_code == 413
    assert "larger than 100000 bytes" in error(answer)
    assert server.count("RESOURCE_EXHAUSTED", "Predict", "m", "") == 1
    assert server.is_empty()
    assert server.post(ROW).status_code == 200, "the connection can be used again"


def test_body_that_says_that_it_is_too_large_is_not_waited_for(serve: Serve) -> None:
    server = serve(max_body_bytes=100_000)
    with server.raw(head("Content-Length: 100001", "Expect: 100-continue")) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
    assert server.http.bodies.numbers.most_held_bytes == 0


def test_client_that_waits_for_leave_to_send_gets_it(shared: RestFixture) -> None:
    body = orjson.dumps(ROW)
    with shared.raw(head(f"Content-Length: {len(body)}", "Expect: 100-continue", "Connection: close")) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert read_all(connection).endswith(orjson.dumps(ANSWER))


def test_body_longer_than_it_said_is_another_request(shared: RestFixture) -> None:
    body = orjson.dumps(ROW)
    with shared.raw(head(f"Content-Length: {len(body)}"), body + b"more\r\n\r\n") as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 400" in answer


@pytest.mark.parametrize("lines", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_client_that_goes_in_mid_body_leaves_nothing(server: RestFixture, lines: str) -> None:
    with server.raw(head(lines), b"5\r\nabcde"):
        wait_until(lambda: not server.is_empty(), "the body has begun", TIMEOUT)
    wait_until(lambda: server.count("CANCELLED", "Predict", "m", "") == 1, "it is counted", TIMEOUT)
    assert server.is_empty()


def test_body_that_stops_coming_is_refused(serve: Serve) -> None:
    server = serve(waits=Waits(read=0.05))
    with server.raw(head("Content-Length: 100"), b"abcde") as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert server.count("DEADLINE_EXCEEDED", "Predict", "m", "") == 1
    assert b"did not arrive whole, 5 bytes came: nothing came for 0.05 s" in answer
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert server.http.bodies.numbers.too_slow == 1
    assert server.is_empty()


def test_body_that_finds_no_room_is_refused_and_may_come_again(serve: Serve) -> None:
    server = serve(max_body_bytes=100_000, budget_bytes=100_000)
    with server.raw(head("Content-Length: 90000"), bytes(80_000)):
        wait_until(lambda: server.http.bodies.numbers.held_bytes == 80_000, "the room is taken", TIMEOUT)
        answer = server.post(bytes(30_000))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "of the 100000 bytes" in error(answer)
    wait_until(server.is_empty, "the room is free", TIMEOUT)
    assert server.post(ROW).status_code == 200


def test_deadline_ends_a_prediction_in_the_model(serve: Serve) -> None:
    server = serve(timeout_seconds=0.05)
    server.servable.shut()
    answer = server.post(ROW)
    assert (answer.status_code, error(answer)) == (504, error(answer))
    assert "deadline" in error(answer)
    assert server.count("DEADLINE_EXCEEDED", "Predict") == 1
    assert server.servable.cancelled.acquire(timeout=TIMEOUT)
    assert server.servable.waiting == []
    wait_until(server.is_empty, "its handle is back", TIMEOUT)


class Gated(BackgroundRunner):
    """Begins with its work when it may; says when."""

    def __init__(self, threads: int = 1, max_pending: int = 2) -> None:
        super().__init__("REST", threads, max_pending)
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()

    async def run(self, work: Callable[[], T]) -> T:
        def gated() -> T:
            self.begun.release()
            self.gate.wait(TIMEOUT)
            return work()

        return await super().run(gated)


LARGE = orjson.dumps({"instances": [[1.0, 2.0, 3.0]] * 10_000})


def test_deadline_counts_while_a_body_waits_to_be_parsed(serve: Serve) -> None:
    slow = Gated()
    server = serve(background=slow, timeout_seconds=0.05)
    answer = server.post(LARGE)
    assert answer.status_code == 504
    assert server.is_empty()
    slow.gate.set()


def test_more_large_bodies_than_may_wait_are_refused(serve: Serve) -> None:
    slow = Gated()
    server = serve(background=slow)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.post, LARGE) for _ in range(2)]
        wait_until(lambda: slow._pending == 2, "two bodies wait", TIMEOUT)
        answer = server.post(LARGE)
        assert (answer.status_code, server.post(ROW).status_code) == (429, 200)
        assert "REST requests are pending" in error(answer)
        slow.gate.set()
        assert [answer.result().status_code for answer in waiting] == [200, 200]


def test_large_body_does_not_hold_the_loop(serve: Serve) -> None:
    slow = Gated()
    server, events = serve(background=slow), []
    body = b'{"instances": [' + b"[1.25, 2.5, 3.75]," * (30 * MIB // 18) + b"[1.0, 2.0, 3.0]]}"
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, body)
        answer.add_done_callback(lambda future: events.append("predicted"))
        assert slow.begun.acquire(timeout=TIMEOUT)
        assert httpx.get(f"http://127.0.0.1:{server.port}/livez").status_code == 200
        events.append("alive")
        slow.gate.set()
        assert answer.result().content.count(b"[") == 30 * MIB // 18 + 2
    assert events == ["alive", "predicted"]
    assert server.is_empty()


def test_client_that_goes_cancels_its_prediction(server: RestFixture) -> None:
    servable = server.servable
    servable.shut()
    body = orjson.dumps(ROW)
    with server.raw(head(f"Content-Length: {len(body)}"), body):
        assert servable.arrived.acquire(timeout=TIMEOUT)
        assert len(servable.waiting) == 1
    assert servable.cancelled.acquire(timeout=TIMEOUT)
    assert servable.answered == 0
    wait_until(server.is_empty, "its handle is back", TIMEOUT)
    assert server.count("CANCELLED", "Predict") == 1
    assert not server.log.offers


def test_client_that_goes_while_its_body_waits_is_not_parsed_for(serve: Serve) -> None:
    slow = Gated()
    server = serve(background=slow)
    with server.raw(head(f"Content-Length: {len(LARGE)}"), LARGE):
        assert slow.begun.acquire(timeout=TIMEOUT)
    wait_until(lambda: server.count("CANCELLED", "Predict", "m", "") == 1, "it is counted", TIMEOUT)
    assert server.is_empty()
    slow.gate.set()
    wait_until(lambda: slow._pending == 0, "the thread is free", TIMEOUT)
    assert server.servable.answered == 0


def test_drain_answers_what_is_inside_and_refuses_what_comes_on_new_connections(serve: Serve) -> None:
    server = serve()
    server.servable.shut()
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(server.post, ROW)
        assert server.servable.arrived.acquire(timeout=TIMEOUT)
        drained = server.begin_drain()
        wait_until(lambda: server.server.drained, "it drains", TIMEOUT)
        refused = httpx.post(f"http://127.0.0.1:{server.port}{PREDICT}", json=ROW)
        assert (refused.status_code, error(refused)) == (503, "the server is being stopped")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert httpx.get(f"http://127.0.0.1:{server.port}/livez").status_code == 200
        assert not drained.done()
        server.servable.open()
        assert inside.result().json() == ANSWER
        drained.result(TIMEOUT)


def test_drain_answers_one_more_prediction_on_each_connection_that_was_there(serve: Serve) -> None:
    server = serve()
    with server.raw(predict_on_wire()) as connection:
        assert read_answer(connection).endswith(orjson.dumps(ANSWER))
        drained = server.begin_drain()
        wait_until(lambda: server.server.closes_connections, "it drains", TIMEOUT)
        connection.sendall(predict_on_wire())
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(orjson.dumps(ANSWER))
    drained.result(TIMEOUT)
