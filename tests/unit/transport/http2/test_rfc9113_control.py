"""SETTINGS, PUSH_PROMISE, PING and GOAWAY (RFC 9113, sections 6.5 to 6.8)."""

from __future__ import annotations

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import ConnectionFixture
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

PROTOCOL = ErrorCode.PROTOCOL_ERROR


def test_each_settings_frame_is_acknowledged_once_and_in_order(conn: ConnectionFixture) -> None:
    """6.5.3"""
    frames = conn.send(h2.settings(), h2.ping(b"between1"), h2.settings([(h2.MAX_STREAMS, 1)]), h2.settings())
    assert [frame.kind for frame in frames] == [h2.SETTINGS, h2.PING, h2.SETTINGS, h2.SETTINGS]
    assert all(frame.ack for frame in frames)
    assert all(frame.payload == b"" for frame in frames if frame.kind == h2.SETTINGS)


def test_acknowledgements_are_not_acknowledged(conn: ConnectionFixture) -> None:
    """6.5.3, 6.7"""
    assert conn.send(h2.settings_ack(), h2.ping(b"whatever", ack=True)) == []
    assert (conn.events, conn.fault) == ([h2.Event("ping_ack", 0, b"whatever")], None)


WRONG = [
    (h2.ENABLE_PUSH, 2, PROTOCOL),
    (h2.ENABLE_PUSH, 2**32 - 1, PROTOCOL),
    (h2.INITIAL_WINDOW, 2**31, ErrorCode.FLOW_CONTROL_ERROR),
    (h2.INITIAL_WINDOW, 2**32 - 1, ErrorCode.FLOW_CONTROL_ERROR),
    (h2.MAX_FRAME, 0, PROTOCOL),
    (h2.MAX_FRAME, 16_383, PROTOCOL),
    (h2.MAX_FRAME, 2**24, PROTOCOL),
]


@pytest.mark.parametrize(("key", "value", "code"), WRONG)
@pytest.mark.parametrize("opened_first", [True, False])
def test_a_value_out_of_range_is_a_connection_error(key: int, value: int, code: ErrorCode, opened_first: bool) -> None:
    """6.5.2"""
    conn = ConnectionFixture(preface=opened_first)
    conn.send(b"" if opened_first else h2.PREFACE, h2.settings([(h2.MAX_STREAMS, 1), (key, value)]))
    assert conn.fault is code
    assert not any(frame.ack for frame in conn.frames)


ENDS_OF_RANGES = {
    h2.HEADER_TABLE_SIZE: (0, 2**32 - 1),
    h2.ENABLE_PUSH: (0, 1),
    h2.MAX_STREAMS: (0,),
    h2.INITIAL_WINDOW: (0, 2**31 - 1),
    h2.MAX_FRAME: (16_384, 2**24 - 1),
    h2.MAX_HEADER_LIST: (0,),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, ends in ENDS_OF_RANGES.items() for value in ends])
def test_values_at_the_ends_of_their_ranges_are_taken(conn: ConnectionFixture, key: int, value: int) -> None:
    """6.5.2"""
    frames = conn.send(h2.settings([(key, value)]))
    assert [(frame.kind, frame.ack) for frame in frames] == [(h2.SETTINGS, True)]
    conn.send(conn.peer.call(1, b"x"))
    assert conn.names() == ["request", "data"]


def test_the_last_value_of_a_setting_counts(conn: ConnectionFixture) -> None:
    """6.5.3: they are processed in order."""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 100), (h2.INITIAL_WINDOW, 7)]), conn.peer.call(1))
    conn.answer(1, bytes(50))
    assert len(conn.sent(1)) == 7


@pytest.mark.parametrize("size", [0, 100, 4095, 4096, 8192])
def test_answers_can_be_decoded_after_the_client_has_changed_its_table(conn: ConnectionFixture, size: int) -> None:
    """4.3.1, RFC 7541 4.2: the first block after the acknowledgement says that the table became smaller."""
    conn.send(conn.peer.call(1), conn.peer.call(3))
    conn.send(conn.peer.settings({h2.HEADER_TABLE_SIZE: size}))
    assert conn.answer(1, b"x")[0].fields == ((b":status", b"200"),)
    assert conn.answer(3, b"x")[2].fields == ((b"grpc-status", b"0"),)


def test_trailers_that_waited_can_be_decoded_after_the_client_has_changed_its_table(conn: ConnectionFixture) -> None:
    """4.3.1: it is the order of sending that counts, not that of making the blocks."""
    conn.send(conn.peer.settings({h2.INITIAL_WINDOW: 3}), conn.peer.call(1))
    conn.answer(1, b"waits")
    conn.send(conn.peer.settings({h2.HEADER_TABLE_SIZE: 0}))
    conn.send(h2.window_update(1, 100))
    assert conn.frames[-1].fields == ((b"grpc-status", b"0"),)


