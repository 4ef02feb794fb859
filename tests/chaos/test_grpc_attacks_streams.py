"""Streams that are broken off, by the client or by us because it asks for it: handlers that run are counted all the
time, until they have really ended."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, repeat

import pytest

from tfs_lite.testing.grpc import http2_peer as h2
from tfs_lite.testing.grpc.http2_attacks import AttackTest
from tfs_lite.testing.grpc.transport_fixture import ECHO, PATIENCE, WAIT
from tfs_lite.testing.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

LIMITS = Limits()
MESSAGE = b"\0\0\0\0\1x"
DEADLINE_EXCEEDED = 4
KEPT = 1000
"""Of what was reset, because frames may still be on their way."""
FAULTS: dict[str, tuple[Callable[[int], bytes], ErrorCode]] = {
    "data-after-the-end": (lambda at: h2.data(at, b"more"), ErrorCode.STREAM_CLOSED),
    "headers-after-the-end": (lambda at: h2.headers(at, b"\x00\x01x\x01y", ended=True), ErrorCode.STREAM_CLOSED),
    "window-by-0": (lambda at: h2.window_update(at, 0), ErrorCode.PROTOCOL_ERROR),
    "window-too-large": (lambda at: h2.window_update(at, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
}
"""What makes us reset a stream whose handler runs (CVE-2025-8671), and with which code."""


@pytest.mark.parametrize("stubborn", [False, True], ids=["", "stubborn"])
@pytest.mark.parametrize("fault", FAULTS)
def test_streams_that_the_server_is_made_to_reset_are_as_dear_as_resets(fault: str, stubborn: bool) -> None:
    provoke, code = FAULTS[fault]
    with AttackTest() as siege:
        siege.service.stubborn = stubborn
        enemy = siege.enemy()
        block = enemy.opening(WAIT)

        def attack(at: int) -> bytes:
            return h2.headers(at, block) + h2.data(at, MESSAGE, ended=True)

        first = range(1, 201, 2)
        enemy.send(*map(attack, first))
        siege.wait("started", 100)
        enemy.pour(
            b"".join(map(provoke, first)) + attack(at) + provoke(at) if at == 201 else attack(at) + provoke(at)
            for at in range(201, 100_201, 2)
        )
        assert enemy.end() == (ErrorCode.ENHANCE_YOUR_CALM, "stream_error_flood")
        most = LIMITS.faults[0] + LIMITS.faults[1] * enemy.seconds
        assert set(enemy.resets()) <= {(at, code) for at in range(1, 100_201, 2)}
        assert LIMITS.faults[0] <= len(enemy.resets()) <= most
        siege.expect_closed("stream_error_flood")
        happened = siege.service.happened
        assert happened["started"] <= most + 1
        assert siege.numbers.resets_sent <= most
        wait_until(lambda: happened["cancelled"] == happened["started"], "all were told", PATIENCE)
        if stubborn:
            assert siege.numbers.streams >= 100, "they run on, and count"


def test_calls_whose_time_is_up_keep_their_places_while_their_handlers_run() -> None:
    """The client has its status and may think the place is free."""
    limits = Limits(max_streams=100)
    with AttackTest(limits) as siege:
        siege.service.stubborn = True
        enemy = siege.enemy()
        block = enemy.opening(WAIT, (b"grpc-timeout", b"50m"))
        enemy.send(*[h2.headers(at, block) + h2.data(at, MESSAGE, ended=True) for at in range(1, 201, 2)])
        wait_until(lambda: siege.numbers.calls[WAIT, DEADLINE_EXCEEDED] == 100, "all have their status", PATIENCE)
        enemy.send(*[h2.headers(at, block) + h2.data(at, MESSAGE, ended=True) for at in range(201, 401, 2)])
        enemy.sync()
        assert siege.numbers.refused == 100
        assert siege.service.happened["started"] <= 100
        assert siege.numbers.streams >= 100
        siege.service.open()
        wait_until(lambda: siege.numbers.streams <= 1, "the places are free", PATIENCE)
        enemy.request(401, ECHO, MESSAGE)
        assert enemy.status(401)[0] == 0


def test_100000_refused_calls_leave_nothing_behind() -> None:
    """With no bound for how many are refused: each is forgotten, but for the last ones."""
    with AttackTest(Limits(max_streams=1, faults=(1e9, 1e9), pings=(1e9, 1e9), max_ping_strikes=0)) as siege:
        enemy = siege.enemy()
        block = enemy.opening(WAIT)
        enemy.send(h2.headers(1, block))
        enemy.sync()
        for first in range(3, 200_003, 2000):
            pieces = [h2.headers(at, block) + h2.data(at, MESSAGE, ended=True) for at in range(first, first + 2000, 2)]
            enemy.pour([b"".join(pieces)])
            enemy.sync()
            enemy.frames.clear()
        assert siege.numbers.refused == 100_000
        assert siege.numbers.streams <= 2
        assert all(len(made._graves._left) <= KEPT for made in siege.connections())
        assert siege.numbers.closed.total() == 0
        enemy.send(h2.rst_stream(1))
        enemy.request(200_003, ECHO, MESSAGE)
        assert enemy.status(200_003)[0] == 0


def test_frames_for_streams_that_the_server_has_reset_are_a_flood_in_the_end() -> None:
    with AttackTest() as siege:
        enemy = siege.enemy()
        enemy.send(h2.headers(1, enemy.opening(WAIT)), h2.window_update(1, 0))
        enemy.pour(repeat(h2.data(1, b"x") * 100, 10_000))
        assert enemy.end() == (ErrorCode.ENHANCE_YOUR_CALM, "odd_frame_flood")
        siege.expect_closed("odd_frame_flood")


def test_data_for_streams_that_are_answered_is_a_flood_in_the_end() -> None:
    with AttackTest() as siege:
        enemy = siege.enemy()
        enemy.send(h2.headers(1, enemy.opening("/no/such"), ended=True))
        enemy.pour(repeat(h2.data(1, b"x") * 100, 10_000))
        assert enemy.end() == (ErrorCode.ENHANCE_YOUR_CALM, "stream_error_flood")
        assert set(enemy.resets()) == {(1, ErrorCode.STREAM_CLOSED)}
        assert len(enemy.resets()) <= LIMITS.faults[0] + LIMITS.faults[1] * enemy.seconds
        siege.expect_closed("stream_error_flood")


def test_stream_numbers_run_out_and_the_connection_goes_on_to_its_end() -> None:
    with AttackTest() as siege:
        enemy = siege.enemy()
        enemy.request(2**31 - 1, ECHO, MESSAGE)
        assert enemy.status(2**31 - 1)[0] == 0
        enemy.send(*islice(repeat(h2.headers(1, enemy.opening(ECHO), ended=True)), 1))
        assert enemy.end()[0] is ErrorCode.PROTOCOL_ERROR
        siege.expect_closed("protocol")


def test_many_attackers_at_once_each_come_to_their_own_end() -> None:
    """Forty connections, and each comes again with what ended it."""
    with AttackTest() as siege:
        for _ in range(2):
            enemies = [siege.enemy() for _ in range(20)]
            block = enemies[0].opening(WAIT)
            for enemy in enemies:
                calls = (h2.headers(at, block) + h2.rst_stream(at) for at in range(1, 20_001, 2))
                enemy.pour(b"".join(islice(calls, 100)) for _ in range(100))
            for enemy in enemies:
                assert enemy.end() == (ErrorCode.ENHANCE_YOUR_CALM, "rapid_reset")
        siege.expect_closed("rapid_reset", 40)
