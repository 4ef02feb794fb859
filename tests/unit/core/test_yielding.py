"""The clock is replaced: what counts is when the lock is given away, not how long that takes."""

import sys
import threading

import pytest

from tests.support.servers.process import wait_until
from tfs_lite.core import yielding
from tfs_lite.core.yielding import (
    INTERVAL_SECONDS,
    PAUSE_SECONDS,
    SWITCH_SECONDS,
    Turns,
    Yielder,
    giving_way,
    in_turn,
    out_of_turn,
)

TIMEOUT = 30.0


def test_the_lock_is_given_away_about_once_an_interval(monkeypatch):
    now, pauses = [0.0], []
    monkeypatch.setattr(yielding.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(yielding.time, "sleep", pauses.append)
    yielder = Yielder()
    for _ in range(100):
        now[0] += INTERVAL_SECONDS / 10
        yielder()
    assert 8 <= len(pauses) <= 10
    assert set(pauses) == {PAUSE_SECONDS}


def test_the_lock_is_asked_for_a_hundred_times_as_often_until_the_last_thread_is_done():
    before = sys.getswitchinterval()
    with giving_way():
        with pytest.raises(OSError, match="gone"), giving_way():
            raise OSError("gone")
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert before == sys.getswitchinterval() >= 100 * SWITCH_SECONDS


def test_an_interval_that_is_shorter_already_stays():
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS / 10)
    try:
        with giving_way():
            assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS / 10)
    finally:
        sys.setswitchinterval(before)


def begin(turns, name, order, release):
    """A thread that takes its turn, and has it until ``release``."""

    def work():
        turns.take()
        order.append(name)
        release.wait(TIMEOUT)
        order.append(turns.leave())

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_thread_of_the_background_waits_for_the_turn_of_another(monkeypatch):
    monkeypatch.setattr(yielding, "TURN_SECONDS", TIMEOUT)
    turns, order, releases = Turns(), [], [threading.Event(), threading.Event()]
    first = begin(turns, "first", order, releases[0])
    wait_until(lambda: order == ["first"], "it has its turn", TIMEOUT)
    second = begin(turns, "second", order, releases[1])
    wait_until(lambda: turns._changed._waiters, "the other one waits", TIMEOUT)
    assert order == ["first"]
    releases[0].set()
    first.join(TIMEOUT)
    wait_until(lambda: "second" in order, "the other one has its turn", TIMEOUT)
    releases[1].set()
    second.join(TIMEOUT)
    assert sorted(map(str, order)) == ["True", "True", "first", "second"]


def test_a_thread_that_hangs_loses_its_turn_and_holds_nobody_up():
    turns, order, release = Turns(), [], threading.Event()
    hanging = begin(turns, "hanging", order, release)
    wait_until(lambda: order == ["hanging"], "it has its turn", TIMEOUT)
    assert turns.take()
    assert not turns.take()  # it is its turn already
    release.set()
    hanging.join(TIMEOUT)
    assert order == ["hanging", False]  # and ends that of nobody else
    assert turns.leave()


def test_a_turn_inside_a_turn_ends_with_the_outer_one_and_is_left_while_it_waits_for_others():
    with in_turn():
        with in_turn():
            pass
        with out_of_turn():
            assert not yielding.turns.leave()
        assert yielding.turns.leave()
    with out_of_turn():
        assert not yielding.turns.leave()
    assert not yielding.turns.leave()
