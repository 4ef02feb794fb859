"""What everybody relies on, for every clock there is."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from tfs_lite.core.clock import Clock, SystemClock
from tfs_lite.testing.lifecycle.clock import VirtualClock

STEP = 0.01


class Time:
    """A clock and the way to let its time pass until something is true."""

    def __init__(self, clock: Clock, move: Callable[[], None]) -> None:
        self.clock, self._move = clock, move

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(6000):
            if condition():
                return
            self._move()
        raise AssertionError("it never came about")


@pytest.fixture(params=["system", "virtual"])
def time(request: pytest.FixtureRequest) -> Iterator[Time]:
    if request.param == "virtual":
        virtual = VirtualClock()
        yield Time(virtual, lambda: virtual.advance(STEP))
    else:
        system = SystemClock()
        yield Time(system, lambda: threading.Event().wait(STEP) and None)
        system.close()


def test_time_does_not_go_back(time: Time) -> None:
    readings = [time.clock.monotonic()]
    time.until(lambda: time.clock.monotonic() > readings[0])
    assert time.clock.time() > 1_000_000


def test_call_happens_once_and_not_before_it_is_due(time: Time) -> None:
    due = time.clock.monotonic() + 5 * STEP
    called: list[float] = []
    time.clock.call_later(5 * STEP, lambda: called.append(time.clock.monotonic()))
    time.until(lambda: bool(called))
    assert called[0] >= due
    time.until(lambda: time.clock.monotonic() > due + 5 * STEP)
    assert len(called) == 1


@pytest.mark.parametrize("delay", [0.0, -1.0])
def test_call_without_delay_is_not_made_inside_call_later(time: Time, delay: float) -> None:
    lock, called = threading.Lock(), []
    with lock:
        time.clock.call_later(delay, lambda: called.append(lock.acquire(timeout=60)))
        assert called == []
    time.until(lambda: called == [True])


def test_calls_happen_in_the_order_in_which_they_are_due(time: Time) -> None:
    called: list[str] = []
    seconds, asked = math.inf, 0
    while seconds > STEP:  # a machine that stops in between changes what is due first
        time.until(lambda: len(called) == asked)  # noqa: B023
        asked += 3
        began = time.clock.monotonic()
        time.clock.call_later(6 * STEP, lambda: called.append("third"))
        time.clock.call_later(2 * STEP, lambda: called.append("first"))
        time.clock.call_later(4 * STEP, lambda: called.append("second"))
        seconds = time.clock.monotonic() - began
    time.until(lambda: len(called) == asked)
    assert called[-3:] == ["first", "second", "third"]


def test_cancelled_call_does_not_happen_and_may_be_cancelled_again(time: Time) -> None:
    called: list[str] = []
    timer = time.clock.call_later(2 * STEP, lambda: called.append("cancelled"))
    timer.cancel()
    timer.cancel()
    time.clock.call_later(4 * STEP, lambda: called.append("after"))
    time.until(lambda: bool(called))
    assert called == ["after"]


def test_call_may_ask_for_another(time: Time) -> None:
    called: list[str] = []
    time.clock.call_later(STEP, lambda: time.clock.call_later(STEP, lambda: called.append("inner")) and None)
    time.until(lambda: called == ["inner"])


def test_timer_that_has_fired_may_be_cancelled(time: Time) -> None:
    called: list[str] = []
    timer = time.clock.call_later(0, lambda: called.append("x"))
    time.until(lambda: called == ["x"])
    timer.cancel()
