"""A real HTTP server with small handlers: answers and streams, how it stops, and connections that misbehave, none of
which keeps the probes from being answered."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import resource
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest
import trustme

from tests.support.servers.process import wait_until
from tfs_lite.server.http.connection import Http1Connection, Waits
from tfs_lite.server.http.message import CutShort, Handler, Request, Response, StreamResponse
from tfs_lite.server.http.server import HttpServer
from tfs_lite.server.runtime.event_loop import LoopThread
from tfs_lite.transport.watch import bytes_on_their_way

HEAD = b"POST /page HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


LARGE = 64 << 20
"""Bytes; more than the sockets of a connection hold."""


async def count_to_three() -> AsyncIterator[bytes]:
    for text in (b"one", b"", b"two", b"three"):
        yield text


async def flood() -> AsyncIterator[bytes]:
    while True:
        yield bytes(LARGE // 10)


async def break_off() -> AsyncIterator[bytes]:
    yield b"one"
    raise CutShort


async def answer(request: Request) -> Response | StreamResponse:
    """``/refuse`` is answered without a look at the body, ``/echo`` with it, and ``/target`` with the target."""
    match request.head.path:
        case "/large":
            return Response(bytes(LARGE))
        case "/refuse":
            return Response(b"no", 413)
        case "/stream":
            return StreamResponse(count_to_three(), media_type="text/plain")
        case "/flood":
            return StreamResponse(flood())
        case "/cut":
            return StreamResponse(break_off())
        case "/fail":
            raise RuntimeError("a mistake of the handler")
        case "/split":
            return Response(b"", headers={"x": "a\r\nb: c"})
        case "/echo":
            pieces = []
            while piece := await request.body.next():
                pieces.append(piece)
            return Response(b"".join(pieces))
    return Response(request.head.target.encode() if request.head.path.startswith("/target") else b"fine")


GET = b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n"
CLOSE = b"Connection: close\r\n"


def all_waits(seconds: float) -> Waits:
    return Waits(idle=seconds, read=seconds, write=seconds, handshake=seconds)


class Start:
    """Starts a server when it is called, with the arguments of HttpServer, and returns its port."""

    def __init__(self, loop_thread: Any) -> None:
        self.server: HttpServer
        self._loop_thread = loop_thread

    def __call__(self, handler: Handler = answer, **limits: Any) -> int:
        self.server = HttpServer(handler, **limits)
        port: int = self._loop_thread.run(self.server.start("127.0.0.1", 0))
        return port

    def drain(self) -> None:
        self._loop_thread.run(self.server.drain(20))

    def stop(self) -> None:
        self._loop_thread.run(self.server.stop(5))


@pytest.fixture(params=["own", "asyncio"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """On the loop that the server uses, which is uvloop's where there is one, and on asyncio's."""
    with contextlib.ExitStack() as stack:
        if request.param == "own":
            loop_thread: Any = LoopThread("tfs-http-test")
            stack.callback(loop_thread.close)
        else:
            loop_thread = request.getfixturevalue("loop_thread")
        starter = Start(loop_thread)
        yield starter
        starter.stop()


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
    client = connect(start(waits=all_waits(0.1)), sent)
    answer = read_all(client)
    assert answer.count(b"200 OK") == sent.count(b"Host")


def test_bytes_that_trickle_in_do_not_prolong_the_wait(start: Start, connect: Any) -> None:
    client = connect(start(waits=all_waits(0.3)), b"GET /page HTTP/1.1\r\nx: ")
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
    host, port = client.getsockname()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"HTTP connection from {host}:{port} ended, malformed: ")
    assert caplog.records[0].exc_info is None
    assert caplog.records[0].levelname == "WARNING"


def test_broken_body_of_a_request_for_the_head_only_is_answered_without_one(start: Start, connect: Any) -> None:
    received = read_all(connect(start(), HEAD.replace(b"POST", b"HEAD", 1) + b"ZZZ\r\n"))
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("number", [1, 2])
def test_client_that_does_not_read_its_answer_is_cut(start: Start, connect: Any, last: bytes, number: int) -> None:
    request = b"GET /large HTTP/1.1\r\nHost: x\r\n%s\r\n"
    client = connect(start(waits=all_waits(0.2)), request % b"" * (number - 1) + request % last)
    wait_until(lambda: is_closed(client), "the connection is cut", 20)


# Virtual time: the waits of one connection are checked at a moment of the test's choice.


class OneConnection:
    """The only connection of a server with the usual waits."""

    def __init__(self, start: Start, connect: Any, sent: bytes, port: int = 0) -> None:
        self.client: socket.socket = connect(port or start(), sent)
        self._start = start
        wait_until(lambda: len(start.server.connections) == 1, "it is accepted", 20)
        (self.connection,) = start.server.connections
        self._run(start.server._watch.stop)  # nobody else checks

    @property
    def cuts(self) -> dict[str, int]:
        return {kind: count for kind, count in self._start.server.cuts.items() if count}

    def check(self, at: float) -> dict[str, int]:
        """What was cut after a check at that time."""

        self._run(lambda: self.connection.check_timeouts(at))
        return self.cuts

    def _run(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        self._start._loop_thread.run(run())

    def wait(self, holds: Callable[[Http1Connection], Any], what: str) -> None:
        wait_until(lambda: holds(self.connection), what, 20)


def test_idle_connection_stays_for_as_long_as_its_answers_say(
    start: Start, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port = start()
    one = OneConnection(start, connect, GET % (b"/page", b""), port)
    answer = one.client.recv(65536)
    assert b"\r\nconnection: keep-alive\r\nkeep-alive: timeout=75\r\n" in answer
    one.wait(lambda connection: connection.used_at, "it is idle")
    assert one.check(one.connection.used_at + 74.9) == {}
    one.client.sendall(GET % (b"/page", CLOSE))
    assert b"keep-alive" not in read_all(one.client).lower()
    wait_until(lambda: not len(start.server.connections), "it has gone", 20)
    one = OneConnection(start, connect, b"", port)
    assert one.check(one.connection._reader.since + 75.1) == {"idle": 1}
    assert read_all(one.client) == b""
    assert caplog.records == []


def test_head_has_its_time_from_its_first_byte(start: Start, connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = OneConnection(start, connect, GET % (b"/page", b""))
    assert one.client.recv(65536)
    one.wait(lambda connection: connection.used_at, "it is idle")
    one.client.sendall(b"GET /pa")
    one.wait(lambda connection: connection._reader.in_message, "a head has begun")
    begun = one.connection._reader.since
    assert begun > one.connection.used_at
    one.client.sendall(b"ge HTTP/1.1\r\nx: ")
    assert one.check(begun + 59.9) == {}
    assert one.check(begun + 60.1) == {"slow_head": 1}
    assert read_all(one.client) == b""
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.endswith(" ended, slow_head: the head of a request was not whole after 60 s")


@pytest.mark.parametrize("framing", [b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_body_may_take_any_time_while_bytes_of_it_come(
    start: Start, connect: Any, framing: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    one = OneConnection(start, connect, b"POST /echo HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n")
    chunked = b"chunked" in framing
    for byte in b"abcdefgh":
        one.wait(lambda connection: connection._wanted_since, "more is wanted")
        before = one.connection._wanted_since
        assert one.check(before + 59.9) == {}
        one.client.sendall(b"1\r\n%c\r\n" % byte if chunked else b"%c" % byte)
        one.wait(lambda connection, before=before: connection._wanted_since > before, "it was taken")
    assert one.check(one.connection._wanted_since + 60.1) == {"slow_body": 1}
    (text,) = [record.getMessage() for record in caplog.records if "slow_body" in record.getMessage()]
    assert text.endswith(" ended, slow_body: nothing of the body for /echo came for 60 s")


@pytest.mark.parametrize("known", [False, True])
def test_rest_of_a_body_that_nobody_wants_may_take_any_time_too(start: Start, connect: Any, known: bool) -> None:
    head = b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    one = OneConnection(start, connect, head)
    assert one.client.recv(65536).startswith(b"HTTP/1.1 413 ")
    if known:
        one.client.sendall(b"123456789" + head)
        assert one.client.recv(65536).startswith(b"HTTP/1.1 413 ")
    for byte in b"12345678":
        before = one.connection._reader.since
        assert one.check(before + 59.9) == {}
        one.client.sendall(b"%c" % byte)
        one.wait(lambda connection, before=before: connection._reader.since > before, "it has come")
    assert one.check(one.connection._reader.since + 60.1) == {"slow_body": 1}


def test_reader_is_silent_only_when_its_system_takes_nothing(
    start: Start, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A socket holds megabytes: a client that reads kilobytes takes nothing out of the server's own buffer."""
    one = OneConnection(start, connect, GET % (b"/large", b""))
    one.wait(lambda connection: connection._writer.paused, "the client does not read")
    transport = one.connection._transport
    seen = [bytes_on_their_way(transport)]
    wait_until(lambda: seen.append(bytes_on_their_way(transport)) or seen[-1] == seen[-2], "it is still", 20, 0.05)
    now = time.monotonic()
    for round in range(4):
        assert one.check(now + 59 * round) == {}
        before, buffered = bytes_on_their_way(transport), transport.get_write_buffer_size()
        while bytes_on_their_way(transport) == before:
            one.client.recv(4096)
        assert bytes_on_their_way(transport) < before
        assert round or transport.get_write_buffer_size() == buffered
    assert one.check(now + 59 * 4) == {}
    assert one.check(now + 59 * 4 + 60.1) == {"slow_reader": 1}
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.endswith(" ended, slow_reader: the client has read nothing of its answer for 60 s")


