"""What is due for a connection, decided over snapshots; and when connections are checked, as time is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from tests.support.grpc.manual_loop import ManualLoop
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.watch import (
    DRAIN_ECHO,
    LINGER,
    MAX_INTERVAL,
    MIN_INTERVAL,
    SLICE,
    Act,
    ConnectionView,
    Watch,
    check_interval,
    decide,
)

LIMITS = Limits(
    handshake_timeout=10,
    write_timeout=60,
    max_connection_idle=300,
    max_connection_age=1000,
    max_connection_age_grace=50,
    keepalive_time=200,
    keepalive_timeout=20,
)
QUIET = ConnectionView(
    now=500.0,
    created=400.0,
    last_received=499.0,
    busy=True,
    idle_since=499.0,
    partial_since=None,
    unsent=False,
    last_progress=500.0,
    buffered=False,
    age_limit=1000.0,
)
"""Nothing is to be done."""


def decided(**changes: Any) -> tuple[Act, str] | None:
    return decide(replace(QUIET, **changes), LIMITS)


OVERDUE = {"last_received": 0.0, "created": -inf, "partial_since": 0.0, "pinged": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="all is well"),
        pytest.param({"idle_since": 0.0, "busy": True}, id="calls inside keep it from being idle"),
        pytest.param({"unsent": True, "last_progress": 499.0}, id="some of its output leaves"),
        pytest.param({"ending": True, "last_progress": 499.9, **OVERDUE}, id="one that ends is asked nothing"),
        pytest.param({"draining": "age", "draining_since": 499.5, "created": -9999.0}, id="it drains already"),
        pytest.param({"draining": "drained", "draining_since": 0.0, "finished": True}, id="it takes no more calls"),
    ],
)
def test_connection_of_which_nothing_is_due_is_left_alone(changes: dict[str, Any]) -> None:
    assert decided(**changes) is None


@pytest.mark.parametrize(
    ("before", "due", "changes"),
    [
        (440.1, (Act.ABORT, "slow_reader"), {"unsent": True, "last_progress": 440.0}),
        (490.1, (Act.CLOSE, "handshake"), {"partial_since": 490.0}),
        (480.1, (Act.ABORT, "keepalive"), {"pinged": 480.0, "last_received": 100.0}),
        (300.1, (Act.PING, "keepalive"), {"last_received": 300.0}),
        (200.1, (Act.DRAIN, "idle"), {"idle_since": 200.0, "busy": False}),
        (-499.9, (Act.DRAIN, "age"), {"created": -500.0}),
        (499.1, (Act.FINISH, "drained"), {"draining": "drained", "draining_since": 500.0 - DRAIN_ECHO}),
        (450.1, (Act.CLOSE, "age"), {"draining": "age", "draining_since": 450.0, "finished": True}),
        (500.0 - LINGER + 0.1, (Act.ABORT, "lingering"), {"ending": True, "last_progress": 500.0 - LINGER}),
    ],
    ids=["slow reader", "handshake", "keepalive", "ping", "idle", "age", "finish", "grace", "linger"],
)
def test_time_is_up_when_it_is_up_and_not_before(before: float, due: tuple[Act, str], changes: dict[str, Any]) -> None:
    assert decided(**changes) == due
    times = [name for name, value in changes.items() if isinstance(value, float) and abs(value - before) < 0.2]
    assert len(times) == 1
    assert decided(**{**changes, times[0]: before}) is None


def test_client_that_does_not_read_its_last_answers_is_cut_late() -> None:
    """Our side is closed, but the client has until the timeout to take what is in the buffer."""
    assert decided(ending=True, unsent=True, buffered=True, last_progress=450.0) is None
    assert decided(ending=True, unsent=True, buffered=True, last_progress=440.0) == (Act.ABORT, "slow_reader")


def test_worst_comes_first() -> None:
    everything = {"unsent": True, "last_progress": 0.0, "partial_since": 0.0, "pinged": 0.0, "created": -9999.0}
    for name, kind in (("unsent", "slow_reader"), ("partial_since", "handshake"), ("pinged", "keepalive")):
        verdict = decided(**everything)
        assert verdict is not None
        assert verdict[1] == kind
        everything.pop(name)
    verdict = decided(**everything)
    assert verdict is not None
    assert verdict[1] == "age"


def test_limits_without_an_end_never_end_anything() -> None:
    limits = Limits(keepalive_time=inf, write_timeout=inf, handshake_timeout=inf)
    view = replace(QUIET, now=1e12, busy=False, unsent=True, partial_since=0.0, age_limit=inf)
    assert decide(view, limits) is None


@pytest.mark.parametrize(
    ("limits", "interval"),
    [
        (Limits(), MAX_INTERVAL),
        (Limits(handshake_timeout=2), 0.2),
        (Limits(max_connection_idle=0.5), 0.05),
        (Limits(keepalive_timeout=0.001), MIN_INTERVAL),
        (Limits(max_connection_age_grace=0), MAX_INTERVAL),
    ],
)
def test_connections_are_checked_often_enough_for_the_shortest_timeout(limits: Limits, interval: float) -> None:
    assert check_interval(limits) == pytest.approx(interval)


class CheckedConnection:
    """Records when it was checked."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.times: list[float] = []
        self._then = then

    def check_timeouts(self, now: float) -> None:
        self.times.append(now)
        self._then()


def test_every_connection_is_checked_once_an_interval(manual_loop: ManualLoop) -> None:
    watched = [CheckedConnection(), CheckedConnection()]
    watch = Watch(manual_loop, 1.0, lambda: watched)
    watch.start()
    for _ in range(30):
        manual_loop.advance(0.1)
    watch.stop()
    for _ in range(30):
        manual_loop.advance(0.1)
    for one in watched:
        assert len(one.times) in (2, 3)
        assert all(later - earlier > 0.99 for earlier, later in zip(one.times, one.times[1:], strict=False))


def test_many_connections_are_checked_in_several_turns_of_the_loop(manual_loop: ManualLoop) -> None:
    order: list[str] = []
    first, last = (
        CheckedConnection(lambda: manual_loop.call_soon(order.append, "another")),
        CheckedConnection(lambda: order.append("last")),
    )
    between = [CheckedConnection() for _ in range(2 * SLICE)]
    watch = Watch(manual_loop, 1.0, lambda: [first, *between, last])
    watch.start()
    for _ in range(5):
        manual_loop.advance(0.3)
    watch.stop()
    assert order == ["another", "last"]
    assert all(len(one.times) == 1 for one in between)


def test_watch_may_be_stopped_within_a_check(manual_loop: ManualLoop) -> None:
    watched = [CheckedConnection(lambda: watch.stop())]
    watch = Watch(manual_loop, 1.0, lambda: watched)
    watch.start()
    for _ in range(5):
        manual_loop.advance(1.5)
    assert len(watched[0].times) == 1
