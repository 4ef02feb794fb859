"""What the server sends, and how the client's windows and frame sizes hold it back (RFC 9113, 4.2, 5.1, 5.2, 6.9)."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import ConnectionFixture
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits


def sizes(conn: ConnectionFixture, stream: int) -> list[int]:
    return [len(frame.payload) for frame in conn.frames if (frame.kind, frame.stream) == (h2.DATA, stream)]


def message(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_an_answer_is_headers_data_and_trailers(conn: ConnectionFixture) -> None:
    """8.1"""
    conn.send(conn.peer.call(1, b"x"))
    opening, contents, trailers = conn.answer(1, b"hello")
    assert (opening.kind, opening.fields, opening.ended) == (h2.HEADERS, ((b":status", b"200"),), False)
    assert (contents.kind, contents.payload, contents.ended) == (h2.DATA, b"\0\0\0\0\x05hello", False)
    assert (trailers.kind, trailers.fields, trailers.ended) == (h2.HEADERS, ((b"grpc-status", b"0"),), True)


@pytest.mark.parametrize("size", [16_384 - 5, 16_384 - 4, 50_000, 65_530])
def test_a_large_answer_leaves_in_frames_that_the_client_takes(conn: ConnectionFixture, size: int) -> None:
    """4.2"""
    conn.send(conn.peer.call(1))
    conn.answer(1, message(size))
    assert conn.sent(1)[5:] == message(size)
    assert max(sizes(conn, 1)) <= 16_384
    assert conn.frames[-1].ended


def test_larger_frames_are_used_once_the_client_allows_them(conn: ConnectionFixture) -> None:
    """6.5.2"""
    conn.send(conn.peer.settings({h2.MAX_FRAME: 60_000}), conn.peer.call(1))
    conn.answer(1, message(59_000))
    assert sizes(conn, 1) == [59_005]


@pytest.mark.parametrize("max_frame", [16_384, 2**24 - 1])
@pytest.mark.parametrize("window", [1, 100, 65_535, 1_000_000])
def test_an_answer_larger_than_a_window_leaves_in_pieces(conn: ConnectionFixture, window: int, max_frame: int) -> None:
    """6.9.1"""
    conn.send(conn.peer.settings({h2.INITIAL_WINDOW: window, h2.MAX_FRAME: max_frame}))
    conn.send(h2.window_update(0, 10_000_000), conn.peer.call(1))
    size = window * 2 + 77
    conn.answer(1, message(size))
    assert len(conn.sent(1)) == window
    for step in (1, window, 2, 79):
        before = len(conn.sent(1))
        conn.send(h2.window_update(1, step))
        assert len(conn.sent(1)) == before + step
    assert conn.sent(1)[5:] == message(size)
    assert conn.frames[-1].ended
    assert conn.connection.streams == {}


def test_an_answer_larger_than_the_connections_window_leaves_in_pieces(conn: ConnectionFixture) -> None:
    """6.9.1"""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 2**31 - 1)]), conn.peer.call(1))
    conn.answer(1, message(100_000))
    assert len(conn.sent(1)) == 65_535
    conn.send(h2.window_update(0, 10))
    assert len(conn.sent(1)) == 65_545
    conn.send(h2.window_update(0, 100_000))
    assert conn.sent(1)[5:] == message(100_000)
    assert conn.frames[-1].ended


@pytest.mark.parametrize("blocked", ["stream", "connection"])
def test_headers_pass_contents_that_wait(conn: ConnectionFixture, blocked: str) -> None:
    """5.2.1, 6.9: only DATA is held back."""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 0 if blocked == "stream" else 2**31 - 1)]))
    conn.send(conn.peer.call(1), conn.peer.call(3))
    kinds = {frame.kind for frame in conn.answer(1, message(70_000))}
    assert kinds == ({h2.HEADERS} if blocked == "stream" else {h2.HEADERS, h2.DATA})
    conn.connection.headers(conn.calls[3], h2.TRAILERS, True)
    assert [(frame.stream, frame.kind, frame.ended) for frame in conn.take()] == [(3, h2.HEADERS, True)]


def test_trailers_need_no_window(conn: ConnectionFixture) -> None:
    """6.9.1: an answer that ends exactly at the window is whole."""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 10)]), conn.peer.call(1))
    assert conn.answer(1, b"12345")[-1].ended


def test_a_stream_that_waits_for_its_own_window_does_not_hold_up_the_others(conn: ConnectionFixture) -> None:
    """5.2.1"""
    conn.send(conn.peer.call(1), conn.peer.call(3))
    conn.send(h2.window_update(0, 1_000_000))
    conn.answer(1, message(100_000))
    assert conn.sent(3) == b""
    assert conn.answer(3, b"quick")[-1].ended


def test_settings_can_make_a_window_negative_and_the_answer_waits_until_it_is_positive(conn: ConnectionFixture) -> None:
    """6.9.2: the example of the RFC, in other numbers."""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 1000)]), conn.peer.call(1))
    conn.answer(1, message(3000))
    assert len(conn.sent(1)) == 1000
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 400)]))  # the window is -600
    assert len(conn.sent(1)) == 1000
    conn.send(h2.window_update(1, 600))
    assert len(conn.sent(1)) == 1000
    conn.send(h2.window_update(1, 1))
    assert len(conn.sent(1)) == 1001
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 5000)]))
    assert conn.sent(1)[5:] == message(3000)
    assert conn.frames[-1].ended


def test_settings_that_widen_windows_let_all_that_waits_go(conn: ConnectionFixture) -> None:
    """6.9.2"""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 0)]), *(conn.peer.call(number) for number in (1, 3, 5)))
    for number in (1, 3, 5):
        conn.answer(number, message(100))
    assert [conn.sent(number) for number in (1, 3, 5)] == [b""] * 3
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 105)]))
    assert [conn.sent(number)[5:] for number in (1, 3, 5)] == [message(100)] * 3


def test_streams_that_share_the_connections_window_take_fair_turns(conn: ConnectionFixture) -> None:
    """5.2: no stream is starved."""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 2**31 - 1)]), *(conn.peer.call(number) for number in (1, 3, 5)))
    for number in (1, 3, 5):
        conn.answer(number, message(200_000))
    conn.frames.clear()
    for _ in range(9):
        conn.send(h2.window_update(0, 16_384))
    assert {number: len(conn.sent(number)) for number in (1, 3, 5)} == dict.fromkeys((1, 3, 5), 3 * 16_384)


@pytest.mark.parametrize("step", [1, 7, 16_384, 20_000, 100_000])
def test_small_answers_get_through_between_large_ones(conn: ConnectionFixture, step: int) -> None:
    """5.2"""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 2**31 - 1)]), conn.peer.call(1), conn.peer.call(3))
    conn.answer(1, message(1_000_000))
    conn.answer(3, b"tiny")
    turns = 0
    while not any(frame.stream == 3 and frame.ended for frame in conn.frames):
        conn.send(h2.window_update(0, step))
        turns += 1
    assert turns <= 20
    assert len(conn.sent(1)) <= 65_535 + turns * step


def test_random_windows_never_break_an_answer() -> None:
    """6.9: whatever the client opens when, every byte arrives once, in order, and never more than was allowed."""
    for seed in range(30):
        chance = random.Random(seed)
        conn = ConnectionFixture()
        window = chance.choice([0, 1, 500, 5000])
        conn.send(h2.settings([(h2.INITIAL_WINDOW, window)]))
        numbers = [1, 3, 5, 7]
        bodies = {number: message(chance.choice([0, 3, 3000, 40_000])) for number in numbers}
        allowed = dict.fromkeys(numbers, window)
        total = 65_535
        conn.send(*(conn.peer.call(number) for number in numbers))
        for number in numbers:
            conn.answer(number, bodies[number])
        while any(len(conn.sent(number)) < len(bodies[number]) + 5 for number in numbers):
            number, step = chance.choice([0, *numbers]), chance.choice([1, 10, 3000, 30_000])
            allowed = {key: value + (step if key == number else 0) for key, value in allowed.items()}
            total += step if number == 0 else 0
            conn.send(h2.window_update(number, step))
            assert sum(len(conn.sent(number)) for number in numbers) <= total
            assert all(len(conn.sent(number)) <= allowed[number] for number in numbers)
        assert all(conn.sent(number)[5:] == bodies[number] for number in numbers)
        assert sorted(frame.stream for frame in conn.frames if frame.ended) == numbers
        assert (conn.connection.streams, conn.connection.busy, conn.numbers.unsent) == ({}, 0, 0)


def test_data_of_a_stream_of_answers_keeps_its_order_and_tells_when_there_is_room(conn: ConnectionFixture) -> None:
    """5.2"""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 5)]), conn.peer.call(1))
    stream, connection = conn.calls[1], conn.connection
    connection.headers(stream, h2.RESPONSE_HEADERS)
    connection.data(stream, b"12345")
    assert not stream.queue
    for piece in (b"abc", b"def"):
        connection.data(stream, piece)
    assert stream.queue
    conn.take()
    conn.send(h2.window_update(1, 5))
    assert (conn.sent(1), "writable" in conn.names()) == (b"12345abcde", False)
    conn.send(h2.window_update(1, 5))
    assert (conn.sent(1), conn.names().count("writable"), bool(stream.queue)) == (b"12345abcdef", 1, False)
    connection.headers(stream, h2.TRAILERS, True)
    assert conn.take()[-1].ended


def test_a_socket_that_takes_no_more_holds_back_contents_and_not_the_count_of_control_frames() -> None:
    """10.5: what waits for a client that does not read is bounded."""
    conn = ConnectionFixture(Limits(max_control_queue=100))
    conn.send(conn.peer.call(1), conn.peer.call(3))
    conn.connection.outgoing.pause()
    conn.answer(1, message(1000))
    assert conn.frames == []
    conn.send(h2.ping(), h2.ping(), h2.ping(), h2.ping(), h2.ping())
    assert conn.connection.closing is None
    conn.send(h2.ping())
    assert conn.connection.closing == "slow_reader"


def test_what_waited_for_the_socket_goes_on_when_it_takes_more(conn: ConnectionFixture) -> None:
    """5.2"""
    conn.send(conn.peer.call(1), conn.peer.call(3))
    conn.connection.outgoing.pause()
    for number in (1, 3):
        conn.answer(number, message(1000))
    conn.awake = False
    conn.connection.outgoing.resume()
    assert conn.awake
    conn.take()
    assert [conn.sent(number)[5:] for number in (1, 3)] == [message(1000)] * 2


def test_a_flush_is_asked_for_whenever_there_is_output(conn: ConnectionFixture) -> None:
    """Of the interface: a flush that is not asked for never happens."""
    connection = conn.connection
    steps = [
        h2.settings([(h2.INITIAL_WINDOW, 3)]),
        conn.peer.call(1) + h2.ping(),
        h2.window_update(1, 2),
        h2.window_update(1, 100),
        h2.settings(),
        h2.rst_stream(99),
    ]
    for at, step in enumerate(steps):
        connection.receive(step)
        if at == 1:
            connection.answer(conn.calls[1], h2.RESPONSE_HEADERS, b"hello", h2.TRAILERS)
        assert conn.awake, f"step {at}"
        assert conn.take(), f"step {at}"
        assert not conn.awake
    assert conn.fault is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("window", [0, 3, 65_535])
def test_a_stream_whose_answer_is_out_is_gone_although_its_client_goes_on(window: int) -> None:
    """8.1: the client is told to stop, with NO_ERROR; else uncounted streams would pile up."""
    conn = ConnectionFixture(Limits(max_streams=10))
    conn.send(h2.settings([(h2.INITIAL_WINDOW, window)]))
    for number in itertools.islice(itertools.count(1, 2), 50):
        conn.send(conn.peer.open(number))
        conn.answer(number, b"early")
        conn.send(h2.window_update(number, 100))
        assert conn.frames[-1].ended or conn.frames[-1].kind == h2.RST_STREAM
    assert len(conn.connection.streams) <= 10
    assert {code for _, code in conn.resets} == {ErrorCode.NO_ERROR}
    assert conn.connection.busy == 0


def test_trailers_larger_than_a_frame_go_on_in_continuation(conn: ConnectionFixture) -> None:
    """4.2, 6.10: a handler may put much into them."""
    conn.send(conn.peer.call(1))
    fields = [(b"k%d" % number, b"v" * 3000) for number in range(10)]
    block = b"".join(b"\x00\x02%b\x7f\xb9\x16%b" % field for field in fields)
    conn.connection.headers(conn.calls[1], block, True)
    (last,) = conn.take()
    assert (last.fields, last.ended) == (tuple(fields), True)


def test_connection_whose_client_takes_no_answer_is_cut_before_they_pile_up() -> None:
    """10.5: what waits is at most the bound and one answer."""
    conn = ConnectionFixture(Limits(max_unsent=1000))
    conn.send(conn.peer.settings({h2.INITIAL_WINDOW: 0}))
    conn.send(conn.peer.call(1), conn.peer.call(3))
    conn.answer(1, bytes(900))
    assert conn.fault is None
    conn.answer(3, bytes(900))
    assert conn.fault is ErrorCode.ENHANCE_YOUR_CALM
    assert conn.connection.closing == "slow_reader"
    assert conn.numbers.unsent == 0
