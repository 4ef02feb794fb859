"""Messages that never become whole, become too large, or come in the smallest steps; writers that take their time."""

from __future__ import annotations

import gzip
import tracemalloc
from itertools import islice, repeat

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_attacks import Attacker, AttackTest, status_of
from tests.support.grpc.transport_fixture import ECHO, PATIENCE, TALK, TOTAL, WAIT
from tests.support.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import KIB, MIB, Limits

DEADLINE_EXCEEDED, EXHAUSTED, UNIMPLEMENTED, INTERNAL = 4, 8, 12, 13
FRAME = 16 * KIB


def last_status(attacker: Attacker, stream: int) -> int:
    return status_of(
        attacker.read_until(lambda frame: frame.stream == stream and frame.kind == h2.HEADERS and frame.ended)
    )


def test_half_received_messages_of_all_connections_have_one_bound() -> None:
    """32 clients leave half a megabyte each behind; the server keeps 4 and tells the others to come again."""
    limits = Limits(max_unread=4 * MIB, max_receive_message=4 * MIB)
    with AttackTest(limits) as attack:
        half = h2.message(bytes(240 * KIB), size=MIB)
        for _ in range(32):
            attacker = attack.attacker()
            pieces = [h2.data(1, half[at : at + FRAME]) for at in range(0, len(half), FRAME)]
            attacker.send(h2.headers(1, attacker.request_block(ECHO)), *pieces)
            attacker.sync()
            assert attack.numbers.unread <= limits.max_unread + FRAME
        kept = attack.numbers.calls[ECHO, EXHAUSTED]
        assert kept == 32 - limits.max_unread // len(half), "who came too late was told so"


def test_message_that_is_said_to_be_giant_reserves_nothing(attack: AttackTest, attacker: Attacker) -> None:
    """A thousand calls of 100 MiB each, by their own account."""
    block, claim = attacker.request_block(ECHO), h2.message(size=100 * MIB)
    tracemalloc.start()
    try:
        attacker.send(*[h2.headers(at, block) + h2.data(at, claim) for at in range(1, 2001, 2)])
        attacker.sync()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert attack.numbers.unread == 1000 * len(claim)
    assert held < 20 * MIB


@pytest.mark.parametrize("path", [ECHO, TOTAL, TALK])
def test_gzip_bomb_ends_its_call_at_the_bound(path: str) -> None:
    """A hundred to one and worse; no more is made of it than a message may be."""
    limits = Limits(max_receive_message=4 * MIB)
    bomb = gzip.compress(bytes(100 * MIB), 9)
    assert len(bomb) < limits.stream_window
    with AttackTest(limits) as attack:
        attacker = attack.attacker()
        block, body = attacker.request_block(path, (b"grpc-encoding", b"gzip")), h2.message(bomb, 1)
        tracemalloc.start()
        try:
            for stream in range(1, 9, 2):
                pieces = [h2.data(stream, body[at : at + FRAME]) for at in range(0, len(body), FRAME)]
                attacker.send(h2.headers(stream, block), *pieces, h2.data(stream, ended=True))
                assert last_status(attacker, stream) == EXHAUSTED
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert most < 5 * limits.max_receive_message


def test_message_in_frames_of_one_byte_is_answered_and_kept_small(attack: AttackTest, attacker: Attacker) -> None:
    size = 50_000
    body = h2.message(bytes(size))
    attacker.send(h2.headers(1, attacker.request_block(TOTAL)))
    tracemalloc.start()
    try:
        attacker.flood(h2.data(1, body[at : at + 1]) for at in range(size))
        attacker.sync()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert attack.numbers.unread == size
    assert held < 4 * size + MIB
    attacker.send(*[h2.data(1, body[at : at + 1], ended=at == size + 4) for at in range(size, size + 5)])
    assert last_status(attacker, 1) == 0