def test_reader_that_is_slower_than_a_stream_is_not_silent(start: Start, connect: Any) -> None:
    """What it reads is replaced at once, so that what waits for it does not become less."""
    one = OneConnection(start, connect, GET % (b"/flood", b""))
    one.wait(lambda connection: connection._writer.paused, "the client does not read")
    transport = one.connection._transport
    seen = [bytes_on_their_way(transport)]
    wait_until(lambda: seen.append(bytes_on_their_way(transport)) or seen[-1] == seen[-2], "it is still", 20, 0.05)
    now = time.monotonic()
    assert one.check(now) == {}
    for round in range(1, 5):
        written = one.connection._writer._written
        while one.connection._writer._written == written:
            one.client.recv(1 << 16)
        assert one.check(now + 59 * round) == {}
    assert one.check(now + 59 * 4 + 60.1) == {"slow_reader": 1}


def test_connection_that_makes_room_is_told_of(start: Start, connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    port = start(max_connections=1)
    first = connect(port)
    wait_until(lambda: len(start.server.connections) == 1, "it is accepted", 20)
    assert fetch(port) == 200
    assert read_all(first) == b""
    assert start.server.cuts["too_many"] == 1
    assert caplog.records[0].getMessage().endswith(" ended, too_many")


def test_clients_that_send_bodies_byte_by_byte_keep_nobody_out(start: Start, connect: Any) -> None:
    port = start(max_connections=4)
    sent = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\na"
    held = [connect(port, sent) for _ in range(4)]
    wait_until(lambda: sum(one.busy for one in start.server.connections) == 4, "they are all inside", 20)
    assert [fetch(port) for _ in range(3)] == [200] * 3
    assert start.server.cuts["too_many"] == 1
    assert read_all(held[0]) == b""


def test_connection_that_had_a_request_is_spared_before_those_that_never_had_one(start: Start, connect: Any) -> None:
    port = start(max_connections=3)
    used = connect(port, GET % (b"/page", b""))
    assert used.recv(65536)
    silent = [connect(port) for _ in range(2)]
    wait_until(lambda: len(start.server.connections) == 3, "they are accepted", 20)
    assert fetch(port) == 200
    assert read_all(silent[0]) == b""
    used.sendall(GET % (b"/page", CLOSE))
    assert b"200 OK" in read_all(used)


def test_client_that_reads_slowly_gets_all_of_its_answer(start: Start, connect: Any) -> None:
    client = connect(start(waits=all_waits(1.0)), b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
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
    port = start(waits=all_waits(0.2))
    client = connect(port, b"POST /refuse HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\n12")
    assert read_all(client).startswith(b"HTTP/1.1 413 ")
    wait_until(lambda: is_closed(client), "the connection is gone", 20)


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def test_stream_is_sent_in_chunks_and_the_connection_stays(start: Start, connect: Any) -> None:
    received = read_all(connect(start(), GET % (b"/stream", b"") + GET % (b"/page", CLOSE)))
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert b"transfer-encoding: chunked" in received
    assert b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\nHTTP/1.1" in received


def test_stream_to_a_client_of_the_old_version_ends_with_the_connection(start: Start, connect: Any) -> None:
    received = read_all(connect(start(), b"GET /stream HTTP/1.0\r\n\r\n"))
    assert b"chunked" not in received
    assert body_of(received) == b"onetwothree"


def test_stream_that_is_given_up_while_its_client_does_not_read_may_say_why(start: Start, connect: Any) -> None:
    inside: list[asyncio.Task[Any] | None] = []
    begun = threading.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield bytes(LARGE)
        except asyncio.CancelledError:
            yield b"given up"

    async def stream(request: Request) -> StreamResponse:
        inside.append(asyncio.current_task())
        begun.set()
        return StreamResponse(chunks())

    client = connect(start(handler=stream), GET % (b"/", CLOSE))
    assert begun.wait(20)
    (connection,) = start.server.connections
    wait_until(lambda: connection._writer.paused, "the client does not read", 20)
    (task,) = inside
    assert task is not None
    task.get_loop().call_soon_threadsafe(task.cancel)
    assert read_all(client).endswith(b"8\r\ngiven up\r\n0\r\n\r\n")


def test_stream_that_breaks_off_has_no_end(start: Start, connect: Any) -> None:
    assert body_of(read_all(connect(start(), GET % (b"/cut", b"")))) in (b"", b"3\r\none\r\n")


@pytest.mark.parametrize("path", [b"/page", b"/stream", b"/fail"])
def test_request_for_the_head_gets_no_body(start: Start, connect: Any, path: bytes) -> None:
    received = read_all(connect(start(), (GET % (path, CLOSE)).replace(b"GET", b"HEAD")))
    assert received.startswith(b"HTTP/1.1 ")
    assert body_of(received) == b""


@pytest.mark.parametrize("path", [b"/fail", b"/split"])
def test_mistake_of_a_handler_is_logged_and_answered_without_details(
    start: Start, connect: Any, path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    received = read_all(connect(start(), GET % (path, b"")))
    assert received.startswith(b"HTTP/1.1 500 ")
    assert body_of(received) == b"Internal Server Error"
    assert [record.getMessage() for record in caplog.records] == [f"GET {path.decode()} failed"]


@pytest.mark.parametrize(
    ("target", "origin"),
    [
        (b"/target?a=%20b", b"/target?a=%20b"),
        (b"http://somewhere:80/target/a?b", b"/target/a?b"),
        (b"HTTPS://somewhere/target", b"/target"),
    ],
)
def test_target_with_scheme_and_host_means_its_path(start: Start, connect: Any, target: bytes, origin: bytes) -> None:
    assert body_of(read_all(connect(start(), GET % (target, CLOSE)))) == origin


@pytest.mark.parametrize("target", [b"http://somewhere", b"http://somewhere?page", b"*"])
def test_target_without_a_path_is_the_root_or_the_server(start: Start, connect: Any, target: bytes) -> None:
    sent = (GET % (target, CLOSE)).replace(b"GET", b"OPTIONS")
    assert read_all(connect(start(), sent)).startswith(b"HTTP/1.1 200 OK")


def test_client_that_asks_for_leave_gets_it_when_its_body_is_wanted(start: Start, connect: Any) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n" + CLOSE + b"\r\n"
    port = start()
    client = connect(port, head % b"/echo")
    assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(b"abc")
    assert body_of(read_all(client)) == b"abc"
    assert read_all(connect(port, head % b"/refuse")).startswith(b"HTTP/1.1 413 ")


def test_pipelined_body_behind_short_requests_arrives_whole(start: Start, connect: Any) -> None:
    body = random.Random(5).randbytes(150_000)
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body) + CLOSE + b"\r\n"
    port = start()
    for number in range(1, 8):
        client, received = connect(port, (GET % (b"/page", b"")) * number + head + body[:9_000]), b""
        while received.count(b"fine") < number:
            received += client.recv(65536)
        client.sendall(body[9_000:])
        received += read_all(client)
        assert received.count(b"HTTP/1.1 200 OK") == number + 1
        assert received.endswith(body)


def test_body_behind_a_wish_for_another_protocol_keeps_its_order(start: Start, connect: Any) -> None:
    body = random.Random(6).randbytes(20_000)
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
    wish = b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    sent = GET % (b"/page", b"") + head + wish + body + head + CLOSE + b"\r\n" + body
    received = read_all(connect(start(), sent))
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.count(body) == 2


@pytest.mark.parametrize("wish", [b"", b"Connection: upgrade\r\nUpgrade: a\r\n"])
def test_version_is_that_of_the_client_whatever_it_would_like(start: Start, connect: Any, wish: bytes) -> None:
    port = start()
    old = read_all(connect(port, b"GET /stream HTTP/1.0\r\n%b\r\n" % wish))
    assert body_of(old) == b"onetwothree"
    assert b"chunked" not in old
    new = read_all(connect(port, b"GET /page HTTP/2.0\r\nHost: x\r\n%b\r\n" % wish))
    assert new.startswith(b"HTTP/1.1 400 ")


def test_body_that_its_handler_leaves_is_skipped(start: Start, connect: Any) -> None:
    head = b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n"
    received = read_all(connect(start(), head + bytes(600_000) + GET % (b"/page", CLOSE)))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.endswith(b"fine")


def test_body_is_read_no_faster_than_its_handler_takes_it(start: Start, connect: Any) -> None:
    gate, inside = threading.Event(), threading.Event()

    async def wait_first(request: Request) -> Response:
        inside.set()
        await asyncio.to_thread(gate.wait, 20)
        size = 0
        while piece := await request.body.next():
            size += len(piece)
        return Response(str(size).encode())

    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % LARGE + CLOSE + b"\r\n"
    client = connect(start(handler=wait_first), head)
    assert inside.wait(20)
    sender = threading.Thread(target=client.sendall, args=(bytes(LARGE),))
    sender.start()
    (connection,) = start.server.connections
    wait_until(lambda: connection.reading_paused, "reading pauses", 20)
    gate.set()
    assert body_of(read_all(client)) == str(LARGE).encode()
    sender.join()


@pytest.mark.parametrize("path", [b"/page", b"/target"])
def test_client_that_closes_its_side_gets_an_answer_that_is_made_at_once(
    start: Start, connect: Any, path: bytes
) -> None:
    """As those of probes are, which ``nc -N`` and some health checkers ask in this way."""
    port = start()
    for _ in range(20):
        client = connect(port, GET % (path, b""))
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


def test_client_that_goes_cancels_its_request(start: Start, connect: Any) -> None:
    inside, cancelled = threading.Event(), threading.Event()

    async def wait_forever(request: Request) -> Response:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return Response()

    client = connect(start(handler=wait_forever), GET % (b"/", b""))
    assert inside.wait(20)
    client.close()
    assert cancelled.wait(20)


def test_handler_of_a_client_that_goes_before_it_begins_is_closed(start: Start, connect: Any) -> None:
    made: list[Coroutine[Any, Any, Response]] = []

    async def never() -> Response:
        raise AssertionError

    def handler(request: Request) -> Coroutine[Any, Any, Response]:
        for connection in start.server.connections:
            connection.evict()
        made.append(never())
        return made[-1]

    connect(start(handler)).sendall(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
    wait_until(lambda: made and inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED, "it is closed")


@pytest.mark.parametrize("streams", [False, True])
def test_answer_to_a_client_that_has_just_gone_is_dropped_in_silence(
    start: Start, connect: Any, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose_the_client(request: Request) -> Response | StreamResponse:
        (connection,) = start.server.connections
        connection.abort()
        return StreamResponse(count_to_three()) if streams else Response(b"late")

    assert read_all(connect(start(handler=lose_the_client), GET % (b"/", b""))) == b""
    assert caplog.records == []


def test_requests_on_open_connections_are_answered_during_a_drain_and_close_them(start: Start, connect: Any) -> None:
    port = start()
    idle, busy = connect(port, GET % (b"/page", b"")), connect(port, GET % (b"/page", b""))
    for client in (idle, busy):
        assert b"200 OK" in client.recv(65536)
    drained = threading.Thread(target=start.drain)
    drained.start()
    wait_until(lambda: start.server.closes_connections, "the drain has begun", 20)
    busy.sendall(GET % (b"/page", b""))
    received = read_all(busy)
    assert b"200 OK" in received
    assert b"connection: close" in received
    drained.join(20)
    assert not drained.is_alive()
    late = read_all(connect(port, GET % (b"/page", b"")))
    assert b"connection: close" in late
    start.stop()
    assert read_all(idle) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(port)


def test_only_connections_from_before_a_drain_are_in_time(start: Start, connect: Any) -> None:
    async def tell(request: Request) -> Response:
        return Response(str(request.after_drain).encode())

    port = start(handler=tell)
    early = connect(port, GET % (b"/", b""))
    assert early.recv(65536).endswith(b"False")
    start.server.drained = True
    early.sendall(GET % (b"/", CLOSE))
    assert read_all(early).endswith(b"False")
    assert read_all(connect(port, GET % (b"/", CLOSE))).endswith(b"True")


def test_server_with_a_certificate_speaks_tls(start: Start) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    port = start(tls=lambda: context)
    with httpx.Client(verify=trusted, timeout=20) as client:
        for path, length in (("/page", 4), ("/large", LARGE), ("/stream", 11)):
            answer = client.get(f"https://localhost:{port}{path}")
            assert (answer.status_code, len(answer.content)) == (200, length)
        assert client.post(f"https://localhost:{port}/echo", content=bytes(LARGE // 8)).content == bytes(LARGE // 8)


def test_client_that_does_not_shake_hands_is_given_up(start: Start) -> None:
    port = start(tls=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), waits=all_waits(0.3))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
        assert silent.recv(1) == b""
