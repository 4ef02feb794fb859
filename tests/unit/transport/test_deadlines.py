"""One timer for all deadlines. Time here stands still until the test moves it."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.grpc.manual_loop import ManualLoop
from tfs_lite.transport.deadlines import MAX_DISCARDED, Deadlines


class Expired:
    """What has expired, and when."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.items: list[tuple[Any, float]] = []
        self.deadlines: Deadlines[Any] = Deadlines(loop, self._expire)

    def _expire(self, item: Any) -> None:
        self.items.append((item, self.loop.now))


@pytest.fixture
def expired(manual_loop: ManualLoop) -> Expired:
    return Expired(manual_loop)


def test_discarded_item_does_not_expire(manual_loop: ManualLoop, expired: Expired) -> None:
    for name, deadline in (("a", 101.0), ("b", 102.0)):
        expired.deadlines.add(name, deadline)
    expired.deadlines.discard("a")
    expired.deadlines.discard("a")
    expired.deadlines.discard("never added")
    manual_loop.advance(10)
    assert expired.items == [("b", 102.0)]


def test_deadlines_expire_on_time_once_whenever_they_were_added(manual_loop: ManualLoop, expired: Expired) -> None:
    for name, deadline in (("late", 150.0), ("early", 101.0), ("between", 120.0), ("moved", 160.0), ("moved", 130.0)):
        expired.deadlines.add(name, deadline)
    manual_loop.advance(0.9)
    assert expired.items == []
    manual_loop.advance(100)
    assert expired.items == [("early", 101.0), ("between", 120.0), ("moved", 130.0), ("late", 150.0)]


def test_deadline_that_has_passed_expires_at_once_but_not_within_add(manual_loop: ManualLoop, expired: Expired) -> None:
    expired.deadlines.add("a", 99.0)
    assert expired.items == []
    manual_loop.advance(0)
    assert expired.items == [("a", 100.0)]


def test_requests_with_one_time_limit_need_one_timer(manual_loop: ManualLoop, expired: Expired) -> None:
    for number in range(1000):
        manual_loop.now += 0.001
        expired.deadlines.add(number, manual_loop.now + 60)
        expired.deadlines.discard(number - 10)
    assert len(manual_loop.timers) == 1
    manual_loop.advance(59)
    assert expired.items == []
    assert len(manual_loop.armed) == 1
    manual_loop.advance(10)
    assert [item for item, _ in expired.items] == list(range(990, 1000))
    assert manual_loop.armed == []


def test_items_may_be_added_and_discarded_while_others_expire(manual_loop: ManualLoop) -> None:
    got: list[tuple[str, float]] = []

    def expired(name: str) -> None:
        got.append((name, manual_loop.now))
        if name == "first":
            deadlines.discard("last")
            deadlines.add("new", 103.0)
            deadlines.add("later", 104.0)

    deadlines = Deadlines[str](manual_loop, expired)
    for name, deadline in (("first", 101.0), ("last", 105.0)):
        deadlines.add(name, deadline)
    manual_loop.advance(10)
    assert got == [("first", 101.0), ("new", 103.0), ("later", 104.0)]


def test_item_without_an_end_never_expires_and_delays_no_other(manual_loop: ManualLoop, expired: Expired) -> None:
    expired.deadlines.add("for ever", inf)
    expired.deadlines.add("a", 101.0)
    manual_loop.advance(1_000_000)
    assert expired.items == [("a", 101.0)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "discard", "advance"]), st.integers(0, 5), st.integers(0, 20)), max_size=40
    )
)
def test_every_item_expires_exactly_at_its_deadline_or_when_it_was_late(steps: list[tuple[str, int, int]]) -> None:
    loop = ManualLoop()
    expired, due, expected = Expired(loop), dict[int, float](), list[tuple[float, int]]()
    try:
        for step, item, number in [*steps, ("advance", 0, 100)]:
            if step == "add":
                due[item] = loop.now + number - 5
                expired.deadlines.add(item, due[item])
            elif step == "discard":
                due.pop(item, None)
                expired.deadlines.discard(item)
            else:
                start, end = loop.now, loop.now + number
                expected += sorted((max(start, when), item) for item, when in due.items() if when <= end)
                due = {item: when for item, when in due.items() if when > end}
                loop.advance(number)
        assert sorted((when, item) for item, when in expired.items) == sorted(expected)
        assert [when for _, when in expired.items] == sorted(when for _, when in expired.items)
    finally:
        loop.close()


def test_what_was_discarded_is_not_kept(manual_loop: ManualLoop, expired: Expired) -> None:
    for number in range(100_000):
        expired.deadlines.add(number, manual_loop.now + 60)
        expired.deadlines.discard(number)
    assert len(expired.deadlines._heap) <= MAX_DISCARDED + 1
    manual_loop.advance(100)
    assert expired.items == []
