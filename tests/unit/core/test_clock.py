"""What only the real clock does."""

from __future__ import annotations

import threading

from tfs_lite.core.clock import SystemClock


def test_closing_drops_what_is_pending_and_ends_the_thread() -> None:
    before = threading.enumerate()
    clock = SystemClock()
    called: list[int] = []
    clock.call_later(3600, lambda: called.append(1))
    clock.close()
    clock.close()
    clock.call_later(0, lambda: called.append(2))
    assert called == []
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


def test_clock_may_be_closed_by_a_call_of_its_own() -> None:
    clock = SystemClock()
    closed = threading.Event()
    clock.call_later(0, lambda: (clock.close(), closed.set()))
    assert closed.wait(60)


def test_call_that_raises_does_not_stop_the_others(caplog) -> None:
    clock = SystemClock()
    done = threading.Event()

    def broken() -> None:
        raise RuntimeError("mine")

    clock.call_later(0, broken)
    clock.call_later(0, done.set)
    assert done.wait(60)
    clock.close()
    assert "a delayed call failed" in caplog.text


def test_earlier_call_overtakes_a_later_one_that_was_asked_first() -> None:
    clock = SystemClock()
    done = threading.Event()
    clock.call_later(3600, lambda: None)
    clock.call_later(0, done.set)
    assert done.wait(60)
    clock.close()


def test_call_that_finds_no_thread_is_kept_for_the_next_one(refused_threads) -> None:
    clock, done = SystemClock(), threading.Event()
    refused_threads.next = 1
    clock.call_later(0, done.set)
    clock.call_later(3600, lambda: None)
    assert done.wait(60)
    clock.close()
