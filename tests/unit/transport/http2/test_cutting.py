"""A connection is a stream of bytes: where the network cuts it must not matter.

Recorded sessions go through a connection whole, cut in two at every place, byte by byte, and cut at random. What the
owner is told and what the server answers is the same, byte for byte.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import REQUEST, ConnectionFixture, Event, Peer
from tests.support.profiles import examples
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.limits import Limits

LIMITS = Limits(max_streams=4, stream_window=60, connection_window=65_535, max_header_list=400)


class AnsweringFixture(ConnectionFixture):
    """Answers every request when it has come, with its own contents."""

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        super().on_data(stream, data, ended)
        if ended:
            self.connection.answer(stream, h2.RESPONSE_HEADERS, self.contents(stream.id), h2.TRAILERS)
            self.connection.release(stream)


def calls(peer: Peer) -> list[bytes]:
    """Plain ones, abreast, with contents in pieces."""
    return [
        peer.open(1),
        peer.open(3, [*REQUEST, (b"grpc-timeout", b"100m")]),
        h2.data(1, b"first"),
        h2.data(3, b"second", ended=True),
        h2.data(1, b""),
        h2.data(1, b"", ended=True),
        *(
            peer.call(number, b"x" * number, [*REQUEST, (b"grpc-timeout", b"%dm" % number)])
            for number in range(5, 15, 2)
        ),
    ]


def pieces(peer: Peer) -> list[bytes]:
    """Padding, priorities, CONTINUATION, trailers."""
    block = peer.block()
    last = peer.block([(b"checksum", b"1234"), (b"other", b"v" * 50)])
    return [
        h2.headers(1, block, padding=7, depends_on=0, cuts=[0, 1, 5, len(block)]),
        h2.data(1, b"padded", padding=20),
        h2.data(1, b"", padding=0),
        h2.headers(1, last, ended=True, padding=3, cuts=[10, 11]),
        peer.call(3, b"plain"),
    ]


def windows(peer: Peer) -> list[bytes]:
    """Answers that wait for windows, windows that are used up and given back."""
    return [
        h2.settings([(h2.INITIAL_WINDOW, 3), (h2.HEADER_TABLE_SIZE, 100)]),
        peer.open(1),
        *[h2.data(1, bytes(range(25)))] * 4,
        h2.data(1, b"end", ended=True),
        h2.window_update(1, 10),
        h2.ping(b"inbetwee"),
        h2.settings([(h2.INITIAL_WINDOW, 50)]),
        h2.window_update(0, 70_000),
        h2.window_update(1, 2_000),
    ]


def oddments(peer: Peer) -> list[bytes]:
    """Errors of streams, and what is ignored."""
    return [
        h2.raw(0x42, 7, 9, b"unknown"),
        h2.priority(5),
        peer.call(1, b"x", [*REQUEST, (b"Bad", b"name")]),
        *(peer.open(number) for number in (3, 5, 7, 9, 11)),
        h2.rst_stream(3),
        h2.data(3, b"late"),
        h2.window_update(5, 0),
        h2.data(7, bytes(61)),
        h2.goaway(0),
        h2.data(9, b"fine", ended=True),
        h2.ping(ack=True),
        peer.open(13, [*REQUEST, (b"large", b"v" * 300)]),
    ]


ENDS: dict[str, Callable[[Peer], bytes]] = {
    "whole": lambda peer: b"",
    "half a frame": lambda peer: h2.ping()[:-3],
    "half a block": lambda peer: h2.raw(h2.HEADERS, 0, 99, peer.block()) + h2.continuation(99, b"", last=False),
    "wrong stream": lambda peer: h2.data(0, b"x") + peer.call(101),
    "too large": lambda peer: h2.raw(h2.DATA, 0, 1, length=LIMITS.max_frame + 1) + bytes(30),
    "bad block": lambda peer: h2.headers(99, b"\xff\xff\xff") + h2.ping(),
    "interrupted": lambda peer: h2.raw(h2.HEADERS, 0, 99, peer.block()) + h2.ping() + h2.ping(),
    "garbage": lambda peer: random.Random(1).randbytes(80),
}
SESSIONS = (calls, pieces, windows, oddments)
CASES = [(session, end) for session in SESSIONS for end in ENDS]
THOROUGH = [case for case in CASES if case[0] is pieces or case[1] == "whole"]


def names(cases: list[tuple[Callable[[Peer], list[bytes]], str]]) -> list[str]:
    return [f"{session.__name__}-{end.replace(' ', '_')}" for session, end in cases]


def record(session: Callable[[Peer], list[bytes]], end: str) -> bytes:
    peer = Peer()
    return b"".join([h2.PREFACE, h2.settings(), *session(peer), ENDS[end](peer)])


def play(parts: Sequence[bytes]) -> tuple[list[Event], bytes, str | None, object]:
    """What happens when that comes, part by part: events, output, end, numbers."""
    conn = AnsweringFixture(LIMITS, preface=False)
    for part in parts:
        conn.connection.receive(part)
    conn.take()
    numbers = conn.numbers
    numbers.bytes_received = 0  # what comes after a fault is not counted
    return conn.events, bytes(conn.output), conn.connection.closing, numbers


@pytest.mark.parametrize(("session", "end"), THOROUGH, ids=names(THOROUGH))
def test_a_session_cut_in_two_anywhere_is_the_same(session: Callable[[Peer], list[bytes]], end: str) -> None:
    whole = record(session, end)
    expected = play([whole])
    assert len(expected[0]) > 3
    for at in range(1, len(whole)):
        assert play([whole[:at], whole[at:]]) == expected, f"cut at {at}"


@pytest.mark.parametrize(("session", "end"), CASES, ids=names(CASES))
def test_a_session_that_comes_byte_by_byte_is_the_same(session: Callable[[Peer], list[bytes]], end: str) -> None:
    whole = record(session, end)
    assert play([whole[at : at + 1] for at in range(len(whole))]) == play([whole])


@examples(150)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 1500), max_size=12))
def test_a_session_cut_at_random_is_the_same(case: tuple[Callable[[Peer], list[bytes]], str], cuts: list[int]) -> None:
    whole = record(*case)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    assert play([whole[a:b] for a, b in itertools.pairwise(places)]) == play([whole])


@pytest.mark.parametrize(
    ("end", "kind", "code"),
    [
        ("wrong stream", "protocol", ErrorCode.PROTOCOL_ERROR),
        ("too large", "protocol", ErrorCode.FRAME_SIZE_ERROR),
        ("bad block", "protocol", ErrorCode.COMPRESSION_ERROR),
    ],
)
def test_the_sessions_end_as_their_names_say(end: str, kind: str, code: ErrorCode) -> None:
    """Else the tests above would compare nothing with nothing."""
    for session in SESSIONS:
        _, output, closing, _ = play([record(session, end)])
        last = Peer().read(output)[-1]
        assert (closing, last.kind, last.value) == (kind, h2.GOAWAY, code)


def test_the_time_of_something_incomplete_is_that_of_its_beginning() -> None:
    conn = ConnectionFixture(preface=False)
    connection = conn.connection
    assert connection.partial_since == 0.0
    for step, part in enumerate([h2.PREFACE[:5], h2.PREFACE[5:], h2.settings()[:4]]):
        conn.clock.advance(1)
        conn.send(part)
        assert connection.partial_since is not None, step
    conn.clock.advance(1)
    conn.send(h2.settings()[4:])
    assert connection.partial_since is None
    block = conn.peer.block()
    for at, part in enumerate([h2.ping()[:3], h2.ping()[3:] + h2.raw(h2.HEADERS, 0, 1, block[:3])[:5]]):
        conn.clock.advance(1)
        conn.send(part)
        assert connection.partial_since == 5.0 + at
    conn.clock.advance(1)
    conn.send(h2.raw(h2.HEADERS, 0, 1, block[:3])[5:], h2.continuation(1, block[3:])[:-1])
    since = connection.partial_since
    assert since is not None
    conn.clock.advance(1)
    conn.send(h2.continuation(1, block[3:])[-1:])
    assert connection.partial_since is None
    assert conn.names() == ["ping", "request"]


def test_contents_that_pause_inside_a_frame_are_nothing_incomplete(conn: ConnectionFixture) -> None:
    """A network may stop as long as it likes in an upload; the request has a time limit of its own."""
    conn.send(conn.peer.open(1), h2.data(1, bytes(100))[:50])
    conn.clock.advance(1)
    assert conn.connection.partial_since is None
    conn.send(h2.data(1, bytes(100))[50:])
    assert conn.names() == ["request", "data"]
