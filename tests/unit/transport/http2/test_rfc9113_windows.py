"""Flow control of what comes in, and the rules of WINDOW_UPDATE and DATA (RFC 9113, sections 5.2, 6.1 and 6.9)."""

from __future__ import annotations

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import ConnectionFixture
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

PROTOCOL, FLOW = ErrorCode.PROTOCOL_ERROR, ErrorCode.FLOW_CONTROL_ERROR
SMALL = Limits(stream_window=1000, connection_window=65_535)
LARGE_FRAMES = Limits(stream_window=10_000_000, connection_window=65_535, max_frame=100_000)
REST = 2**31 - 1 - 65_535
"""What a window of the default size may still grow by."""


def initial_window(size: int) -> bytes:
    return h2.settings([(h2.INITIAL_WINDOW, size)])


def updates(conn: ConnectionFixture, stream: int) -> list[int]:
    return [frame.value for frame in conn.frames if (frame.kind, frame.stream) == (h2.WINDOW_UPDATE, stream)]


@pytest.mark.parametrize("padding", [None, 0, 1, 255])
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("contents", [b"", b"x", b"abc" * 100])
def test_data_comes_without_padding(conn: ConnectionFixture, contents: bytes, ended: bool, padding: int | None) -> None:
    """6.1"""
    conn.send(conn.peer.open(1), h2.data(1, contents, ended=ended, padding=padding))
    assert conn.events[1:] == [h2.Event("data", 1, contents, ended)]


@pytest.mark.parametrize(
    ("frames", "taken", "resets"),
    [
        pytest.param([h2.data(1, bytes(600)), h2.data(1, bytes(400)), h2.data(1, b"")], 1000, [], id="all of it"),
        pytest.param([h2.data(1, bytes(600)), h2.data(1, bytes(401))], 600, [(1, FLOW)], id="beyond"),
        pytest.param([h2.data(1, bytes(600)), h2.data(1, bytes(401), ended=True)], 600, [(1, FLOW)], id="last one"),
        pytest.param([h2.data(1, bytes(900), padding=99)], 900, [], id="padding and its length count"),
        pytest.param([h2.data(1, bytes(900), padding=100)], 0, [(1, FLOW)], id="padding beyond"),
    ],
)
def test_data_beyond_the_streams_window_is_a_stream_error(frames: list[bytes], taken: int, resets: object) -> None:
    """6.9.1"""
    conn = ConnectionFixture(SMALL, credit=False)
    conn.send(conn.peer.open(1), conn.peer.open(3), *frames, h2.data(3, bytes(1000)))
    assert (conn.resets, conn.fault) == (resets, None)
    assert sum(len(event.value) for event in conn.events if (event.name, event.stream) == ("data", 1)) == taken
    assert len(conn.contents(3)) == 1000


def test_padding_is_given_back_although_it_is_not_read() -> None:
    """6.9.1"""
    conn = ConnectionFixture(SMALL)
    conn.send(conn.peer.open(1), *[h2.data(1, b"x", padding=255)] * 50)
    assert conn.resets == []
    assert 50 * 257 - sum(updates(conn, 1)) < 1000


def test_data_beyond_the_connections_window_is_an_error_of_the_connection() -> None:
    """6.9.1"""
    conn, beyond = ConnectionFixture(LARGE_FRAMES), ConnectionFixture(LARGE_FRAMES)
    conn.send(conn.peer.open(1), h2.data(1, bytes(65_535)))
    assert (conn.fault, len(conn.contents(1)), sum(updates(conn, 0))) == (None, 65_535, 65_535)
    beyond.send(beyond.peer.open(1), h2.data(1, bytes(65_536)))
    assert beyond.fault is FLOW


