"""Floods of frames that cost nothing to send, at full speed and against the default limits: each is read up to its
budget, then the connection ends with ENHANCE_YOUR_CALM; others do not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count, islice, repeat

import pytest

from tfs_lite.testing.grpc import http2_peer as h2
from tfs_lite.testing.grpc.http2_attacks import Attacker, AttackTest
from tfs_lite.testing.grpc.transport_fixture import ECHO, LOOPS, WAIT
from tfs_lite.testing.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

CALM = ErrorCode.ENHANCE_YOUR_CALM
LIMITS = Limits()
MESSAGE = b"\0\0\0\0\1x"
READ_AT_ONCE = 1 << 18
"""Bytes that a loop may give a connection in one piece."""
PACK = 100
"""Frames to a write: sent one by one, most of the time would be the client's."""

Frames = Callable[[Attacker], Iterator[bytes]]


def packed(frames: Iterator[bytes]) -> Iterator[bytes]:
    while pack := b"".join(islice(frames, PACK)):
        yield pack


def streams() -> Iterator[int]:
    return count(1, 2)


def rapid_resets(enemy: Attacker) -> Iterator[bytes]:
    block = enemy.opening(WAIT)
    for stream in islice(streams(), 100_000):
        yield h2.headers(stream, block) + h2.data(stream, MESSAGE, ended=True) + h2.rst_stream(stream)


def resets_of_answered_calls(enemy: Attacker) -> Iterator[bytes]:
    """Each answered call earns one RST_STREAM; these are two each."""
    block = enemy.opening("/no/such")
    for stream in islice(streams(), 100_000):
        yield h2.headers(stream, block, ended=True) + 2 * h2.rst_stream(stream)


def resets_of_one_stream(enemy: Attacker) -> Iterator[bytes]:
    call = h2.headers(1, enemy.opening("/no/such"), ended=True)
    return chain([call], repeat(h2.rst_stream(1), 100_000))


def pings(enemy: Attacker) -> Iterator[bytes]:
    return repeat(h2.ping(), 100_000)


def echoes(enemy: Attacker) -> Iterator[bytes]:
    return repeat(h2.ping(ack=True), 100_000)


def settings(enemy: Attacker) -> Iterator[bytes]:
    return repeat(h2.settings([(h2.INITIAL_WINDOW, 65_535)]), 100_000)


def settings_acks(enemy: Attacker) -> Iterator[bytes]:
    return repeat(h2.settings_ack(), 100_000)


def empty_data(enemy: Attacker) -> Iterator[bytes]:
    return chain([h2.headers(1, enemy.opening(WAIT))], repeat(h2.data(1), 100_000))


def padding(enemy: Attacker) -> Iterator[bytes]:
    return chain([h2.headers(1, enemy.opening(WAIT))], repeat(h2.data(1, padding=255), 10_000))


def empty_continuations(enemy: Attacker) -> Iterator[bytes]:
    """In as many header blocks as it takes: each is within its own bound."""
    block = enemy.opening("/no/such")
    for stream in islice(streams(), 10_000):
        yield h2.headers(stream, block, cuts=[len(block)] * 8, ended=True)


def endless_continuations(enemy: Attacker) -> Iterator[bytes]:
    first = h2.raw(h2.HEADERS, 0, 1, enemy.opening(WAIT))
    return chain([first], repeat(h2.continuation(1, bytes(1000), last=False), 100_000))


def window_updates(enemy: Attacker) -> Iterator[bytes]:
    return repeat(h2.window_update(0, 1), 1_000_000)


def window_updates_of_ended_streams(enemy: Attacker) -> Iterator[bytes]:
    call = h2.headers(1, enemy.opening("/no/such"), ended=True)
    return chain([call], repeat(h2.window_update(1, 1), 1_000_000))


def priorities(enemy: Attacker) -> Iterator[bytes]:
    return (h2.priority(stream, stream - 1) for stream in islice(streams(), 100_000))


def unknown_frames(enemy: Attacker) -> Iterator[bytes]:
    return (h2.raw(kind % 246 + 10, 0xFF, kind) for kind in range(100_000))


def goaways(enemy: Attacker) -> Iterator[bytes]:
    return repeat(h2.goaway(), 100_000)


def refused_calls(enemy: Attacker) -> Iterator[bytes]:
    """All places are taken by calls that never end."""
    block = enemy.opening(WAIT)
    return (h2.headers(stream, block) for stream in islice(streams(), 100_000))


def malformed_calls(enemy: Attacker) -> Iterator[bytes]:
    block = enemy.opening(WAIT, (b"Connection", b"close"))
    return (h2.headers(stream, block, ended=True) for stream in islice(streams(), 100_000))