def test_empty_messages_that_no_handler_takes_cost_what_they_are_counted_for() -> None:
    """Five bytes each on the wire, and an object each in the server."""
    limits = Limits(max_unread=2 * MIB, max_receive_message=MIB)
    with AttackTest(limits) as attack:
        attacker = attack.attacker()
        wait = h2.message(b"wait")
        attacker.send(h2.headers(1, attacker.request_block(TALK)), h2.data(1, wait))
        attack.wait("taken", 1)
        block, burst = attacker.request_block(TALK), h2.message() * 3200
        tracemalloc.start()
        try:
            for stream in range(3, 9, 2):
                attacker.send(h2.headers(stream, block), h2.data(stream, wait), *[h2.data(stream, burst)] * 15)
            attacker.sync()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held < 2 * limits.max_unread
        assert attack.numbers.calls[TALK, EXHAUSTED] > 0


def test_empty_messages_that_are_taken_give_back_what_they_were_counted_for(attack: AttackTest) -> None:
    client = attack.attacker()
    client.send(h2.headers(1, client.request_block(TOTAL)), h2.data(1, h2.message() * 3000), h2.data(1, ended=True))
    assert last_status(client, 1) == 0
    assert attack.numbers.unread == 0
    assert attack.numbers.messages_received >= 3000


def test_call_that_is_over_does_not_begin_when_its_message_comes(attack: AttackTest) -> None:
    """Its status waits behind a socket that is not read; what still comes must not run a handler for it."""
    attacker = attack.attacker({h2.INITIAL_WINDOW: 2**31 - 1}, small=True)
    flow = b"65536"
    attacker.send(h2.window_update(0, 2**31 - 1 - 65_535))
    attacker.request(1, "/test.Service/flow", h2.message(flow))
    wait_until(lambda: attack.numbers.unsent > 0, "the socket is full", PATIENCE)
    block = attacker.request_block(WAIT, (b"grpc-timeout", b"1n"))
    attacker.send(*[h2.headers(stream, block) for stream in range(3, 103, 2)])
    wait_until(lambda: attack.numbers.calls[WAIT, DEADLINE_EXCEEDED] == 50, "all are over", PATIENCE)
    entered = attack.service.happened["acquired"] - attack.control.answered
    before = attack.numbers.bytes_received
    attacker.send(*[h2.data(stream, h2.message(b"x"), ended=True) for stream in range(3, 103, 2)])
    wait_until(lambda: attack.numbers.bytes_received >= before + 50 * 15, "all have come", PATIENCE)
    attack.control.wait_more(20)
    assert attack.service.happened["started"] == 0
    assert attack.service.happened["acquired"] - attack.control.answered <= entered + 2


@pytest.mark.parametrize("begun", ["", "preface", "frame"])
def test_writer_that_never_ends_what_it_began_is_closed_in_time(begun: str) -> None:
    """Of the preface, or of a frame: a byte now and then does not put it off."""
    with AttackTest(Limits(handshake_timeout=0.3)) as attack:
        attacker = attack.attacker(preface=begun == "frame")
        if begun:
            attacker.send(h2.PREFACE[:10] if begun == "preface" else h2.headers(1, bytes(100))[:20])
        pieces = repeat(b"\0" if begun == "frame" else b"", 1)
        attacker.flood(pieces)
        attacker.rest()
        attacker.close()
        attack.expect_closed("handshake")


def test_writer_that_never_ends_its_message_is_answered_in_time() -> None:
    with AttackTest(Limits(request_timeout=0.3)) as attack:
        attacker = attack.attacker()
        block, begun = attacker.request_block(ECHO), h2.message(b"x", size=100)
        attacker.send(*[h2.headers(at, block) + h2.data(at, begun) for at in range(1, 201, 2)])
        for at in range(1, 201, 2):
            assert last_status(attacker, at) == DEADLINE_EXCEEDED
        wait_until(lambda: attack.numbers.unread == 0, "nothing is kept", PATIENCE)


def test_stream_of_messages_that_no_handler_takes_stops_at_its_window() -> None:
    limits = Limits()
    with AttackTest(limits) as attack:
        attacker = attack.attacker()
        wait = h2.message(b"wait")
        attacker.send(h2.headers(1, attacker.request_block(TALK)), h2.data(1, wait))
        attack.wait("taken", 1)
        attacker.flood(islice(repeat(h2.data(1, h2.message(bytes(FRAME - 5)))), 100))
        ended = attacker.read_until(lambda frame: frame.kind == h2.RST_STREAM)
        assert ended.value == ErrorCode.FLOW_CONTROL_ERROR
        assert attack.numbers.unread <= limits.stream_window
        attacker.sync()
