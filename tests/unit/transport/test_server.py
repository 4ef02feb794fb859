"""Connections come and go: bounds, time limits, other protocols, TLS, and the way a server stops."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.transport_fixture import (
    COUNT,
    ECHO,
    FLOW,
    LOOPS,
    PATIENCE,
    WAIT,
    RawClient,
    Service,
    TransportFixture,
)
from tests.support.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.http2.framing import STREAM_MASK
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.server import TransportServer
from tfs_lite.transport.watch import bytes_on_their_way

pytestmark = pytest.mark.parametrize("loop", sorted(LOOPS))
ECHOED = h2.message(b"x")


def is_goaway(frame: h2.Frame) -> bool:
    return frame.kind == h2.GOAWAY


def is_ping(frame: h2.Frame) -> bool:
    return frame.kind == h2.PING and not frame.ack


def opened(server: TransportFixture) -> RawClient:
    """A connection that the server knows of."""
    raw = server.dial()
    raw.read_until(lambda frame: frame.kind == h2.SETTINGS and frame.ack)
    return raw


def waits(server: TransportFixture, raw: RawClient | None = None) -> RawClient:
    """A connection whose first call is in its handler, which waits."""
    raw = raw or opened(server)
    raw.request(1, WAIT, ECHOED)
    handlers_run(server)
    return raw


def handlers_run(server: TransportFixture, count: int = 1) -> None:
    wait_until(lambda: server.service.happened["started"] == count, "the handlers run")


def closed_as(server: TransportFixture, kind: str, count: int = 1) -> None:
    wait_until(lambda: server.numbers.closed[kind] == count, f"{count} closed as {kind}, not {server.numbers.closed}")


# Stopping.


def test_call_inside_is_answered_before_the_server_stops(loop: str) -> None:
    with TransportFixture(loop) as server, grpc.insecure_channel(server.target) as channel:
        future = channel.unary_unary(WAIT).future(b"x", timeout=PATIENCE)
        handlers_run(server)
        stopped = server.spawn(server.transport.stop(PATIENCE))
        wait_until(lambda: server.transport.common.draining, "the server drains")
        assert not stopped.done()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", server.port))
        server.service.open()
        assert future.result() == b"x"
        stopped.result(PATIENCE)
        assert server.numbers.closed == {"drained": 1}


def test_calls_that_are_not_done_after_the_grace_are_cancelled(loop: str) -> None:
    with TransportFixture(loop) as server, grpc.insecure_channel(server.target) as channel:
        future = channel.unary_unary(WAIT).future(b"x", timeout=PATIENCE)
        answers = channel.unary_stream(COUNT)(b"1 wait", timeout=PATIENCE)
        assert next(answers) == b"0"
        handlers_run(server, 2)
        server.run(server.transport.stop(0.05))
        assert future.code() is grpc.StatusCode.UNAVAILABLE
        assert future.details() == "the server is shutting down; try another one"
        assert answers.code() is grpc.StatusCode.UNAVAILABLE
        assert (server.service.happened["cancelled"], server.service.happened["closed"]) == (1, 1)


def test_second_stop_may_shorten_the_grace(loop: str) -> None:
    with TransportFixture(loop) as server:
        raw = waits(server)
        first = server.spawn(server.transport.stop(3600))
        raw.read_until(is_goaway)
        server.run(server.transport.stop(0))
        first.result(PATIENCE)
        assert raw.status(1)[0] == 14


def test_calls_on_their_way_are_served_until_the_echo(loop: str) -> None:
    with TransportFixture(loop) as server:
        raw = waits(server)
        stopped = server.spawn(server.transport.stop(PATIENCE))
        assert raw.read_until(is_goaway).last == STREAM_MASK
        echo = raw.read_until(is_ping)
        raw.request(3, ECHO, ECHOED)
        assert raw.status(3) == (0, "")
        raw.send(h2.ping(echo.payload, ack=True))
        assert raw.read_until(is_goaway).last == 3
        raw.request(5, ECHO, ECHOED)
        server.service.open()
        assert raw.status(1) == (0, "")
        assert [frame for frame in raw.rest() if frame.stream == 5] == []
        raw.close()
        stopped.result(PATIENCE)


def test_client_without_an_echo_does_not_hold_up_the_stop(loop: str) -> None:
    with TransportFixture(loop) as server:
        opened(server)
        server.dial(preface=False)
        wait_until(lambda: server.numbers.connections == 2, "both are connected")
        begun = time.monotonic()
        server.run(server.transport.stop(PATIENCE))
        assert time.monotonic() - begun < PATIENCE / 2


def test_handler_that_ignores_its_cancelling_is_waited_for(loop: str) -> None:
    with TransportFixture(loop) as server:
        server.service.stubborn = True
        raw = waits(server)
        stopped = server.spawn(server.transport.stop(0))
        assert raw.status(1)[0] == 14
        assert not stopped.done()
        server.service.open()
        stopped.result(PATIENCE)
        assert server.service.happened["released"] == 1


# Bounds.


def test_longest_idle_connection_makes_room_for_a_new_one(loop: str) -> None:
    with TransportFixture(loop, Limits(max_connections=3)) as server:
        busy, older, newer = opened(server), opened(server), opened(server)
        waits(server, busy)
        known = time.monotonic()
        wait_until(lambda: time.monotonic() > known + 0.01, "loops count milliseconds", interval=0.002)
        newer.request(1, ECHO, ECHOED)
        newer.status(1)
        last = opened(server)
        assert older.read_until(is_goaway).value == ErrorCode.NO_ERROR
        closed_as(server, "too_many")
        for raw in (newer, last):
            raw.request(3, ECHO, ECHOED)
            assert raw.status(3) == (0, "")


def test_connection_is_refused_when_all_others_are_busy(loop: str) -> None:
    with TransportFixture(loop, Limits(max_connections=1)) as server:
        busy = waits(server)
        assert server.dial(preface=False).rest() == []
        closed_as(server, "too_many")
        server.service.open()
        assert busy.status(1) == (0, "")


# Time limits.


@pytest.mark.parametrize("sent", [b"", b"PRI", h2.PREFACE, h2.PREFACE + h2.settings() + b"\0\0\0"])
def test_connection_that_does_not_begin_is_closed(loop: str, sent: bytes) -> None:
    with TransportFixture(loop, Limits(handshake_timeout=0.1)) as server:
        raw = server.dial(preface=False)
        raw.send(sent)
        raw.rest()
        raw.close()
        closed_as(server, "handshake")


def test_silent_client_is_asked_and_closed_if_it_says_nothing(loop: str) -> None:
    with TransportFixture(loop, Limits(keepalive_time=0.1, keepalive_timeout=2.0)) as server:
        silent, alive = opened(server), opened(server)
        for _ in range(8):
            alive.send(h2.ping(alive.read_until(is_ping).payload, ack=True))
        silent.read_until(is_ping)
        silent.rest()
        closed_as(server, "keepalive")
        alive.request(1, ECHO, ECHOED)
        assert alive.status(1) == (0, "")


@pytest.mark.parametrize(
    ("limits", "kind"), [({"max_connection_idle": 0.2}, "idle"), ({"max_connection_age": 0.2}, "age")]
)
def test_connection_without_calls_is_sent_away_after_a_while(loop: str, limits: dict[str, Any], kind: str) -> None:
    with TransportFixture(loop, Limits(**limits)) as server:
        raw = opened(server)
        raw.send(h2.ping(raw.read_until(is_ping).payload, ack=True))
        assert [frame.last for frame in raw.rest() if is_goaway(frame)][-1] == 0
        raw.close()
        closed_as(server, kind)


def test_call_that_outlasts_the_grace_of_an_old_connection_is_cut(loop: str) -> None:
    limits = Limits(max_connection_age=0.2, max_connection_age_grace=0.3)
    with TransportFixture(loop, limits) as server, grpc.insecure_channel(server.target) as channel:
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(WAIT)(b"x", timeout=PATIENCE)
        wait_until(lambda: server.service.happened["cancelled"], "the handler is cancelled")
        closed_as(server, "age")


@pytest.mark.parametrize(
    "beginning",
    [h2.data(3, h2.message(b"x", size=9)), h2.data(3, bytes(1000))[:500]],
    ids=["behind a frame", "inside a frame"],
)
def test_request_that_stalls_is_answered_and_does_not_end_the_connection(loop: str, beginning: bytes) -> None:
    with TransportFixture(loop, Limits(handshake_timeout=0.5, request_timeout=1.0)) as server:
        raw = waits(server)
        raw.request(3, ECHO, end=False)
        raw.send(beginning)
        assert raw.status(3)[0] == 4
        server.service.open()
        assert raw.status(1)[0] == 0


@pytest.mark.parametrize("windows", ["shut", "open"])
def test_client_that_reads_nothing_is_cut(loop: str, windows: str) -> None:
    with TransportFixture(loop, Limits(write_timeout=0.3)) as server:
        raw = server.dial({h2.INITIAL_WINDOW: 0 if windows == "shut" else 2**31 - 1})
        raw.send(h2.window_update(0, 2**30))
        raw.request(1, FLOW, h2.message(b"100000"))
        closed_as(server, "slow_reader")


def test_client_that_reads_slowly_is_not_cut(loop: str) -> None:
    """A socket holds megabytes, so that kilobytes that the client reads take nothing out of the server's own buffer."""
    with TransportFixture(loop) as server:
        raw = server.dial({h2.INITIAL_WINDOW: 2**31 - 1})
        raw.send(h2.window_update(0, 2**30))
        raw.request(1, FLOW, h2.message(b"100000"))
        wait_until(lambda: len(server.transport._connections) == 1, "it is accepted", PATIENCE)
        (protocol,) = server.transport._connections
        transport = protocol._transport
        assert transport is not None
        wait_until(transport.get_write_buffer_size, "the client does not read", PATIENCE)
        seen = [bytes_on_their_way(transport)]
        wait_until(lambda: seen.append(bytes_on_their_way(transport)) or seen[-1] == seen[-2], "it is still", 20, 0.05)

        async def check(at: float) -> None:
            server.transport._watch.stop()  # nobody else checks
            protocol.check_timeouts(at)

        now = time.monotonic()
        for round in range(4):
            server.run(check(now + 59 * round))
            before = bytes_on_their_way(transport)
            while bytes_on_their_way(transport) == before:
                raw.socket.recv(4096)
        server.run(check(now + 59 * 4))
        assert not transport.is_closing()
        server.run(check(now + 59 * 4 + 60.1))
        closed_as(server, "slow_reader")


