"""Connections that misbehave, against a real HTTP server: none of them keeps the probes from being answered."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.server import HttpServer
from tfs_lite.server.runtime.event_loop import LoopThread
from tfs_lite.testing.servers.process import wait_until

Start = Callable[..., int]
HEAD = b"POST /page HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


LARGE = 64 << 20
"""Bytes; more than the sockets of a connection hold."""


async def answer(request: Request) -> Response:
    """``/refuse`` is answered without a look at the body."""
    if request.path == "/large":
        return Response(bytes(LARGE))
    if request.path == "/refuse":
        return Response(b"no", 413)
    return Response(b"fine")


@pytest.fixture(params=["own", "asyncio"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """On the loop that the server uses, which is uvloop's where there is one, and on asyncio's."""
    with contextlib.ExitStack() as stack:
        if request.param == "own":
            loop_thread: Any = LoopThread("tfs-http-test")
            stack.callback(loop_thread.close)
        else:
            loop_thread = request.getfixturevalue("loop_thread")

        def begin(**limits: Any) -> int:
            server = HttpServer(answer, **limits)
            port: int = loop_thread.run(server.start("127.0.0.1", 0))
            stack.callback(lambda: loop_thread.run(server.stop(5)))
            return port

        yield begin


@pytest.fixture
def connect() -> Iterator[Callable[[int, bytes], socket.socket]]:
    with contextlib.ExitStack() as stack:

        def open_one(port: int, sent: bytes = b"") -> socket.socket:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            client.sendall(sent)
            return client

        yield open_one


def read_all(client: socket.socket) -> bytes:
    """Until the server closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: client.recv(65536), b""))
    return b""


def is_closed(client: socket.socket) -> bool:
    """By the server; what is sent to find out makes no request."""
    try:
        client.sendall(b"x")
    except OSError:
        return True
    return False


def fetch(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/page", timeout=20).status_code


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of a thousand connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("sent", [b"", b"GET /page HT"])
def test_thousand_connections_without_a_request_do_not_disturb_another(start: Start, connect: Any, sent: bytes) -> None:
    port = start()
    held = [connect(port, sent) for _ in range(1001)]
    assert [fetch(port) for _ in range(3)] == [200] * 3
    assert len(held) == 1001


@pytest.mark.parametrize("sent", [b"", b"GET /page HT", b"GET /page HTTP/1.1\r\nHost: x\r\n\r\nGET /pa", HEAD])
def test_connection_without_a_whole_request_is_closed(start: Start, connect: Any, sent: bytes) -> None:
    client = connect(start(request_timeout=0.1), sent)
    answer = read_all(client)
    assert answer.count(b"200 OK") == sent.count(b"Host")


def test_bytes_that_trickle_in_do_not_prolong_the_wait(start: Start, connect: Any) -> None:
    client = connect(start(request_timeout=0.3), b"GET /page HTTP/1.1\r\nx: ")
    wait_until(lambda: is_closed(client), "the connection is closed", 20)


def test_connection_that_waited_longest_makes_room(start: Start, connect: Any) -> None:
    port = start(max_connections=4)
    first, *others = [connect(port) for _ in range(4)]
    assert fetch(port) == 200
    assert read_all(first) == b""
    for client in others:
        client.sendall(b"GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in read_all(client)


@pytest.mark.parametrize("pieces", [[HEAD + b"ZZZ\r\n"], [HEAD, b"ZZZ\r\n"], [b"ZZZ\r\n\r\n"]])
def test_broken_request_takes_one_line_of_the_log(
    start: Start, connect: Any, pieces: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(start())
    answer = b""
    for piece in pieces:
        client.sendall(piece)
        if piece is HEAD:
            answer = client.recv(65536)
    answer += read_all(client)
    assert answer.startswith(b"HTTP/1.1 200 OK" if pieces[0] is HEAD else b"HTTP/1.1 400 Bad Request")
    assert pieces[0] is HEAD or answer.endswith(b'\r\n\r\n{"error":"Invalid HTTP request received."}')
    assert [record.getMessage() for record in caplog.records] == ["Invalid HTTP request received."]
    assert caplog.records[0].exc_info is None
    assert caplog.records[0].levelname == "WARNING"


def test_broken_body_of_a_request_for_the_head_only_is_answered(start: Start, connect: Any) -> None:
    client = connect(start(), HEAD.replace(b"POST", b"HEAD", 1) + b"ZZZ\r\n")
    assert read_all(client).startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("number", [1, 2])
def test_client_that_does_not_read_its_answer_is_cut(start: Start, connect: Any, last: bytes, number: int) -> None:
    request = b"GET /large HTTP/1.1\r\nHost: x\r\n%s\r\n"
    client = connect(start(request_timeout=0.2), request % b"" * (number - 1) + request % last)
    wait_until(lambda: is_closed(client), "the connection is cut", 20)


def test_client_that_reads_slowly_gets_all_of_its_answer(start: Start, connect: Any) -> None:
    client = connect(start(request_timeout=0.6), b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    pause, received = threading.Event(), 0
    while received < LARGE:
        piece = client.recv(1 << 20)
        assert piece, f"closed after {received} bytes"
        received += len(piece)
        pause.wait(0.02)


def test_a_client_that_wants_to_close_gets_the_answer_to_a_body_it_is_still_sending(start: Start, connect: Any) -> None:
    port = start()
    head = f"POST /refuse HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {LARGE}\r\n\r\n".encode()
    client = connect(port, head)
    client.sendall(bytes(LARGE))
    answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"no")


def test_a_client_that_never_ends_its_body_is_cut_in_the_end(start: Start, connect: Any) -> None:
    port = start(request_timeout=0.2)
    client = connect(port, b"POST /refuse HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\n12")
    assert read_all(client).startswith(b"HTTP/1.1 413 ")
    wait_until(lambda: is_closed(client), "the connection is gone", 20)
