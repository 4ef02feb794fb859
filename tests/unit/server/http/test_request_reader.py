"""From bytes to requests, without a connection."""

from __future__ import annotations

import pytest

from tfs_lite.core.callbacks import ignore
from tfs_lite.server.http.known_heads import KnownHeads
from tfs_lite.server.http.request_reader import PARSED_AT_ONCE, RequestReader

GET = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


@pytest.fixture
def reader() -> RequestReader:
    return RequestReader(KnownHeads(), False, ignore, ignore)


def paths_of(reader: RequestReader) -> list[str]:
    """The paths of all requests that are whole, in the order in which they are answered."""
    found = []
    while reader.current is not None:
        found.append(reader.current.head.path)
        if reader.next() is None and reader.unparsed:
            data, reader.unparsed = reader.unparsed, b""
            assert reader.receive(data)
    return found


@pytest.mark.parametrize("size", [1, 7, PARSED_AT_ONCE, 1 << 20])
def test_pipelined_requests_come_in_their_order_however_they_were_cut(reader: RequestReader, size: int) -> None:
    data = b"".join(GET % number for number in range(1000))
    for at in range(0, len(data), size):
        assert reader.receive(data[at : at + size])
    assert len(reader.waiting) < PARSED_AT_ONCE / len(GET)
    assert paths_of(reader) == [f"/{number}" for number in range(1000)]


def test_head_that_is_known_gives_the_same_request_whenever_its_body_comes(reader: RequestReader) -> None:
    for pieces in ([POST, b"hello"], [POST + b"hello"], [POST, b"he", b"llo"], [POST + b"hel", b"lo"]):
        for piece in pieces:
            assert reader.receive(piece)
        request = reader.current
        assert request is not None
        assert (request.head.path, request.body.complete, request.body.take()) == ("/p", True, b"hello")
        assert reader.next() is None


def test_rest_of_a_body_that_was_not_wanted_is_skipped(reader: RequestReader) -> None:
    reader.receive(POST + b"he")
    assert reader.next() is None
    reader.receive(b"llo" + GET % 1)
    assert paths_of(reader) == ["/1"]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no Host"),
        (b"NOTHING\r\n\r\n", "Invalid method encountered"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it speaks gRPC, for which there is another port"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n", "CONNECT"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_malformed_bytes_end_the_reading_behind_the_requests_before_them_and_say_why(
    reader: RequestReader, data: bytes, fault: str
) -> None:
    assert not reader.receive(GET % 1 + data)
    assert (reader.broken, reader.fault, reader.fault_is_late) == (True, fault, False)
    assert paths_of(reader) == ["/1"]


def test_fault_in_the_body_of_a_request_that_is_answered_is_late(reader: RequestReader) -> None:
    reader.receive(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    reader.next()
    assert not reader.receive(b"no size\r\n")
    assert reader.fault_is_late