@pytest.mark.parametrize("where", ["reset by the server", "reset by the client", "refused", "ended", "malformed"])
def test_data_without_a_reader_still_counts_for_the_connections_window(where: str) -> None:
    """5.1, 6.9: the client has counted it as well."""
    conn = ConnectionFixture(Limits(connection_window=65_535, max_streams=1))
    fields = [] if where == "malformed" else h2.REQUEST
    conn.send(h2.headers(1, conn.peer.block(fields), ended=where == "ended"), conn.peer.open(3))
    if where == "reset by the server":
        conn.connection.reset(conn.calls[1], ErrorCode.CANCEL)
    elif where == "reset by the client":
        conn.send(h2.rst_stream(1))
    conn.send(*[h2.data(3 if where == "refused" else 1, bytes(16_000))] * 20)
    assert 320_000 - sum(updates(conn, 0)) <= 65_535 // 2 + 1
    assert conn.fault is None


@pytest.mark.parametrize(("size", "streams"), [(100, 2), (16_384, 80)])
def test_what_was_on_its_way_to_a_stream_that_the_server_ended_is_no_flood(size: int, streams: int) -> None:
    """5.1: up to its window the client could not know better, in frames of any size."""
    conn = ConnectionFixture(Limits(stream_window=256 * 1024, max_streams=100))
    numbers = range(1, 2 * streams, 2)
    conn.send(*(conn.peer.open(number) for number in numbers))
    for number in numbers:
        conn.answer(number)
    for number in numbers:
        conn.send(*[h2.data(number, bytes(size))] * (256 * 1024 // size))
    assert conn.fault is None


def test_the_connections_window_opens_although_a_stream_is_not_read() -> None:
    """5.2.2: one call does not hold up the others."""
    conn = ConnectionFixture(Limits(stream_window=65_535, connection_window=65_535), credit=False)
    conn.send(conn.peer.open(1), *[h2.data(1, bytes(13_107))] * 5, conn.peer.open(3), h2.data(3, bytes(16_384)))
    assert updates(conn, 1) == []
    assert sum(updates(conn, 0)) >= 65_535 // 2
    assert len(conn.contents(3)) == 16_384


def test_a_streams_window_opens_by_what_its_owner_has_used_up() -> None:
    """5.2.2, 6.9"""
    conn = ConnectionFixture(SMALL, credit=False)
    conn.send(conn.peer.open(1), h2.data(1, bytes(1000)))
    stream = conn.calls[1]
    conn.connection.credit(stream, 499)
    assert conn.take() == []
    conn.connection.credit(stream, 1)
    assert [(frame.stream, frame.value) for frame in conn.take()] == [(1, 500)]
    conn.send(h2.data(1, bytes(500)))
    assert conn.resets == []
    conn.send(h2.data(1, b"x"))
    assert conn.resets == [(1, FLOW)]


def test_a_wider_window_is_announced_at_once_and_stays_wide() -> None:
    """6.9"""
    conn = ConnectionFixture(SMALL, credit=False)
    conn.send(conn.peer.open(1), h2.data(1, bytes(100)))
    conn.connection.widen(conn.calls[1], 5000)
    assert [(frame.stream, frame.value) for frame in conn.take()] == [(1, 4000)]
    conn.connection.widen(conn.calls[1], 300)
    assert conn.take() == []
    conn.send(h2.data(1, bytes(4900)))
    assert conn.resets == []
    conn.connection.credit(conn.calls[1], 5000)
    assert [frame.value for frame in conn.take()] == [5000]


@pytest.mark.parametrize("end", ["half-closed", "reset"])
def test_no_window_is_opened_for_a_stream_that_has_ended(end: str) -> None:
    """6.9: it would have no effect."""
    conn = ConnectionFixture(SMALL, credit=False)
    ending = h2.data(1, ended=True) if end == "half-closed" else h2.rst_stream(1)
    conn.send(conn.peer.open(1), h2.data(1, bytes(900)), ending)
    conn.connection.credit(conn.calls[1], 900)
    conn.connection.widen(conn.calls[1], 5000)
    assert conn.take() == []


def test_what_is_announced_is_what_is_allowed() -> None:
    """6.9: a client that uses every byte it was given is never at fault."""
    conn = ConnectionFixture(Limits(stream_window=3000, connection_window=65_535))
    conn.send(conn.peer.open(1))
    stream, connection, sent = 3000, 65_535, 0
    while sent < 300_000:
        size = min(stream, connection, 16_384)
        assert size > 0, "both sides wait for each other"
        stream, connection, sent = stream - size, connection - size, sent + size
        for frame in conn.send(h2.data(1, bytes(size))):
            stream += frame.value if frame.stream == 1 else 0
            connection += frame.value if frame.stream == 0 else 0
    assert (conn.resets, conn.fault, len(conn.contents(1))) == ([], None, sent)


@pytest.mark.parametrize("bit", [0, 1 << 31])
def test_window_update_by_0_on_a_stream_is_a_protocol_error_of_the_stream(conn: ConnectionFixture, bit: int) -> None:
    """6.9; the reserved bit means nothing."""
    conn.send(conn.peer.open(1), h2.window_update(1, bit))
    assert (conn.resets, conn.fault, conn.names()) == ([(1, PROTOCOL)], None, ["request", "reset"])


def test_the_reserved_bit_of_window_update_means_nothing(conn: ConnectionFixture) -> None:
    """6.9"""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 0)]), conn.peer.call(1))
    conn.answer(1, b"hello")
    conn.send(h2.window_update(1, 1 << 31 | 3))
    assert len(conn.sent(1)) == 3