# Other protocols.


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.1\r\nhost: here\r\n\r\n", b"POST /v1/models/m:predict HTTP/1.1\r\n", b"PUT "]
)
def test_client_of_http1_is_told_so_in_its_words(loop: str, request_: bytes) -> None:
    with TransportFixture(loop) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            for byte in request_[:3]:
                client.sendall(bytes([byte]))
            client.sendall(request_[3:])
            with client.makefile("rb") as answer:
                text = answer.read()
        assert text.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert text.endswith(b"\r\n\r\nThis port speaks gRPC over HTTP/2, not HTTP/1.\n")
        closed_as(server, "no_http2")


def test_bytes_that_are_nothing_end_with_goaway(loop: str) -> None:
    with TransportFixture(loop) as server:
        raw = server.dial(preface=False)
        raw.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3)
        assert raw.read_until(is_goaway).value == ErrorCode.PROTOCOL_ERROR
        closed_as(server, "no_http2")


def test_unix_socket_is_served(loop: str, tmp_path: Path) -> None:
    with TransportFixture(loop, unix=tmp_path / "s") as server, grpc.insecure_channel(server.target) as channel:
        assert channel.unary_unary(ECHO)(b"x", timeout=PATIENCE) == b"x"


# TLS.


class Certificates:
    """The newest context, and what clients trust."""

    def __init__(self, alpn: tuple[str, ...] = ("h2",)) -> None:
        self._alpn = alpn
        self.renew()

    def renew(self) -> None:
        authority = trustme.CA()
        self.trusted = authority.cert_pem.bytes()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(list(self._alpn))
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(self.context)


