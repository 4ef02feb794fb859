"""The clock is replaced: what counts is when the lock is given away, not how long that takes."""

import sys
import threading

import pytest

from tests.support.servers.process import wait_until
from tfs_lite.core import yielding
from tfs_lite.core.yielding import INTERVAL_SECONDS, PAUSE_SECONDS, SWITCH_SECONDS, Turns, Yielder, giving_way, in_turn

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
        turns.leave()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_thread_of_the_background_begins_when_the_turn_of_another_ends(monkeypatch):
    monkeypatch.setattr(yielding, "TURN_SECONDS", TIMEOUT)
    turns, order, releases = Turns(), [], [threading.Event(), threading.Event()]
    first = begin(turns, "first", order, releases[0])
    wait_until(lambda: order == ["first"], "it has its turn", TIMEOUT)
    second = begin(turns, "second", order, releases[1])
    assert order == ["first"]
    releases[0].set()
    wait_until(lambda: order == ["first", "second"], "the other one has its turn", TIMEOUT)
    releases[1].set()
    first.join(TIMEOUT)
    second.join(TIMEOUT)


def test_threads_that_hang_hold_nobody_up_and_end_no_turn_but_their_own():
    turns, order, release = Turns(), [], threading.Event()
    hanging = [begin(turns, number, order, release) for number in range(8)]
    wait_until(lambda: len(order) == len(hanging), "each has had its turn", TIMEOUT)
    turns.take()
    release.set()
    for thread in hanging:
        thread.join(TIMEOUT)
    assert turns._owner == threading.get_ident()
    turns.leave()
    assert turns._owner is None


def test_a_turn_ends_where_the_thread_first_lets_others_run():
    with in_turn():
        assert yielding.turns._owner == threading.get_ident()
        yielding.let_others_run()
        assert yielding.turns._owner != threading.get_ident()
    assert yielding.turns._owner != threading.get_ident()