def test_the_table_size_update_is_in_the_first_block_that_leaves(conn: ConnectionFixture) -> None:
    """4.3.1: not in one that waits behind contents while others go."""
    conn.send(conn.peer.settings({h2.INITIAL_WINDOW: 3}), conn.peer.call(1), conn.peer.call(3))
    conn.connection.headers(conn.calls[1], h2.RESPONSE_HEADERS)
    conn.connection.data(conn.calls[1], b"waits")
    conn.take()
    conn.send(conn.peer.settings({h2.HEADER_TABLE_SIZE: 0}))
    conn.connection.headers(conn.calls[1], h2.TRAILERS, True)
    assert next(frame.fields for frame in conn.answer(3) if frame.kind == h2.HEADERS) == ((b":status", b"200"),)
    conn.send(h2.window_update(1, 100))
    assert conn.frames[-1].ended


@pytest.mark.parametrize("payload", [bytes(8), b"\xff" * 8, b"12345678"])
def test_a_ping_is_echoed(conn: ConnectionFixture, payload: bytes) -> None:
    """6.7"""
    (echo,) = conn.send(h2.ping(payload))
    assert (echo.kind, echo.flags, echo.stream, echo.payload) == (h2.PING, h2.ACK, 0, payload)


def test_pings_that_the_owner_will_not_have_end_the_connection(conn: ConnectionFixture) -> None:
    """6.7, 10.5"""
    conn.pings_allowed = False
    (end,) = conn.send(h2.ping())
    assert (end.kind, end.value, end.payload) == (h2.GOAWAY, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")


def test_echoes_go_out_while_answers_wait_for_the_window(conn: ConnectionFixture) -> None:
    """5.2.1"""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 0)]), conn.peer.call(1))
    conn.answer(1, b"waits")
    assert [frame.kind for frame in conn.send(h2.ping())] == [h2.PING]


@pytest.mark.parametrize("code", [0, 1, 11, 0xFFFF])
def test_calls_are_still_served_after_the_clients_goaway(conn: ConnectionFixture, code: int) -> None:
    """6.8: it is about streams that the server begins, and there are none."""
    conn.send(conn.peer.open(1), h2.goaway(0, code, b"bye"), h2.data(1, b"x", ended=True), conn.peer.call(3))
    assert conn.contents(1) == b"x"
    assert len(conn.answer(1, b"y")) == len(conn.answer(3, b"y")) == 3
    assert conn.fault is None


def test_a_server_that_is_about_to_go_still_takes_calls(conn: ConnectionFixture) -> None:
    """6.8"""
    conn.connection.goaway_soon()
    first, second = conn.take()
    assert (first.kind, first.last, first.value) == (h2.GOAWAY, 2**31 - 1, 0)
    assert (second.kind, second.ack) == (h2.PING, False)
    conn.send(conn.peer.call(1, b"in time"), h2.ping(second.payload, ack=True))
    assert conn.contents(1) == b"in time"
    assert conn.events[-1] == h2.Event("ping_ack", 0, second.payload)


def test_streams_that_begin_after_goaway_are_ignored(conn: ConnectionFixture) -> None:
    """6.8: what is known goes on; the others get no answer, and their header blocks still count."""
    conn.send(conn.peer.open(5))
    conn.connection.goaway()
    (end,) = conn.take()
    assert (end.last, end.value) == (5, 0)
    late = conn.peer.open(7, [*h2.REQUEST, (b"name", b"of the table")])
    assert conn.send(late, h2.data(7, b"late"), h2.window_update(7, 5), h2.rst_stream(7)) == []
    trailers = h2.headers(5, conn.peer.block([(b"name", b"of the table")]), ended=True)
    conn.send(h2.data(5, b"known"), trailers)
    assert conn.contents(5) == b"known"
    assert [event.stream for event in conn.events if event.name == "request"] == [5]
    assert len(conn.answer(5)) == 3


def test_what_comes_on_ignored_streams_counts_for_the_connections_window() -> None:
    """6.8, 6.9"""
    conn = ConnectionFixture(Limits(connection_window=65_535))
    conn.connection.goaway()
    conn.take()
    conn.send(conn.peer.open(1))
    frames = conn.send(*[h2.data(1, bytes(16_000))] * 10)
    assert 160_000 - 65_535 // 2 <= sum(frame.value for frame in frames if frame.kind == h2.WINDOW_UPDATE) <= 160_000
    assert conn.fault is None


def test_the_last_stream_of_goaway_never_goes_up(conn: ConnectionFixture) -> None:
    """6.8: a stream that was ignored must not count as begun in the end."""
    conn.send(conn.peer.call(1))
    conn.connection.goaway()
    conn.take()
    conn.send(conn.peer.call(3), conn.peer.call(5))
    (end,) = conn.send(h2.rst_stream(0))
    assert (end.kind, end.last) == (h2.GOAWAY, 1)
