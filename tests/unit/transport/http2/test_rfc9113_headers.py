"""Header blocks, trailers and malformed requests (RFC 9113, sections 4.3, 6.2, 6.10 and 8)."""

from __future__ import annotations

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import REQUEST, ConnectionFixture, Fields
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

PROTOCOL = ErrorCode.PROTOCOL_ERROR


def without(*names: bytes) -> list[tuple[bytes, bytes]]:
    return [field for field in REQUEST if field[0] not in names]


def with_(*fields: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """A request where these fields replace those of the same names, or follow."""
    new = dict(fields)
    kept = [(name, new.pop(name, value)) for name, value in REQUEST]
    return [*kept, *((name, value) for name, value in fields if name in new)]


@pytest.mark.parametrize("padding", [None, 0, 1, 255])
@pytest.mark.parametrize("depends_on", [None, 0, 1, 3, 1 << 31])
def test_headers_come_without_padding_and_priority(
    conn: ConnectionFixture, padding: int | None, depends_on: int | None
) -> None:
    """6.2; a stream that depends on itself (1) is no error any more: 5.3.2"""
    conn.send(h2.headers(1, conn.peer.block(), padding=padding, depends_on=depends_on, ended=True))
    assert conn.events == [h2.Event("request", 1, tuple(REQUEST), True)]


def test_padding_may_fill_the_whole_first_frame(conn: ConnectionFixture) -> None:
    """6.2"""
    conn.send(h2.headers(1, conn.peer.block(), padding=200, cuts=[0]))
    assert conn.events[0].value == tuple(REQUEST)


def test_a_header_block_may_come_in_any_number_of_pieces(conn: ConnectionFixture) -> None:
    """4.3, 6.10"""
    for number, pieces in ((1, 16), (3, 1), (5, 2), (7, 5)):
        block = conn.peer.block([*REQUEST, (b"number", b"%d" % number)])
        step = -(-len(block) // pieces)
        conn.send(h2.headers(number, block, cuts=range(step, len(block), step)))
    assert [event.value[-1] for event in conn.events] == [(b"number", b"%d" % number) for number in (1, 3, 5, 7)]


@pytest.mark.parametrize("flags", [0, h2.END_STREAM])
def test_end_stream_counts_on_headers_and_not_on_continuation(conn: ConnectionFixture, flags: int) -> None:
    """6.2, 6.10: of the flags of CONTINUATION all others but END_HEADERS are ignored."""
    block = conn.peer.block()
    conn.send(h2.raw(h2.HEADERS, flags, 1, block[:4]), h2.raw(h2.CONTINUATION, 0xFF, 1, block[4:]))
    assert conn.events == [h2.Event("request", 1, tuple(REQUEST), flags == h2.END_STREAM)]


@pytest.mark.parametrize(
    "between",
    [
        h2.data(1, b"x"),
        h2.headers(1, b""),
        h2.headers(3, b""),
        h2.priority(1),
        h2.rst_stream(1),
        h2.settings(),
        h2.settings_ack(),
        h2.push_promise(1, 2),
        h2.ping(),
        h2.goaway(),
        h2.window_update(0, 1),
        h2.continuation(3),
        h2.continuation(0),
        h2.raw(0x42, 0, 1),
    ],
    ids=range(14),
)
def test_a_frame_inside_a_header_block_is_a_protocol_error(conn: ConnectionFixture, between: bytes) -> None:
    """4.3, 6.2, 6.10; unknown frames too: 5.5"""
    conn.send(conn.peer.call(9), h2.raw(h2.HEADERS, 0, 11, conn.peer.block()))
    conn.events.clear()
    conn.send(between, h2.continuation(11))
    assert conn.fault is PROTOCOL
    assert [event.name for event in conn.events] == ["reset"]


def test_continuation_after_the_end_of_a_block_is_a_protocol_error(conn: ConnectionFixture) -> None:
    """6.10"""
    block = conn.peer.block()
    conn.send(h2.headers(1, block, cuts=[4]), h2.continuation(1))
    assert conn.fault is PROTOCOL


@pytest.mark.parametrize(
    ("limits", "pieces"),
    [
        (Limits(max_continuations=5), [b"", *[b"\0"] * 5]),
        (Limits(max_header_list=5_000), [bytes(16_000), bytes(4_000)]),
    ],
    ids=["many frames", "many bytes"],
)
def test_an_endless_header_block_is_cut_off(limits: Limits, pieces: list[bytes]) -> None:
    """10.5.1"""
    conn = ConnectionFixture(limits)
    conn.send(h2.raw(h2.HEADERS, 0, 1, pieces[0]), *[h2.continuation(1, piece, last=False) for piece in pieces[1:]])
    assert conn.fault is None
    conn.send(h2.continuation(1, b"\0", last=False))
    assert conn.fault is ErrorCode.ENHANCE_YOUR_CALM


BAD_BLOCKS = {
    "index 0": b"\x80",
    "index beyond the tables": b"\xff\x80\x01",
    "cut literal": b"\x00\x05ab",
    "cut integer": b"\xff",
    "integer without an end": b"\xff" + b"\x80" * 20 + b"\x01",
    "bad huffman": b"\x00\x01a\x84\xff\xff\xff\xff",
    "table too large": b"\x3f\xe2\x1f",
    "size update behind a field": b"\x82\x20",
}


@pytest.mark.parametrize("block", BAD_BLOCKS.values(), ids=BAD_BLOCKS)
@pytest.mark.parametrize("where", ["request", "trailers", "refused", "on a reset stream", "after end"])
def test_a_block_that_cannot_be_decoded_is_a_compression_error(block: bytes, where: str) -> None:
    """4.3: of the connection, wherever it comes."""
    conn = ConnectionFixture(Limits(max_streams=1))
    conn.send(conn.peer.call(1) if where == "after end" else conn.peer.open(1))
    if where == "on a reset stream":
        conn.connection.reset(conn.calls[1], ErrorCode.CANCEL)
        conn.take()
    conn.send(h2.headers(3 if where in ("request", "refused") else 1, block, ended=True))
    assert conn.fault is ErrorCode.COMPRESSION_ERROR


def test_fields_come_as_they_were_sent_in_every_kind_of_representation(conn: ConnectionFixture) -> None:
    """4.3"""
    fields: Fields = [*REQUEST, (b"a", b""), (b"x-long", b"v" * 300), (b"bytes", bytes(range(128, 256))), (b"a", b"2")]
    for number, huffman in ((1, True), (3, False), (5, True), (7, True)):
        conn.send(h2.headers(number, conn.peer.block(fields, huffman)))
    assert [event.value for event in conn.events] == [tuple(fields)] * 4


def test_a_header_list_above_the_bound_arrives_as_none() -> None:
    """10.5.1: the owner has an answer for it, and the tables stay right."""
    conn = ConnectionFixture(Limits(max_header_list=1000))
    conn.send(conn.peer.open(1, [*REQUEST, (b"large", b"v" * 1000)]), conn.peer.open(3, [*REQUEST, (b"small", b"v")]))
    assert [event.value and event.value[-1] for event in conn.events] == [None, (b"small", b"v")]


MALFORMED: dict[str, Fields] = {
    "8.2.1 upper case": with_((b"Name", b"v")),
    "8.2.1 LF in a value": with_((b"a", b"v\nv")),
    "8.2.2 connection": with_((b"connection", b"close")),
    "8.3 pseudo-header behind others": [*REQUEST[1:], REQUEST[0]],
    "8.3.1 pseudo-header twice": [REQUEST[2], *REQUEST],
    "8.3.1 no path": without(b":path"),
    "8.3.1 nothing at all": [],
    "8.5 connect with a path": with_((b":method", b"CONNECT")),
    "8.1.1 content-length is no number": with_((b"content-length", b"-1")),
    "8.1.1 two content-lengths": [*REQUEST, (b"content-length", b"1"), (b"content-length", b"2")],
}
"""Some of every kind; the rules themselves are tested with :mod:`fields`."""


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("ended", [True, False])
def test_a_malformed_request_is_a_stream_error_and_no_call(
    conn: ConnectionFixture, fields: Fields, ended: bool
) -> None:
    """8.1.1"""
    conn.send(h2.headers(1, conn.peer.block(fields), ended=ended))
    assert (conn.resets, conn.events, conn.fault) == ([(1, PROTOCOL)], [], None)
    assert (conn.connection.busy, conn.connection.streams) == (0, {})
    conn.send(h2.data(1, b"on its way"), h2.headers(1, conn.peer.block([(b"t", b"1")]), ended=True), conn.peer.call(3))
    assert conn.names() == ["request"]
    assert len(conn.resets) == 1


BAD_TRAILERS: dict[str, Fields] = {
    "pseudo-header": [(b":path", b"/")],
    "upper case": [(b"Name", b"v")],
    "LF": [(b"name", b"v\n")],
    "connection": [(b"connection", b"close")],
    "too large": [(b"name", b"v" * 20_000)],
    "not the end of the stream": [(b"t", b"1")],
}


@pytest.mark.parametrize("name", BAD_TRAILERS)
def test_malformed_trailers_are_a_stream_error(conn: ConnectionFixture, name: str) -> None:
    """8.1, 8.1.1"""
    conn.send(conn.peer.open(1), h2.data(1, b"x"))
    block, ended = conn.peer.block(BAD_TRAILERS[name]), name != "not the end of the stream"
    conn.send(h2.headers(1, block, ended=ended, cuts=[16_000] if len(block) > 16_000 else []))
    assert (conn.resets, conn.names(), conn.fault) == ([(1, PROTOCOL)], ["request", "data", "reset"], None)


def test_trailers_end_a_request(conn: ConnectionFixture) -> None:
    """8.1"""
    conn.send(conn.peer.open(1), h2.data(1, b"x"), h2.headers(1, conn.peer.block([(b"t", b"1")]), ended=True))
    assert conn.events[1:] == [h2.Event("data", 1, b"x"), h2.Event("data", 1, b"", True)]


LENGTHS = {
    "none for 3": ([], True, 3),
    "short": ([b"ab"], True, 3),
    "long": ([b"abcd"], False, 3),
    "long in two": ([b"ab", b"cd"], False, 3),
    "more than nothing": ([b"a"], False, 0),
}


@pytest.mark.parametrize(("pieces", "ended", "length"), LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("how", ["data", "trailers", "padded"])
def test_contents_of_another_size_than_promised_are_a_stream_error(
    conn: ConnectionFixture, pieces: list[bytes], ended: bool, length: int, how: str
) -> None:
    """8.1.1"""
    opening = conn.peer.open(1, with_((b"content-length", b"%d" % length)))
    padding = 9 if how == "padded" else None
    body = [h2.data(1, piece, padding=padding) for piece in pieces]
    last = h2.headers(1, conn.peer.block([]), ended=True) if how == "trailers" else h2.data(1, ended=True)
    conn.send(opening, *body, *([last] if ended else []))
    assert (conn.resets, conn.fault) == ([(1, PROTOCOL)], None)
    assert conn.names()[-1] == "reset"
    assert not any(event.ended for event in conn.events)


def test_a_request_that_promises_contents_and_has_none_is_a_stream_error(conn: ConnectionFixture) -> None:
    """8.1.1"""
    conn.send(h2.headers(1, conn.peer.block(with_((b"content-length", b"5"))), ended=True))
    assert (conn.resets, conn.events) == ([(1, PROTOCOL)], [])


@pytest.mark.parametrize("how", ["data", "trailers", "padded", "two", "empty last"])
def test_contents_of_the_promised_size_are_taken(conn: ConnectionFixture, how: str) -> None:
    """8.1.1"""
    opening = conn.peer.open(1, with_((b"content-length", b"4")))
    parts = {
        "data": [h2.data(1, b"abcd", ended=True)],
        "trailers": [h2.data(1, b"abcd"), h2.headers(1, conn.peer.block([]), ended=True)],
        "padded": [h2.data(1, b"abcd", padding=40, ended=True)],
        "two": [h2.data(1, b"ab"), h2.data(1, b"cd", ended=True)],
        "empty last": [h2.data(1, b"abcd"), h2.data(1, ended=True)],
    }
    conn.send(opening, *parts[how])
    assert conn.contents(1) == b"abcd"
    assert conn.events[-1].ended
    assert conn.resets == []
