"""Which requests begin, in which order and when; which are refused; turn by turn of a loop."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tfs_lite.core.callbacks import ignore
from tfs_lite.transport.backlog import ALWAYS_TAKEN, FIRST_SECONDS, TURN_SECONDS, Backlog, ExpectedWait


async def turn() -> None:
    """What was scheduled before has run, and nothing that it has scheduled."""
    await asyncio.sleep(0)


async def turns(number: int) -> None:
    """In each of them at least one request begins."""
    for _ in range(number):
        await turn()


# The decision.


def test_request_that_would_wait_for_most_of_its_time_is_refused() -> None:
    wait = ExpectedWait(0.001)
    assert not wait.is_too_long(499, 1.0)
    assert wait.is_too_long(501, 1.0)
    assert not wait.is_too_long(501, 1.1)


def test_few_requests_are_never_too_many() -> None:
    assert not ExpectedWait(10.0).is_too_long(ALWAYS_TAKEN - 1, 0.0)
    assert ExpectedWait(10.0).is_too_long(ALWAYS_TAKEN, 1.0)


def test_expectation_follows_what_requests_lately_took() -> None:
    wait = ExpectedWait()
    assert wait.seconds == FIRST_SECONDS
    for _ in range(1000):
        wait.took(10, 0.01)
    assert wait.seconds == pytest.approx(0.001, rel=0.05)
    for _ in range(1000):
        wait.took(200, 0.01)
    assert wait.seconds == pytest.approx(0.00005, rel=0.05)


def test_one_turn_alone_changes_the_expectation_little() -> None:
    wait = ExpectedWait(0.0001)
    for _ in range(100):
        wait.took(100, 0.01)
    wait.took(2000, 0.01)
    assert wait.seconds == pytest.approx(0.0001, rel=0.3)
    wait.took(1, 0.01)
    assert wait.seconds == pytest.approx(0.0001, rel=0.3)


def test_expectation_recovers_from_a_time_in_which_nothing_went_on() -> None:
    wait = ExpectedWait(0.0001)
    wait.took(1, 5.0)
    for _ in range(300):
        wait.took(100, 0.01)
    assert wait.seconds == pytest.approx(0.0001, rel=0.3)


# The order.


async def test_requests_begin_in_the_next_turn_and_in_the_order_of_arrival() -> None:
    backlog, begun = Backlog(), list[int]()
    for number in range(50):
        backlog.put(partial(begun.append, number))
    assert begun == []
    await turns(50)
    assert begun == list(range(50))


async def test_turn_that_has_lasted_leaves_the_rest_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    backlog, begun, now = Backlog(), list[int](), [0.0]
    monkeypatch.setattr("tfs_lite.transport.backlog.monotonic", lambda: now[0])

    def begin(number: int) -> None:
        begun.append(number)
        now[0] += TURN_SECONDS

    for number in range(3):
        backlog.put(partial(begin, number))
    for expected in ([0], [0, 1], [0, 1, 2]):
        await turn()
        assert begun == expected


async def test_request_that_comes_while_others_begin_begins_in_a_later_turn() -> None:
    backlog, begun = Backlog(), list[int]()

    def begin() -> None:
        begun.append(1)
        backlog.put(partial(begun.append, 2))

    backlog.put(begin)
    await turn()
    assert begun == [1]
    await turn()
    assert begun == [1, 2]
    backlog.put(partial(begun.append, 3))
    await turn()
    assert begun == [1, 2, 3]


async def test_request_that_fails_to_begin_holds_up_no_other() -> None:
    backlog, begun, told = Backlog(), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    error = RuntimeError("a mistake")

    def fail() -> None:
        raise error

    backlog.put(fail)
    backlog.put(partial(begun.append, 1))
    await turns(2)
    assert told == [error]
    assert begun == [1]


async def test_request_is_refused_while_so_many_wait_that_it_would_begin_too_late_and_then_no_more() -> None:
    backlog = Backlog(ExpectedWait(0.001))
    for _ in range(200):
        backlog.put(ignore)
    assert backlog.is_too_long(0.3)
    assert not backlog.is_too_long(0.5)
    await turns(200)
    assert not backlog.is_too_long(0.0)
