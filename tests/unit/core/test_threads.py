"""One loop that runs at intervals or when woken."""

from __future__ import annotations

import threading

import pytest

from tfs_lite.core.threads import PeriodicThread

FOREVER = 3600.0


class Counter:
    """Counts runs and lets a test wait for the n-th."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.runs = 0
        self.overlaps = 0
        self._running = False

    def __call__(self) -> None:
        with self._changed:
            self.overlaps += self._running
            self._running = True
        with self._changed:
            self.runs += 1
            self._running = False
            self._changed.notify_all()

    def wait_for(self, runs: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.runs >= runs, 60)


@pytest.mark.parametrize("interval", [None, FOREVER])
def test_runs_at_once_and_then_whenever_woken(interval: float | None) -> None:
    count = Counter()
    thread = PeriodicThread("t", count, interval)
    thread.start()
    count.wait_for(1)
    thread.wake()
    count.wait_for(2)
    thread.stop()
    assert count.runs == 2


def test_runs_at_intervals_without_being_woken() -> None:
    count = Counter()
    thread = PeriodicThread("t", count, 0.001)
    thread.start()
    count.wait_for(5)
    thread.stop()
    assert count.overlaps == 0


def test_wakes_before_the_start_count() -> None:
    count = Counter()
    thread = PeriodicThread("t", count, FOREVER)
    thread.wake()
    thread.start()
    count.wait_for(2)
    thread.stop()


def test_many_wakes_during_a_run_count_as_one() -> None:
    entered, go_on = threading.Event(), threading.Event()
    runs: list[int] = []

    def slow() -> None:
        runs.append(1)
        entered.set()
        go_on.wait(60)

    thread = PeriodicThread("t", slow, FOREVER)
    thread.start()
    assert entered.wait(60)
    for _ in range(5):
        thread.wake()
    entered.clear()
    go_on.set()
    assert entered.wait(60)
    thread.stop()
    assert len(runs) == 2


def test_run_that_raises_is_logged_and_the_next_one_comes(caplog) -> None:
    second = threading.Event()
    runs: list[int] = []

    def broken() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("mine")
        second.set()

    thread = PeriodicThread("t", broken, FOREVER)
    thread.start()
    thread.wake()
    assert second.wait(60)
    thread.stop()
    assert "a run failed" in caplog.text


def test_stop_waits_for_the_run_in_progress_and_may_be_repeated() -> None:
    entered, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def slow() -> None:
        entered.set()
        go_on.wait(60)
        ended.append("run")

    thread = PeriodicThread("t", slow, FOREVER)
    thread.start()
    assert entered.wait(60)
    stopping = threading.Thread(target=lambda: (thread.stop(), ended.append("stopped")))
    stopping.start()
    go_on.set()
    stopping.join(60)
    thread.stop()
    thread.wake()
    assert ended == ["run", "stopped"]


def test_thread_that_was_never_started_can_be_stopped() -> None:
    PeriodicThread("t", lambda: None, FOREVER).stop()
