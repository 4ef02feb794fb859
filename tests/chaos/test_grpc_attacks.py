"""Floods of frames that cost nothing to send, at full speed and against the default limits: each is read up to its
budget, then the connection ends with ENHANCE_YOUR_CALM; others do not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count, islice, repeat

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_attacks import Attacker, AttackTest
from tests.support.grpc.transport_fixture import ECHO, LOOPS, WAIT
from tests.support.servers.process import wait_until
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


def rapid_resets(attacker: Attacker) -> Iterator[bytes]:
    block = attacker.request_block(WAIT)
    for stream in islice(streams(), 100_000):
        yield h2.headers(stream, block) + h2.data(stream, MESSAGE, ended=True) + h2.rst_stream(stream)


def resets_of_answered_calls(attacker: Attacker) -> Iterator[bytes]:
    """Each answered call earns one RST_STREAM; these are two each."""
    block = attacker.request_block("/no/such")
    for stream in islice(streams(), 100_000):
        yield h2.headers(stream, block, ended=True) + 2 * h2.rst_stream(stream)


def resets_of_one_stream(attacker: Attacker) -> Iterator[bytes]:
    call = h2.headers(1, attacker.request_block("/no/such"), ended=True)
    return chain([call], repeat(h2.rst_stream(1), 100_000))


def empty_data(attacker: Attacker) -> Iterator[bytes]:
    return chain([h2.headers(1, attacker.request_block(WAIT))], repeat(h2.data(1), 100_000))


def padding(attacker: Attacker) -> Iterator[bytes]:
    return chain([h2.headers(1, attacker.request_block(WAIT))], repeat(h2.data(1, padding=255), 10_000))


def empty_continuations(attacker: Attacker) -> Iterator[bytes]:
    """In as many header blocks as it takes: each is within its own bound."""
    block = attacker.request_block("/no/such")
    for stream in islice(streams(), 10_000):
        yield h2.headers(stream, block, cuts=[len(block)] * 8, ended=True)


def endless_continuations(attacker: Attacker) -> Iterator[bytes]:
    first = h2.raw(h2.HEADERS, 0, 1, attacker.request_block(WAIT))
    return chain([first], repeat(h2.continuation(1, bytes(1000), last=False), 100_000))


def window_updates_of_ended_streams(attacker: Attacker) -> Iterator[bytes]:
    call = h2.headers(1, attacker.request_block("/no/such"), ended=True)
    return chain([call], repeat(h2.window_update(1, 1), 1_000_000))


def refused_calls(attacker: Attacker) -> Iterator[bytes]:
    """All places are taken by calls that never end."""
    block = attacker.request_block(WAIT)
    return (h2.headers(stream, block) for stream in islice(streams(), 100_000))


def malformed_calls(attacker: Attacker) -> Iterator[bytes]:
    block = attacker.request_block(WAIT, (b"Connection", b"close"))
    return (h2.headers(stream, block, ended=True) for stream in islice(streams(), 100_000))


FLOODS: dict[str, tuple[str, int, tuple[float, float], Frames]] = {
    "rapid_resets": ("rapid_reset", 150, LIMITS.resets, rapid_resets),
    "resets_of_answered_calls": ("rapid_reset", 150, LIMITS.resets, resets_of_answered_calls),
    "resets_of_one_stream": ("rapid_reset", 13, LIMITS.resets, resets_of_one_stream),
    "pings": ("too_many_pings", 17, (1 + LIMITS.max_ping_strikes, 0), lambda attacker: repeat(h2.ping(), 100_000)),
    "echoes": ("ping_flood", 17, LIMITS.pings, lambda attacker: repeat(h2.ping(ack=True), 100_000)),
    "settings": (
        "settings_flood",
        15,
        LIMITS.settings,
        lambda attacker: repeat(h2.settings([(h2.INITIAL_WINDOW, 65_535)]), 100_000),
    ),
    "settings_acks": ("settings_flood", 9, LIMITS.settings, lambda attacker: repeat(h2.settings_ack(), 100_000)),
    "empty_data": ("empty_frame_flood", 9, LIMITS.empty_frames, empty_data),
    "padding": ("empty_frame_flood", 265, LIMITS.empty_frames, padding),
    "empty_continuations": ("empty_frame_flood", 50, LIMITS.empty_frames, empty_continuations),
    "endless_continuations": ("header_bomb", 1009, (LIMITS.max_continuations, 0), endless_continuations),
    "window_updates": (
        "window_update_flood",
        13,
        LIMITS.window_updates,
        lambda attacker: repeat(h2.window_update(0, 1), 1_000_000),
    ),
    "window_updates_of_ended_streams": (
        "window_update_flood",
        13,
        LIMITS.window_updates,
        window_updates_of_ended_streams,
    ),
    "priorities": (
        "odd_frame_flood",
        14,
        LIMITS.unexpected_frames,
        lambda attacker: (h2.priority(stream, stream - 1) for stream in islice(streams(), 100_000)),
    ),
    "unknown_frames": (
        "odd_frame_flood",
        9,
        LIMITS.unexpected_frames,
        lambda attacker: (h2.raw(kind % 246 + 10, 0xFF, kind) for kind in range(100_000)),
    ),
    "goaways": ("odd_frame_flood", 17, LIMITS.unexpected_frames, lambda attacker: repeat(h2.goaway(), 100_000)),
    "refused_calls": (
        "stream_error_flood",
        150,
        (LIMITS.max_streams + LIMITS.stream_errors[0], LIMITS.stream_errors[1]),
        refused_calls,
    ),
    "malformed_calls": ("stream_error_flood", 160, LIMITS.stream_errors, malformed_calls),
}
"""The kind that is counted, about how large a frame of it is, the limit in frames, and the frames."""


@pytest.mark.parametrize("name", FLOODS)
def test_flood_ends_its_connection_within_its_budget(attack: AttackTest, name: str) -> None:
    kind, size, (burst, per_second), flood = FLOODS[name]
    others = attack.numbers.bytes_received
    attacker = attack.attacker()
    attacker.flood(packed(flood(attacker)))
    assert attacker.end() == (CALM, "a header block far too large" if kind == "header_bomb" else kind)
    seconds = attacker.seconds
    attack.expect_closed(kind)
    most = size * (burst + per_second * seconds) + READ_AT_ONCE + 1000 * attack.control.answered
    assert attack.numbers.bytes_received - others < most * (3 if name == "resets_of_answered_calls" else 1)
    assert attack.numbers.streams <= 1


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_rapid_reset_runs_no_more_handlers_than_it_may_reset(loop: str) -> None:
    burst, per_second = LIMITS.resets
    with AttackTest(loop=loop) as attack:
        attacker = attack.attacker()
        attacker.flood(packed(rapid_resets(attacker)))
        assert attacker.end() == (CALM, "rapid_reset")
        most = burst + per_second * attacker.seconds + 1
        attack.expect_closed("rapid_reset")
        assert burst < attack.numbers.resets_received <= most
        assert attack.service.happened["started"] <= most
        wait_until(lambda: attack.service.happened["cancelled"] == attack.service.happened["started"], "all are over")


def test_handlers_that_do_not_stop_count_after_a_reset() -> None:
    """Not the resets end it: calls beyond the places are refused, until that is too often."""
    limits = Limits(resets=(1e9, 1e9), max_streams=50)
    with AttackTest(limits) as attack:
        attack.service.stubborn = True
        attacker = attack.attacker()
        block = attacker.request_block(WAIT)
        calls = [h2.headers(stream, block) + h2.data(stream, MESSAGE, ended=True) for stream in range(1, 101, 2)]
        attacker.send(*calls)
        attack.wait("started", 50)
        attacker.flood(packed(rapid_resets_from(101, block)))
        assert attacker.end() == (CALM, "stream_error_flood")
        attack.expect_closed("stream_error_flood")
        assert attack.service.happened["started"] == 50
        assert attack.numbers.streams >= 50, "they still run"
        assert (
            limits.stream_errors[0]
            <= attack.numbers.refused
            <= limits.stream_errors[0] + limits.stream_errors[1] * attacker.seconds + 1
        )


def rapid_resets_from(first: int, block: bytes) -> Iterator[bytes]:
    for stream in range(first, first + 200_000, 2):
        yield h2.headers(stream, block) + h2.rst_stream(stream)


def test_pings_between_answers_are_bounded_by_what_the_server_sends(attack: AttackTest, attacker: Attacker) -> None:
    """Every answer forgives strikes, but not any number of PINGs."""
    block = attacker.request_block("/no/such")
    flood = (h2.headers(stream, block, ended=True) + 10 * h2.ping() for stream in islice(streams(), 100_000))
    attacker.flood(packed(flood))
    assert attacker.end()[0] is CALM
    assert attack.numbers.calls["", 12] < 1000
    wait_until(lambda: attack.numbers.closed["ping_flood"] + attack.numbers.closed["too_many_pings"] == 1, "closed")


def test_client_that_measures_the_delay_with_every_answer_is_no_flood(attack: AttackTest) -> None:
    """Stock clients send a PING for an answer's first bytes, to learn how large a window is worth while."""
    client = attack.attacker()
    block = client.request_block(ECHO)
    for stream in range(1, 2001, 2):
        client.send(h2.headers(stream, block) + h2.data(stream, MESSAGE, ended=True))
        client.read_until(lambda frame: frame.kind == h2.HEADERS and frame.ended)
        client.sync()
    assert attack.numbers.closed.total() == 0


def test_calls_go_on_after_the_clients_goaway_without_end(attacker: Attacker) -> None:
    """GOAWAY is about streams of the server, of which there are none."""
    attacker.send(h2.goaway(0, ErrorCode.INTERNAL_ERROR, b"bye"))
    for stream in range(1, 401, 2):
        attacker.request(stream, ECHO, MESSAGE)
        assert attacker.status(stream)[0] == 0