@pytest.mark.parametrize(
    ("largest", "beyond", "resets", "fault"),
    [
        ([h2.window_update(0, REST)], h2.window_update(0, 1), [], FLOW),
        ([h2.window_update(1, REST)], h2.window_update(1, 1), [(1, FLOW)], None),
        ([h2.window_update(1, REST), initial_window(65_535)], initial_window(65_536), [], FLOW),
    ],
    ids=["of the connection", "of a stream", "of a stream by settings: an error of the connection"],
)
def test_a_window_of_2_31_is_a_flow_control_error(
    conn: ConnectionFixture, largest: list[bytes], beyond: bytes, resets: object, fault: ErrorCode | None
) -> None:
    """6.9.1, 6.9.2"""
    conn.send(conn.peer.open(1), *largest)
    assert (conn.resets, conn.fault) == ([], None)
    conn.send(beyond)
    assert (conn.resets, conn.fault) == (resets, fault)


def test_settings_change_the_windows_of_streams_and_not_that_of_the_connection(conn: ConnectionFixture) -> None:
    """6.9.2"""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 2**31 - 1)]), h2.window_update(0, 2**31 - 1 - 65_535))
    assert conn.fault is None


@pytest.mark.parametrize("increment", [0, 1, 2**31 - 1])
@pytest.mark.parametrize("end", ["answered", "reset by the client", "reset by the server", "skipped"])
def test_window_updates_for_closed_streams_are_ignored(conn: ConnectionFixture, increment: int, end: str) -> None:
    """5.1, 6.9: they were on their way."""
    conn.send(conn.peer.call(1), conn.peer.open(5))
    if end == "answered":
        conn.answer(1)
    elif end == "reset by the client":
        conn.send(h2.rst_stream(1))
    elif end == "reset by the server":
        conn.connection.reset(conn.calls[1], ErrorCode.CANCEL)
        conn.take()
    conn.frames.clear()
    conn.send(h2.window_update(3 if end == "skipped" else 1, increment))
    assert conn.frames == []


def test_windows_that_were_refused_are_not_used(conn: ConnectionFixture) -> None:
    """6.9.1: after the stream's fault nothing of its answer leaves."""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 0)]), conn.peer.call(1))
    conn.answer(1, b"hello")
    conn.send(h2.window_update(1, 2**31 - 1), h2.window_update(1, 1))
    assert (conn.sent(1), conn.resets) == (b"", [(1, FLOW)])
    assert (conn.connection.busy, conn.numbers.unsent) == (0, 0)
