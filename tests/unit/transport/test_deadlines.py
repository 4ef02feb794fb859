"""One timer for all deadlines. Time here stands still until the test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.transport.deadlines import MAX_DISCARDED, Deadlines


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is moved by hand; it counts its timers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        timer = super().call_at(when, callback, *args, context=context)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Runs what falls due on the way, each at its own time."""
        end = self.now + seconds
        while (dues := [when for when in self.armed if when <= end]) and (due := min(dues)) <= end:
            self.now = max(self.now, due)
            self.run_until_complete(asyncio.sleep(0))
        self.now = end
        self.run_until_complete(asyncio.sleep(0))

    @property
    def armed(self) -> list[float]:
        """When the timers ring that are still to ring."""
        return [timer.when() for timer in self.timers if not timer.cancelled() and timer in self._scheduled]  # type: ignore[attr-defined]


@pytest.fixture
def loop() -> Iterator[StillLoop]:
    made = StillLoop()
    yield made
    made.close()


class Rung:
    """What has expired, and when."""

    def __init__(self, loop: StillLoop) -> None:
        self.loop = loop
        self.items: list[tuple[Any, float]] = []
        self.deadlines: Deadlines[Any] = Deadlines(loop, self.ring)

    def ring(self, item: Any) -> None:
        self.items.append((item, self.loop.now))


@pytest.fixture
def rung(loop: StillLoop) -> Rung:
    return Rung(loop)


def test_item_expires_on_time_once(loop: StillLoop, rung: Rung) -> None:
    rung.deadlines.add("a", 105.0)
    loop.advance(4.9)
    assert rung.items == []
    loop.advance(100)
    assert rung.items == [("a", 105.0)]


def test_discarded_item_does_not_expire(loop: StillLoop, rung: Rung) -> None:
    for name, deadline in (("a", 101.0), ("b", 102.0)):
        rung.deadlines.add(name, deadline)
    rung.deadlines.discard("a")
    rung.deadlines.discard("a")
    rung.deadlines.discard("never added")
    loop.advance(10)
    assert rung.items == [("b", 102.0)]


def test_earlier_deadline_that_comes_later_is_kept(loop: StillLoop, rung: Rung) -> None:
    for name, deadline in (("late", 150.0), ("early", 101.0), ("between", 120.0)):
        rung.deadlines.add(name, deadline)
    loop.advance(100)
    assert rung.items == [("early", 101.0), ("between", 120.0), ("late", 150.0)]


def test_deadline_that_has_passed_expires_at_once_but_not_within_the_call(loop: StillLoop, rung: Rung) -> None:
    rung.deadlines.add("a", 99.0)
    assert rung.items == []
    loop.advance(0)
    assert rung.items == [("a", 100.0)]


def test_requests_with_one_time_limit_need_one_timer(loop: StillLoop, rung: Rung) -> None:
    for number in range(1000):
        loop.now += 0.001
        rung.deadlines.add(number, loop.now + 60)
        rung.deadlines.discard(number - 10)
    assert len(loop.timers) == 1
    loop.advance(59)
    assert rung.items == []
    assert len(loop.armed) == 1
    loop.advance(10)
    assert [item for item, _ in rung.items] == list(range(990, 1000))
    assert loop.armed == []


def test_items_may_be_added_and_discarded_while_others_expire(loop: StillLoop) -> None:
    got: list[tuple[str, float]] = []

    def expired(name: str) -> None:
        got.append((name, loop.now))
        if name == "first":
            deadlines.discard("last")
            deadlines.add("new", 103.0)
            deadlines.add("later", 104.0)

    deadlines = Deadlines[str](loop, expired)
    for name, deadline in (("first", 101.0), ("last", 105.0)):
        deadlines.add(name, deadline)
    loop.advance(10)
    assert got == [("first", 101.0), ("new", 103.0), ("later", 104.0)]


def test_item_without_an_end_never_expires_and_holds_nobody_up(loop: StillLoop, rung: Rung) -> None:
    rung.deadlines.add("for ever", inf)
    rung.deadlines.add("a", 101.0)
    loop.advance(1_000_000)
    assert rung.items == [("a", 101.0)]


def test_new_deadline_of_an_item_counts(loop: StillLoop, rung: Rung) -> None:
    rung.deadlines.add("a", 110.0)
    rung.deadlines.add("a", 105.0)
    loop.advance(20)
    assert rung.items == [("a", 105.0)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "discard", "advance"]), st.integers(0, 5), st.integers(0, 20)), max_size=40
    )
)
def test_every_item_expires_exactly_at_its_deadline_or_when_it_was_late(steps: list[tuple[str, int, int]]) -> None:
    loop = StillLoop()
    rung, due, expected = Rung(loop), dict[int, float](), list[tuple[float, int]]()
    try:
        for step, item, number in [*steps, ("advance", 0, 100)]:
            if step == "add":
                due[item] = loop.now + number - 5
                rung.deadlines.add(item, due[item])
            elif step == "discard":
                due.pop(item, None)
                rung.deadlines.discard(item)
            else:
                start, end = loop.now, loop.now + number
                expected += sorted((max(start, when), item) for item, when in due.items() if when <= end)
                due = {item: when for item, when in due.items() if when > end}
                loop.advance(number)
        assert sorted((when, item) for item, when in rung.items) == sorted(expected)
        assert [when for _, when in rung.items] == sorted(when for _, when in rung.items)
    finally:
        loop.close()


def test_what_was_discarded_is_not_kept(loop: StillLoop, rung: Rung) -> None:
    for number in range(100_000):
        rung.deadlines.add(number, loop.now + 60)
        rung.deadlines.discard(number)
    assert len(rung.deadlines._heap) <= MAX_DISCARDED + 1
    loop.advance(100)
    assert rung.items == []


def test_many_deadlines_one_after_the_other_each_ring_once_and_in_order(loop: StillLoop, rung: Rung) -> None:
    for number in reversed(range(200)):
        rung.deadlines.add(number, loop.now + number / 1000)
    for number in range(0, 200, 3):
        rung.deadlines.discard(number)
    loop.advance(1)
    assert [item for item, _ in rung.items] == [number for number in range(200) if number % 3]


def test_item_that_is_added_again_has_only_its_new_deadline(loop: StillLoop, rung: Rung) -> None:
    rung.deadlines.add("a", loop.now + 1)
    rung.deadlines.add("a", loop.now + 5)
    loop.advance(4)
    assert rung.items == []
    loop.advance(2)
    assert len(rung.items) == 1
