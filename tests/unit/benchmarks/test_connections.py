"""The hand-written connections of the load generators against real servers of others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import connections
import grpc
import pytest
from connections import GrpcConnection, HttpConnection, ProtocolError, grpc_status, literal
from load import Tally, closed_loop, cycle, open_loop, steady

PATH = "/test.Echo/Call"
LARGE = 3 << 20
"""Bytes; far more than the first windows of a connection and a stream."""


class Echo(grpc.GenericRpcHandler):
    """Answers with the request; refuses what begins with "no", and holds what begins with "hold" until its end."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._call)

    def _call(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if request.startswith(b"no"):
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now: \u00e4 full queue")
        if request.startswith(b"hold"):
            ended = threading.Event()
            if context.add_callback(ended.set):
                ended.wait(30)
        return request


@pytest.fixture(scope="module")
def grpc_port() -> Iterator[int]:
    options = [("grpc.max_receive_message_length", LARGE * 2), ("grpc.max_send_message_length", LARGE * 2)]
    server = grpc.server(ThreadPoolExecutor(4), handlers=(Echo(),), options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


class Upper(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503 if body == b"no" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.upper())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Upper) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def every_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SAMPLE", 1)


def run(made: list[Any], streams: int, messages: list[bytes], answers: list[bytes]) -> Tally:
    try:
        return closed_loop(made, streams, 0.2, cycle(len(messages)), lambda index, body: body == answers[index])
    finally:
        for connection in made:
            connection.sock.close()


def test_every_grpc_answer_belongs_to_its_request(grpc_port: int) -> None:
    messages = [b"message %d" % number for number in range(7)]
    tally = run([GrpcConnection(grpc_port, PATH, messages) for _ in range(2)], 4, messages, messages)
    assert tally.checked == len(tally.served) >= 8
    assert tally.failures == tally.wrong == 0


def test_bodies_larger_than_every_window_arrive_whole(grpc_port: int) -> None:
    messages = [bytes([65 + number]) * LARGE for number in range(3)]
    made = [GrpcConnection(grpc_port, PATH, messages)]
    tally = open_loop(made, steady(100, 0.1), cycle(3), lambda index, body: body == messages[index])
    made[0].sock.close()
    assert (len(tally.served), tally.failures) == (10, 0)
    assert tally.checked == 10


def test_refusals_are_counted_by_their_grpc_status(grpc_port: int) -> None:
    messages = [b"yes", b"no"]
    tally = run([GrpcConnection(grpc_port, PATH, messages)], 2, messages, messages)
    assert set(tally.codes) == {grpc.StatusCode.UNAVAILABLE.value[0]}
    assert tally.failures == tally.codes.total() > 0
    assert len(tally.served) > 0


def test_a_deadline_is_sent_with_every_call(grpc_port: int) -> None:
    messages = [b"hold"]
    tally = run([GrpcConnection(grpc_port, PATH, messages, "20m")], 2, messages, messages)
    assert tally.codes[grpc.StatusCode.DEADLINE_EXCEEDED.value[0]] > 0
    assert not tally.served


def test_http_answers_and_refusals_are_told_apart(http_port: int) -> None:
    messages = [b"yes", b"no", b"why" * 100_000]
    made = [HttpConnection(http_port, "/", messages) for _ in range(3)]
    tally = run(made, 1, messages, [message.upper() for message in messages])
    assert set(tally.codes) == {503}
    assert tally.wrong == 0
    assert tally.checked >= 2


def test_a_server_that_goes_away_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = HttpConnection(listener.getsockname()[1], "/", [b"x"])
        listener.accept()[0].close()
        connection.sock.setblocking(True)
        with connection.sock, pytest.raises(ConnectionError):
            connection.receive()


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (literal("grpc-status", "0"), 0),
        (literal("grpc-message", "slow") + literal("grpc-status", "14"), 14),
        (b"\x20\x88" + literal("grpc-status", "8"), 8),
        (b"\x40\x0bgrpc-status\x014", 4),
    ],
    ids=["alone", "after a message", "after a table size and an index", "to be indexed"],
)
def test_the_status_is_found_in_trailers(block: bytes, status: int) -> None:
    assert grpc_status(block) == status


@pytest.mark.parametrize("block", [b"", b"\xbe", literal("grpc-message", "x")], ids=["empty", "table", "no status"])
def test_trailers_without_a_readable_status_are_an_error(block: bytes) -> None:
    with pytest.raises(ProtocolError):
        grpc_status(block)
