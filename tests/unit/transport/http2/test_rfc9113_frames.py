"""The beginning of a connection, frames as such, and what is not known (RFC 9113, sections 3.4, 4 and 5.5)."""

from __future__ import annotations

import struct

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import ConnectionFixture
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits


def test_the_server_speaks_first_and_begins_with_its_settings() -> None:
    """3.4"""
    conn = ConnectionFixture(
        Limits(max_streams=7, stream_window=70_000, max_frame=20_000, max_header_list=9_000), preface=False
    )
    frames = conn.take()
    assert frames[0].kind == h2.SETTINGS
    assert not frames[0].ack
    expected = {h2.MAX_STREAMS: 7, h2.INITIAL_WINDOW: 70_000, h2.MAX_FRAME: 20_000, h2.MAX_HEADER_LIST: 9_000}
    assert frames[0].settings == expected


def test_the_window_of_the_connection_is_widened_at_once() -> None:
    """6.9.2"""
    conn = ConnectionFixture(Limits(connection_window=1_000_000), preface=False)
    assert [(f.stream, f.value) for f in conn.take() if f.kind == h2.WINDOW_UPDATE] == [(0, 1_000_000 - 65_535)]


def test_preface_and_settings_open_the_connection() -> None:
    """3.4"""
    conn = ConnectionFixture(preface=False)
    assert not conn.connection.opened
    conn.send(h2.PREFACE)
    assert not conn.connection.opened
    frames = conn.send(h2.settings())
    assert conn.connection.opened
    assert [frame.kind for frame in frames if frame.ack] == [h2.SETTINGS]


@pytest.mark.parametrize("at", range(24))
def test_a_wrong_byte_of_the_preface_is_a_protocol_error_at_once(at: int) -> None:
    """3.4: no client of HTTP/1 is kept waiting."""
    conn = ConnectionFixture(preface=False)
    conn.send(h2.PREFACE[:at] + bytes([h2.PREFACE[at] ^ 1]))
    assert conn.fault is ErrorCode.PROTOCOL_ERROR
    conn.send(h2.PREFACE[at + 1 :], h2.settings())
    assert not conn.events


@pytest.mark.parametrize(
    "frame",
    [
        h2.ping(),
        h2.settings_ack(),
        h2.window_update(0, 1),
        h2.priority(1),
        h2.headers(1, h2.RESPONSE_HEADERS),
        h2.data(1, b"x"),
        h2.goaway(),
        h2.continuation(1),
        h2.raw(0x42, 0, 0),
    ],
    ids=["ping", "ack", "window", "priority", "headers", "data", "goaway", "continuation", "unknown"],
)
def test_a_first_frame_other_than_settings_is_a_protocol_error(frame: bytes) -> None:
    """3.4"""
    conn = ConnectionFixture(preface=False)
    conn.send(h2.PREFACE, frame)
    assert conn.fault is ErrorCode.PROTOCOL_ERROR
    assert not conn.connection.opened
    assert not conn.events


def test_requests_may_follow_the_preface_without_waiting_for_the_server() -> None:
    """3.4"""
    conn = ConnectionFixture(preface=False)
    conn.send(h2.PREFACE, h2.settings(), conn.peer.call(1, b"early"))
    assert conn.contents(1) == b"early"


@pytest.mark.parametrize("kind", [0x0B, 0x10, 0x42, 0xFF])
@pytest.mark.parametrize("stream", [0, 1, 2, 99])
def test_frames_of_unknown_types_are_ignored_on_any_stream(conn: ConnectionFixture, kind: int, stream: int) -> None:
    """4.1, 5.5"""
    conn.send(conn.peer.open(1))
    assert conn.send(h2.raw(kind, 0xFF, stream, b"anything")) == []
    conn.send(h2.data(1, b"goes on", ended=True))
    assert conn.contents(1) == b"goes on"


def test_unknown_flags_and_the_reserved_bit_of_the_stream_mean_nothing(conn: ConnectionFixture) -> None:
    """4.1"""
    top = 1 << 31
    conn.send(h2.raw(h2.HEADERS, h2.END_HEADERS | 0x42, top | 1, conn.peer.block()))
    conn.send(h2.raw(h2.DATA, 0xF6 & ~h2.PADDED, top | 1, b"x"))
    conn.send(h2.raw(h2.PING, 0xFE, top, bytes(8)), h2.raw(h2.RST_STREAM, 0xFF, top | 1, bytes(4)))
    assert conn.names() == ["request", "data", "ping", "reset"]
    assert (conn.events[0].stream, conn.fault) == (1, None)