FLOODS: dict[Frames, tuple[str, int, tuple[float, float]]] = {
    rapid_resets: ("rapid_reset", 150, LIMITS.resets),
    resets_of_answered_calls: ("rapid_reset", 150, LIMITS.resets),
    resets_of_one_stream: ("rapid_reset", 13, LIMITS.resets),
    pings: ("too_many_pings", 17, (1 + LIMITS.max_ping_strikes, 0)),
    echoes: ("ping_flood", 17, LIMITS.pings),
    settings: ("settings_flood", 15, LIMITS.settings),
    settings_acks: ("settings_flood", 9, LIMITS.settings),
    empty_data: ("empty_frame_flood", 9, LIMITS.empties),
    padding: ("empty_frame_flood", 265, LIMITS.empties),
    empty_continuations: ("empty_frame_flood", 50, LIMITS.empties),
    endless_continuations: ("header_bomb", 1009, (LIMITS.max_continuations, 0)),
    window_updates: ("window_update_flood", 13, LIMITS.updates),
    window_updates_of_ended_streams: ("window_update_flood", 13, LIMITS.updates),
    priorities: ("odd_frame_flood", 14, LIMITS.oddments),
    unknown_frames: ("odd_frame_flood", 9, LIMITS.oddments),
    goaways: ("odd_frame_flood", 17, LIMITS.oddments),
    refused_calls: ("stream_error_flood", 150, (LIMITS.max_streams + LIMITS.faults[0], LIMITS.faults[1])),
    malformed_calls: ("stream_error_flood", 160, LIMITS.faults),
}
"""The kind that is counted, about how large a frame of it is, and the budget in frames."""


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_flood_ends_its_connection_within_its_budget(flood: Frames) -> None:
    kind, size, (burst, per_second) = FLOODS[flood]
    with AttackTest() as siege:
        others = siege.numbers.bytes_received
        enemy = siege.enemy()
        enemy.pour(packed(flood(enemy)))
        assert enemy.end() == (
            CALM,
            "a header block far too large" if kind == "header_bomb" else kind,
        )
        seconds = enemy.seconds
        siege.expect_closed(kind)
        most = size * (burst + per_second * seconds) + READ_AT_ONCE + 1000 * siege.bystander.answered
        assert siege.numbers.bytes_received - others < most * (3 if flood is resets_of_answered_calls else 1)
        assert siege.numbers.streams <= 1


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_rapid_reset_runs_no_more_handlers_than_it_may_reset(loop: str) -> None:
    burst, per_second = LIMITS.resets
    with AttackTest(loop=loop) as siege:
        enemy = siege.enemy()
        enemy.pour(packed(rapid_resets(enemy)))
        assert enemy.end() == (CALM, "rapid_reset")
        most = burst + per_second * enemy.seconds + 1
        siege.expect_closed("rapid_reset")
        assert burst < siege.numbers.resets_received <= most
        assert siege.service.happened["started"] <= most
        wait_until(lambda: siege.service.happened["cancelled"] == siege.service.happened["started"], "all are over")


def test_places_of_handlers_that_do_not_stop_are_taken_after_a_reset() -> None:
    """Not the resets end it: calls beyond the places are refused, until that is too often."""
    limits = Limits(resets=(1e9, 1e9), max_streams=50)
    with AttackTest(limits) as siege:
        siege.service.stubborn = True
        enemy = siege.enemy()
        block = enemy.opening(WAIT)
        calls = [h2.headers(stream, block) + h2.data(stream, MESSAGE, ended=True) for stream in range(1, 101, 2)]
        enemy.send(*calls)
        siege.wait("started", 50)
        enemy.pour(packed(rapid_resets_from(101, block)))
        assert enemy.end() == (CALM, "stream_error_flood")
        siege.expect_closed("stream_error_flood")
        assert siege.service.happened["started"] == 50
        assert siege.numbers.streams >= 50, "they still run"
        assert limits.faults[0] <= siege.numbers.refused <= limits.faults[0] + limits.faults[1] * enemy.seconds + 1


def rapid_resets_from(first: int, block: bytes) -> Iterator[bytes]:
    for stream in range(first, first + 200_000, 2):
        yield h2.headers(stream, block) + h2.rst_stream(stream)


def test_pings_between_answers_are_bounded_by_what_the_server_sends() -> None:
    """Every answer forgives strikes, but not any number of PINGs."""
    with AttackTest() as siege:
        enemy = siege.enemy()
        block = enemy.opening("/no/such")
        flood = (h2.headers(stream, block, ended=True) + 10 * h2.ping() for stream in islice(streams(), 100_000))
        enemy.pour(packed(flood))
        assert enemy.end()[0] is CALM
        assert siege.numbers.calls["", 12] < 1000
        wait_until(lambda: siege.numbers.closed["ping_flood"] + siege.numbers.closed["too_many_pings"] == 1, "closed")


def test_client_that_measures_the_delay_with_every_answer_is_no_flood() -> None:
    """Stock clients send a PING for an answer's first bytes, to learn how large a window is worth while."""
    with AttackTest() as siege:
        friend = siege.enemy()
        block = friend.opening(ECHO)
        for stream in range(1, 2001, 2):
            friend.send(h2.headers(stream, block) + h2.data(stream, MESSAGE, ended=True))
            friend.read_until(lambda frame: frame.kind == h2.HEADERS and frame.ended)
            friend.sync()
        assert siege.numbers.closed.total() == 0


def test_calls_go_on_after_the_clients_goaway_without_end() -> None:
    """GOAWAY is about streams of the server, of which there are none."""
    with AttackTest() as siege:
        enemy = siege.enemy()
        enemy.send(h2.goaway(0, ErrorCode.INTERNAL_ERROR, b"bye"))
        for stream in range(1, 401, 2):
            enemy.request(stream, ECHO, MESSAGE)
            assert enemy.status(stream)[0] == 0
