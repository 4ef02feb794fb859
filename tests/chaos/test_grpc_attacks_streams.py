"""Streams that are broken off, by the client or by us because it asks for it: handlers that run are counted all the
time, until they have really ended."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, repeat

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_attacks import Attacker, AttackTest
from tests.support.grpc.transport_fixture import ECHO, PATIENCE, WAIT
from tests.support.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

LIMITS = Limits()
MESSAGE = b"\0\0\0\0\1x"
DEADLINE_EXCEEDED = 4
KEPT = 1000
"""Closed streams that are remembered, because frames for them may still be on their way."""
FAULTS: dict[str, tuple[Callable[[int], bytes], ErrorCode]] = {
    "data-after-the-end": (lambda at: h2.data(at, b"more"), ErrorCode.STREAM_CLOSED),
    "headers-after-the-end": (lambda at: h2.headers(at, b"\x00\x01x\x01y", ended=True), ErrorCode.STREAM_CLOSED),
    "window-by-0": (lambda at: h2.window_update(at, 0), ErrorCode.PROTOCOL_ERROR),
    "window-too-large": (lambda at: h2.window_update(at, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
}
"""What makes us reset a stream whose handler runs (CVE-2025-8671), and with which code."""


@pytest.mark.parametrize("stubborn", [False, True], ids=["", "stubborn"])
@pytest.mark.parametrize("fault", FAULTS)
def test_streams_that_the_server_is_made_to_reset_are_limited_like_resets(
    attack: AttackTest, fault: str, stubborn: bool
) -> None:
    provoke, code = FAULTS[fault]
    attack.service.stubborn = stubborn
    attacker = attack.attacker()
    block = attacker.request_block(WAIT)

    def call(at: int) -> bytes:
        return h2.headers(at, block) + h2.data(at, MESSAGE, ended=True)

    first = range(1, 201, 2)
    attacker.send(*map(call, first))
    attack.wait("started", 100)
    attacker.flood(
        b"".join(map(provoke, first)) + call(at) + provoke(at) if at == 201 else call(at) + provoke(at)
        for at in range(201, 100_201, 2)
    )
    assert attacker.end() == (ErrorCode.ENHANCE_YOUR_CALM, "stream_error_flood")
    most = LIMITS.stream_errors[0] + LIMITS.stream_errors[1] * attacker.seconds
    assert set(attacker.resets()) <= {(at, code) for at in range(1, 100_201, 2)}
    assert LIMITS.stream_errors[0] <= len(attacker.resets()) <= most
    attack.expect_closed("stream_error_flood")
    happened = attack.service.happened
    assert happened["started"] <= most + 1
    assert attack.numbers.resets_sent <= most
    wait_until(lambda: happened["cancelled"] == happened["started"], "all were told", PATIENCE)
    if stubborn:
        assert attack.numbers.streams >= 100, "they run on, and count"


def test_calls_whose_time_is_up_count_while_their_handlers_run() -> None:
    """The client has its status and may think the place is free."""
    limits = Limits(max_streams=100)
    with AttackTest(limits) as attack:
        attack.service.stubborn = True
        attacker = attack.attacker()
        block = attacker.request_block(WAIT, (b"grpc-timeout", b"50m"))
        attacker.send(*[h2.headers(at, block) + h2.data(at, MESSAGE, ended=True) for at in range(1, 201, 2)])
        wait_until(lambda: attack.numbers.calls[WAIT, DEADLINE_EXCEEDED] == 100, "all have their status", PATIENCE)
        attacker.send(*[h2.headers(at, block) + h2.data(at, MESSAGE, ended=True) for at in range(201, 401, 2)])
        attacker.sync()
        assert attack.numbers.refused == 100
        assert attack.service.happened["started"] <= 100
        assert attack.numbers.streams >= 100
        attack.service.open()
        wait_until(lambda: attack.numbers.streams <= 1, "the places are free", PATIENCE)
        attacker.request(401, ECHO, MESSAGE)
        assert attacker.status(401)[0] == 0


def test_100000_refused_calls_leave_nothing_behind() -> None:
    """With no bound for how many are refused: each is forgotten, but for the last ones."""
    with AttackTest(Limits(max_streams=1, stream_errors=(1e9, 1e9), pings=(1e9, 1e9), max_ping_strikes=0)) as attack:
        attacker = attack.attacker()
        block = attacker.request_block(WAIT)
        attacker.send(h2.headers(1, block))
        attacker.sync()
        for first in range(3, 200_003, 2000):
            pieces = [h2.headers(at, block) + h2.data(at, MESSAGE, ended=True) for at in range(first, first + 2000, 2)]
            attacker.flood([b"".join(pieces)])
            attacker.sync()
            attacker.frames.clear()
        assert attack.numbers.refused == 100_000
        assert attack.numbers.streams <= 2
        assert all(len(made._closed_streams._left) <= KEPT for made in attack.connections())
        assert attack.numbers.closed.total() == 0
        attacker.send(h2.rst_stream(1))
        attacker.request(200_003, ECHO, MESSAGE)
        assert attacker.status(200_003)[0] == 0


def test_frames_for_streams_that_the_server_has_reset_are_a_flood_in_the_end(
    attack: AttackTest, attacker: Attacker
) -> None:
    attacker.send(h2.headers(1, attacker.request_block(WAIT)), h2.window_update(1, 0))
    attacker.flood(repeat(h2.data(1, b"x") * 100, 10_000))
    assert attacker.end() == (ErrorCode.ENHANCE_YOUR_CALM, "odd_frame_flood")
    attack.expect_closed("odd_frame_flood")


def test_data_for_streams_that_are_answered_is_a_flood_in_the_end(attack: AttackTest, attacker: Attacker) -> None:
    attacker.send(h2.headers(1, attacker.request_block("/no/such"), ended=True))
    attacker.flood(repeat(h2.data(1, b"x") * 100, 10_000))
    assert attacker.end() == (ErrorCode.ENHANCE_YOUR_CALM, "stream_error_flood")
    assert set(attacker.resets()) == {(1, ErrorCode.STREAM_CLOSED)}
    assert len(attacker.resets()) <= LIMITS.stream_errors[0] + LIMITS.stream_errors[1] * attacker.seconds
    attack.expect_closed("stream_error_flood")


def test_stream_numbers_run_out_and_the_connection_goes_on_to_its_end(attack: AttackTest, attacker: Attacker) -> None:
    attacker.request(2**31 - 1, ECHO, MESSAGE)
    assert attacker.status(2**31 - 1)[0] == 0
    attacker.send(*islice(repeat(h2.headers(1, attacker.request_block(ECHO), ended=True)), 1))
    assert attacker.end()[0] is ErrorCode.PROTOCOL_ERROR
    attack.expect_closed("protocol")


def test_many_attackers_at_once_each_come_to_their_own_end(attack: AttackTest) -> None:
    """Forty connections, and each comes again with what ended it."""
    for _ in range(2):
        attackers = [attack.attacker() for _ in range(20)]
        block = attackers[0].request_block(WAIT)
        for attacker in attackers:
            calls = (h2.headers(at, block) + h2.rst_stream(at) for at in range(1, 20_001, 2))
            attacker.flood(b"".join(islice(calls, 100)) for _ in range(100))
        for attacker in attackers:
            assert attacker.end() == (ErrorCode.ENHANCE_YOUR_CALM, "rapid_reset")
    attack.expect_closed("rapid_reset", 40)