def test_the_server_leaves_the_reserved_bit_unset(conn: ConnectionFixture) -> None:
    """4.1"""
    conn.send(conn.peer.call(1, b"x"), h2.ping())
    frames = conn.answer(1, b"answer") + conn.send(h2.rst_stream(99))
    assert frames
    assert all(frame.stream < 1 << 31 for frame in frames)


@pytest.mark.parametrize("size", [16_384, 20_000])
def test_the_largest_size_of_a_frame_is_the_one_that_was_advertised(size: int) -> None:
    """4.2, 6.5.2"""
    conn = ConnectionFixture(Limits(max_frame=size))
    conn.send(conn.peer.call(1, bytes(size)))
    assert len(conn.contents(1)) == size
    conn.send(h2.data(1, bytes(size + 1)))
    assert conn.fault is ErrorCode.FRAME_SIZE_ERROR


def test_goaway_tells_the_last_stream_and_why(conn: ConnectionFixture) -> None:
    """5.4.1, 6.8"""
    conn.send(conn.peer.call(1), conn.peer.call(3), conn.peer.call(9))
    (end,) = conn.send(h2.raw(h2.SETTINGS, 0, 5))
    assert (end.kind, end.stream, end.last, end.value) == (h2.GOAWAY, 0, 9, ErrorCode.PROTOCOL_ERROR)
    assert end.payload.decode("ascii")


def test_after_a_connection_error_nothing_more_is_read_and_one_goaway_is_enough(conn: ConnectionFixture) -> None:
    """5.4.1"""
    conn.send(h2.data(0, b"x"), conn.peer.call(1), h2.ping())
    assert conn.send(conn.peer.call(3), h2.ping()) == []
    assert not conn.events
    conn.connection.close(ErrorCode.NO_ERROR, "enough", "idle")
    conn.take()
    assert [frame.kind for frame in conn.frames] == [h2.GOAWAY]
    assert conn.connection.closing == "protocol"


def test_a_connection_error_resets_every_stream_once(conn: ConnectionFixture) -> None:
    """5.4.1"""
    conn.send(conn.peer.open(1), conn.peer.call(3), conn.peer.open(5), h2.rst_stream(5))
    conn.events.clear()
    conn.send(h2.data(0, b"x"))
    assert sorted(event.stream for event in conn.events if event.name == "reset") == [1, 3]
    assert all(stream.dead for stream in conn.calls.values())
    assert (conn.connection.busy, conn.numbers.streams) == (0, 0)


def test_a_stream_error_leaves_the_connection_and_the_other_streams_alone(conn: ConnectionFixture) -> None:
    """5.4.2"""
    conn.send(conn.peer.open(1), conn.peer.open(3), h2.window_update(1, 0))
    assert conn.resets == [(1, ErrorCode.PROTOCOL_ERROR)]
    conn.send(h2.data(3, b"still here", ended=True), conn.peer.call(5))
    assert conn.contents(3) == b"still here"
    assert conn.names() == ["request", "request", "reset", "data", "request"]


def test_rst_stream_is_never_answered_with_rst_stream(conn: ConnectionFixture) -> None:
    """5.4.2"""
    conn.send(conn.peer.open(1), h2.rst_stream(1), h2.rst_stream(1))
    assert conn.frames == []
    assert conn.names() == ["request", "reset"]


@pytest.mark.parametrize("key", [0x0, 0x7, 0x9, 0x1234, 0xFFFF])
def test_unknown_settings_are_ignored_and_acknowledged(conn: ConnectionFixture, key: int) -> None:
    """5.5, 6.5.2"""
    frames = conn.send(h2.raw(h2.SETTINGS, 0, 0, struct.pack(">HI", key, 0xFFFFFFFF)))
    assert [(frame.kind, frame.ack) for frame in frames] == [(h2.SETTINGS, True)]
    assert conn.fault is None
