"""Frames that end the connection, whatever else is on it (RFC 9113, section 5.4.1, and those named in the rows)."""

from __future__ import annotations

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import ConnectionFixture
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

WRONG_SIZES = {
    (h2.PRIORITY, 1): (0, 4, 6),
    (h2.RST_STREAM, 1): (0, 3, 5),
    (h2.SETTINGS, 0): (1, 5, 7),
    (h2.PING, 0): (0, 7, 9),
    (h2.GOAWAY, 0): (0, 4, 7),
    (h2.WINDOW_UPDATE, 0): (0, 3, 5),
    (h2.WINDOW_UPDATE, 1): (0, 3, 5),
}
"""By kind and stream. They are errors of the connection, also where the RFC would be content with the stream."""
PROTOCOL: dict[str, list[bytes]] = {
    "5.1.1 a stream of an even number": [h2.headers(number, h2.TRAILERS) for number in (0, 2, 4, 2**31 - 2)],
    "5.1.1 a number that was passed": [h2.headers(3, h2.TRAILERS, ended=True)],
    "5.1.1 even numbers are idle for ever": [
        frame for at in (2, 4) for frame in (h2.data(at, b"x"), h2.rst_stream(at), h2.window_update(at, 1))
    ],
    "6.1 DATA on the connection": [h2.data(0, b"x")],
    "6.1 padding as long as the frame": [
        h2.raw(h2.DATA, h2.PADDED, 1, payload) for payload in (b"\x01", b"\xff" + bytes(254), b"\x03ab")
    ],
    "6.2 padding longer than the frame": [
        h2.raw(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 11, b"\x01"),
        h2.raw(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 11, b"\x05\x88\0\0\0"),
        h2.raw(h2.HEADERS, h2.END_HEADERS | h2.PADDED | h2.PRIORITY_FLAG, 11, b"\x01\0\0\0\0\0"),
    ],
    "6.2 HEADERS on the connection": [h2.headers(0, h2.TRAILERS), h2.headers(0, h2.TRAILERS, cuts=[3])],
    "6.3 PRIORITY on the connection": [h2.priority(0)],
    "6.4 RST_STREAM on the connection": [h2.rst_stream(0)],
    "6.5 SETTINGS on a stream": [h2.raw(h2.SETTINGS, flags, stream) for flags in (0, h2.ACK) for stream in (1, 2, 99)],
    "6.6, 8.4 PUSH_PROMISE from a client": [h2.push_promise(stream, 2, b"\x82") for stream in (0, 1, 3)],
    "6.7 PING on a stream": [h2.raw(h2.PING, flags, 1, bytes(8)) for flags in (0, h2.ACK)],
    "6.8 GOAWAY on a stream": [h2.raw(h2.GOAWAY, 0, 1, bytes(8))],
    "6.9 WINDOW_UPDATE by 0 on the connection": [h2.window_update(0, 0)],
    "6.10 CONTINUATION without HEADERS": [h2.continuation(stream) for stream in (0, 1, 3)],
}
FRAME_SIZE: dict[str, list[bytes]] = {
    "4.2 a frame above the largest size": [
        h2.raw(kind, 0, 1, bytes(Limits().max_frame + 1)) for kind in (*range(10), 0x42)
    ],
    "4.2 a size that is judged by the head alone": [h2.raw(h2.DATA, 0, 1, length=2**24 - 1)],
    "4.2 too short for the mandatory fields": [
        h2.raw(h2.DATA, h2.PADDED, 1, b""),
        h2.raw(h2.HEADERS, h2.PADDED | h2.END_HEADERS, 11, b""),
        h2.raw(h2.HEADERS, h2.PRIORITY_FLAG | h2.END_HEADERS, 11, bytes(4)),
        h2.raw(h2.HEADERS, h2.PRIORITY_FLAG | h2.PADDED | h2.END_HEADERS, 11, bytes(5)),
    ],
    "4.2, 6.3 to 6.9 a wrong size": [
        h2.raw(kind, 0, stream, bytes(size)) for (kind, stream), sizes in WRONG_SIZES.items() for size in sizes
    ],
    "6.5 an acknowledgement with contents": [h2.raw(h2.SETTINGS, h2.ACK, 0, bytes(6))],
}
ROWS = [
    pytest.param(frame, code, id=f"{rule} [{at}]")
    for rules, code in ((PROTOCOL, ErrorCode.PROTOCOL_ERROR), (FRAME_SIZE, ErrorCode.FRAME_SIZE_ERROR))
    for rule, frames in rules.items()
    for at, frame in enumerate(frames)
]


@pytest.mark.parametrize(("frame", "code"), ROWS)
def test_a_frame_that_breaks_a_rule_ends_the_connection(conn: ConnectionFixture, frame: bytes, code: ErrorCode) -> None:
    conn.send(conn.peer.open(1), conn.peer.call(9))
    conn.events.clear()
    (end,) = conn.send(frame)
    assert (conn.fault, end.kind, end.last) == (code, h2.GOAWAY, 9)
    assert {event.name for event in conn.events} == {"reset"}