def secure_echo(server: TransportFixture, certificates: Certificates) -> bytes:
    credentials = grpc.ssl_channel_credentials(certificates.trusted)
    with grpc.secure_channel(f"localhost:{server.port}", credentials, [("grpc.enable_http_proxy", 0)]) as channel:
        answer: bytes = channel.unary_unary(ECHO)(bytes(1_000_000), timeout=PATIENCE)
        return answer


def test_calls_over_tls_with_the_newest_certificate(loop: str) -> None:
    certificates = Certificates()
    with TransportFixture(loop, tls=lambda: certificates.context) as server:
        assert len(secure_echo(server, certificates)) == 1_000_000
        certificates.renew()
        assert len(secure_echo(server, certificates)) == 1_000_000


def test_tls_without_http2_is_closed(loop: str) -> None:
    certificates = Certificates(("h2", "http/1.1"))
    with TransportFixture(loop, tls=lambda: certificates.context) as server:
        client = ssl.create_default_context(cadata=certificates.trusted.decode())
        client.set_alpn_protocols(["http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            client.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            assert secure.recv(100) == b""
        closed_as(server, "no_http2")


def test_client_that_does_not_speak_tls_is_closed(loop: str) -> None:
    certificates = Certificates()
    limits = Limits(handshake_timeout=2.0)  # the client at the end has no more time either
    with TransportFixture(loop, limits, tls=lambda: certificates.context) as server:
        silent, plain = server.dial(preface=False), server.dial()
        assert silent.rest() == []
        plain.socket.recv(1000)
        closed_as(server, "handshake", 2)
        assert len(secure_echo(server, certificates)) == 1_000_000


def test_contexts_that_cannot_be_had_cost_their_connection_only(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    certificates = Certificates()
    broken = [True]

    def context() -> ssl.SSLContext:
        if broken:
            broken.clear()
            raise ValueError("no certificate")
        return certificates.context

    with TransportFixture(loop, tls=context) as server:
        first = server.dial(preface=False)
        assert first.rest() == []
        assert len(secure_echo(server, certificates)) == 1_000_000
    assert "could not be taken" in caplog.text


def test_server_that_never_started_stops(loop: str) -> None:
    async def stop() -> None:
        await TransportServer(Service().methods(), Limits(), Service().hooks()).stop(1)

    asyncio.run(stop())
