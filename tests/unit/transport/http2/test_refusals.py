"""Requests that are answered by their heads: what the client sends, and how the stream ends on both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import ConnectionFixture
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

ANSWER = h2.RESPONSE_HEADERS + h2.TRAILERS
FIELDS = ((b":status", b"200"), (b"grpc-status", b"0"))


@pytest.fixture
def refusing(conn: ConnectionFixture) -> ConnectionFixture:
    conn.refusing = ANSWER
    return conn


def answers(frames: list[h2.Frame]) -> list[tuple[int, tuple[tuple[bytes, bytes], ...], bool]]:
    return [(frame.stream, frame.fields, frame.ended) for frame in frames if frame.kind == h2.HEADERS]


def test_requests_are_answered_by_one_block_each_and_the_owner_hears_of_none(refusing: ConnectionFixture) -> None:
    frames = refusing.send(*(refusing.peer.call(stream, b"contents") for stream in range(1, 2001, 2)))
    assert answers(frames) == [(stream, FIELDS, True) for stream in range(1, 2001, 2)]
    assert refusing.events == []
    assert refusing.resets == []
    assert (refusing.connection.busy, refusing.numbers.streams, refusing.connection.streams) == (0, 0, {})


def test_request_without_contents_is_answered(refusing: ConnectionFixture) -> None:
    assert answers(refusing.send(refusing.peer.call(1))) == [(1, FIELDS, True)]
    assert refusing.resets == []


def test_client_that_is_still_sending_is_told_to_stop_and_what_is_on_its_way_is_dropped(
    refusing: ConnectionFixture,
) -> None:
    frames = refusing.send(refusing.peer.open(1), h2.data(1, b"some"))
    assert [frame.kind for frame in frames] == [h2.HEADERS, h2.RST_STREAM]
    assert refusing.resets == [(1, ErrorCode.NO_ERROR)]
    assert refusing.send(h2.data(1, b"more"), h2.data(1, b"last", ended=True)) == []
    assert refusing.events == []
    assert refusing.fault is None


def test_empty_end_of_a_refused_request_is_no_fault() -> None:
    conn = ConnectionFixture(Limits(unexpected_frames=(0, 0), stream_errors=(0, 0)))
    conn.refusing = ANSWER
    conn.send(conn.peer.open(1), h2.data(1, b"all"), h2.data(1, ended=True))
    conn.send(conn.peer.open(3))
    conn.send(h2.data(3, b"all"), h2.data(3, ended=True))
    assert conn.fault is None
    assert conn.resets == [(3, ErrorCode.NO_ERROR)]


def test_frames_after_the_end_of_a_refused_request_are_a_fault_of_the_stream(refusing: ConnectionFixture) -> None:
    refusing.send(refusing.peer.call(1, b"all"))
    refusing.send(h2.data(1, b"more"))
    assert refusing.resets == [(1, ErrorCode.STREAM_CLOSED)]


def test_as_many_as_may_be_open_are_refused_before_their_contents_come() -> None:
    conn = ConnectionFixture(replace(Limits(), max_streams=3000))
    conn.refusing = ANSWER
    streams = range(1, 6001, 2)
    conn.send(
        *(conn.peer.open(stream) for stream in streams), *(h2.data(stream, b"x", ended=True) for stream in streams)
    )
    assert (conn.resets, conn.fault) == ([], None)


def test_client_gets_the_connections_window_back(refusing: ConnectionFixture) -> None:
    size, window = 16_000, Limits().connection_window
    frames = list[h2.Frame]()
    for stream in range(1, 2 * (window // size) + 3, 2):
        frames += refusing.send(refusing.peer.call(stream, bytes(size)))
    granted = sum(frame.value for frame in frames if frame.kind == h2.WINDOW_UPDATE and frame.stream == 0)
    assert granted >= window // 2
    assert refusing.fault is None


def test_header_tables_stay_right(refusing: ConnectionFixture) -> None:
    for number in range(50):
        refusing.send(refusing.peer.call(4 * number + 1, b"x", [*h2.REQUEST, (b"lately", b"%d" % number)]))
    refusing.refusing = None
    fields = (*h2.REQUEST, (b"lately", b"49"), (b"new", b"yes"))
    refusing.send(refusing.peer.call(401, b"x", fields))
    assert refusing.events[0].value == fields


def test_malformed_requests_and_those_after_goaway_are_not_answered(refusing: ConnectionFixture) -> None:
    refusing.send(refusing.peer.call(1, fields=h2.REQUEST[1:]))
    assert refusing.resets == [(1, ErrorCode.PROTOCOL_ERROR)]
    refusing.connection.goaway()
    assert answers(refusing.send(refusing.peer.call(3))) == []


def test_client_that_does_not_read_is_not_sent_refusals(refusing: ConnectionFixture) -> None:
    refusing.connection.outgoing.pause()
    refusing.send(*(refusing.peer.call(stream, b"x") for stream in range(1, 200, 2)))
    assert refusing.names().count("request") == 100
    refusing.connection.outgoing.resume()
    assert answers(refusing.send(refusing.peer.call(201, b"x"))) == [(201, FIELDS, True)]


def test_client_that_resets_a_refused_request_is_not_answered_again(refusing: ConnectionFixture) -> None:
    frames = refusing.send(refusing.peer.open(1), h2.rst_stream(1))
    assert answers(frames) == [(1, FIELDS, True)]
    assert refusing.fault is None
    assert refusing.resets == []


def test_first_block_after_a_change_of_the_table_size_says_so() -> None:
    conn = ConnectionFixture()
    conn.refusing = ANSWER
    conn.send(h2.settings([(h2.HEADER_TABLE_SIZE, 0)]))
    (frame,) = (frame for frame in conn.send(conn.peer.call(1, b"x")) if frame.kind == h2.HEADERS)
    assert frame.payload.startswith(b"\x20")
