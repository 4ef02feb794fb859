"""A flood of small calls over a real socket: some are answered, the rest are refused, and nothing else suffers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.transport_fixture import ECHO, LOOPS, PATIENCE, REPLY, RawClient, TransportFixture
from tests.support.servers.process import wait_until
from tfs_lite.transport.backlog import ALWAYS_TAKEN, OVERLOADED, Backlog, ExpectedWait

FLOOD = 300
NEXT = 2 * FLOOD + 1
"""The stream after the flood."""
MESSAGE = h2.message(b"x")
IN_TIME = (b"grpc-timeout", b"%dS" % PATIENCE)
UNAVAILABLE = 14


@pytest.fixture(params=sorted(LOOPS))
def server(request: pytest.FixtureRequest) -> Iterator[TransportFixture]:
    """It expects to need a second for each call."""
    with TransportFixture(request.param, backlog=Backlog(ExpectedWait(1.0))) as made:
        yield made


def opened(server: TransportFixture) -> RawClient:
    raw = server.dial()
    raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.read_until(lambda frame: frame.kind == h2.SETTINGS and frame.ack)
    return raw


@contextmanager
def busy(server: TransportFixture) -> Iterator[None]:
    """The loop reads nothing meanwhile, so that what is sent comes at once."""
    reached, leave = threading.Event(), threading.Event()

    def stay() -> None:
        reached.set()
        leave.wait(PATIENCE)

    server.loop.call_soon_threadsafe(stay)
    assert reached.wait(PATIENCE)
    try:
        yield
    finally:
        leave.set()


def flood(raw: RawClient, path: str = ECHO, *more: tuple[bytes, bytes]) -> range:
    """Sends many calls in one piece; the numbers of their streams."""
    fields = [*((name, path.encode() if name == b":path" else value) for name, value in h2.REQUEST), *more]
    streams = range(1, NEXT, 2)
    raw.send(*(raw.peer.call(stream, MESSAGE, fields) for stream in streams))
    return streams


def statuses(raw: RawClient, streams: range) -> dict[int, tuple[int, str]]:
    """By stream, in any order of the answers."""
    found = dict[int, tuple[int, str]]()
    while len(found) < len(streams):
        frame = raw.read_until(lambda frame: frame.kind == h2.HEADERS and frame.ended)
        fields = {name.decode(): value.decode() for name, value in frame.fields}
        found[frame.stream] = int(fields["grpc-status"]), fields.get("grpc-message", "")
    return found


def test_calls_that_would_begin_too_late_are_refused_and_those_before_them_answered(server: TransportFixture) -> None:
    raw = opened(server)
    with busy(server):
        streams = flood(raw, ECHO, IN_TIME)
    found = statuses(raw, streams)
    assert found == {
        stream: (0, "") if place < ALWAYS_TAKEN else (UNAVAILABLE, OVERLOADED) for place, stream in enumerate(streams)
    }
    refused = FLOOD - ALWAYS_TAKEN
    wait_until(lambda: server.service.unread == {(ECHO, UNAVAILABLE): refused}, "the owner was told")
    assert server.numbers.calls == {(ECHO, 0): ALWAYS_TAKEN, (ECHO, UNAVAILABLE): refused}
    assert server.numbers.resets_sent == 0


def test_calls_after_the_flood_are_answered_as_ever(server: TransportFixture) -> None:
    raw = opened(server)
    with busy(server):
        streams = flood(raw, ECHO, IN_TIME)
    statuses(raw, streams)
    for stream in range(NEXT, NEXT + 40, 2):
        raw.request(stream, ECHO, MESSAGE, IN_TIME)
        assert raw.status(stream) == (0, "")


def test_calls_without_a_deadline_are_never_too_late(server: TransportFixture) -> None:
    raw = opened(server)
    with busy(server):
        streams = flood(raw)
    assert set(statuses(raw, streams).values()) == {(0, "")}
    assert server.service.unread == {}


def test_calls_of_other_methods_are_answered_in_the_flood(server: TransportFixture) -> None:
    """Such as health checks."""
    raw, other = opened(server), opened(server)
    with busy(server):
        streams = flood(raw, ECHO, IN_TIME)
        other.request(1, REPLY, MESSAGE, (b"grpc-timeout", b"%dS" % PATIENCE))
    wait_until(lambda: len(server.service.replies) == 1, "it has begun")

    async def answer() -> None:
        server.service.replies[0].end(b"yes")

    server.run(answer())
    assert other.status(1) == (0, "")
    statuses(raw, streams)


def test_client_that_is_still_sending_is_refused_and_told_to_stop(server: TransportFixture) -> None:
    raw, other = opened(server), opened(server)
    with busy(server):
        flood(raw, ECHO, IN_TIME)
        raw.request(NEXT, ECHO, MESSAGE, IN_TIME, end=False)
    assert raw.status(NEXT) == (UNAVAILABLE, OVERLOADED)
    raw.read_until(lambda frame: frame.kind == h2.RST_STREAM and frame.stream == NEXT and frame.value == 0)
    raw.send(h2.data(NEXT, MESSAGE, ended=True))
    raw.request(NEXT + 2, ECHO, MESSAGE, IN_TIME)
    assert raw.status(NEXT + 2) == (0, "")
    other.request(1, ECHO, MESSAGE, IN_TIME)
    assert other.status(1) == (0, "")


def test_calls_that_wait_are_cancelled_with_their_connection(server: TransportFixture) -> None:
    raw = opened(server)
    with busy(server):
        flood(raw, ECHO, IN_TIME)
        raw.close()
    wait_until(lambda: server.numbers.connections == 0, "the connection has gone")
