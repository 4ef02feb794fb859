"""How often a client may send PING: the rule, and a connection that keeps to it."""

from __future__ import annotations

import grpc
import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.transport_fixture import COUNT, LOOPS, PATIENCE, TransportFixture
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.pings import PingPolicy

LIMITS = Limits(min_ping_interval=10, max_ping_strikes=2, ping_without_calls=True)


def allowed(policy: PingPolicy, times: list[float], frames_sent: int = 0, busy: bool = True) -> list[bool]:
    return [policy.allows(now, frames_sent, busy) for now in times]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([10.0 * at for at in range(1000)], [True] * 1000),
        ([0, 1, 2, 3], [True, True, True, False]),
        ([0, 1, 10, 11, 20, 21], [True] * 5 + [False]),
        ([0, 9, 10, 19, 20], [True] * 5),
    ],
    ids=[
        "pings at the interval are allowed for ever",
        "one early ping beyond the strikes is too many",
        "a ping in time does not take strikes back",
        "an early ping does not put the next one off",
    ],
)
def test_pings_that_come_too_early_are_counted(times: list[float], expected: list[bool]) -> None:
    assert allowed(PingPolicy(LIMITS), times) == expected


def test_what_is_sent_for_a_call_forgives_all() -> None:
    policy = PingPolicy(LIMITS)
    assert allowed(policy, [0, 1, 2]) == [True] * 3
    assert allowed(policy, [3, 4, 5], frames_sent=1) == [True] * 3
    assert allowed(policy, [6], frames_sent=1) == [False]


def test_pings_after_answers_are_never_too_many() -> None:
    """A client measures the connection's delay so, for each answer."""
    policy = PingPolicy(LIMITS)
    assert all(policy.allows(at / 1000, at, True) for at in range(1000))


def test_without_a_call_two_hours_have_to_pass() -> None:
    limits = Limits(min_ping_interval=10, max_ping_strikes=1)
    assert allowed(PingPolicy(limits), [0, 7199, 7199.5], busy=False) == [True, True, False]
    assert allowed(PingPolicy(limits), [0, 7200, 14400], busy=False) == [True, True, True]
    assert allowed(PingPolicy(limits), [0, 10, 20], busy=True) == [True, True, True]


def test_no_bound_for_strikes_allows_any_number() -> None:
    assert all(allowed(PingPolicy(Limits(max_ping_strikes=0)), [0.0] * 1000))


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_client_that_pings_too_often_is_sent_away(loop: str) -> None:
    with TransportFixture(loop, Limits(max_ping_strikes=2)) as server:
        raw = server.dial()
        raw.send(*[h2.ping(b"%08d" % at) for at in range(4)])
        echoes = [raw.read_until(lambda frame: frame.kind == h2.PING and frame.ack).payload for _ in range(3)]
        end = raw.read_until(lambda frame: frame.kind == h2.GOAWAY)
        assert echoes == [b"%08d" % at for at in range(3)]
        assert (end.value, end.payload) == (ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
        assert raw.rest() == []
        raw.close()


def test_grpc_client_that_measures_its_bandwidth_is_not_sent_away() -> None:
    options = [("grpc.http2.bdp_probe", 1)]
    with (
        TransportFixture(limits=Limits(max_ping_strikes=1)) as server,
        grpc.insecure_channel(server.target, options) as made,
    ):
        for _ in range(20):
            assert len(list(made.unary_stream(COUNT)(b"2000", timeout=PATIENCE))) == 2000
        assert server.numbers.connections_total == 1
