"""Bounds of calls and joins, and one loop that runs at intervals or when woken."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from tests.support.servers.process import wait_until
from tests.support.threads import LINUX, niceness
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.core.threads import (
    BoundedCalls,
    PeriodicThread,
    Pool,
    all_within,
    call_in_background,
    left_behind,
    start,
    start_all,
    within,
)
from tfs_lite.core.yielding import NICENESS

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


def test_stop_does_not_wait_for_a_run_that_hangs() -> None:
    inside, release = threading.Event(), threading.Event()

    def hang() -> None:
        inside.set()
        release.wait()

    thread = PeriodicThread("a thread that hangs", hang, None)
    thread.start()
    assert inside.wait(60)
    thread.stop(0.05)
    assert "a thread that hangs" in left_behind()
    release.set()
    thread.stop(60)
    assert "a thread that hangs" not in left_behind()


def test_thread_that_the_system_refuses_may_be_started_again(refused_threads) -> None:
    ran = threading.Event()
    thread = PeriodicThread("refused", ran.set, None)
    refused_threads.next = 1
    with pytest.raises(ServingError) as refusal:
        thread.start()
    assert refusal.value.code is StatusCode.UNAVAILABLE
    thread.start()
    assert ran.wait(60)
    thread.stop()


def test_call_in_the_background_gives_the_result_or_the_error_of_a_daemon_thread_that_has_ended() -> None:
    ran = call_in_background(threading.current_thread, "apart")
    assert (ran.name, ran.daemon, ran.is_alive()) == ("apart", True, False)
    with pytest.raises(SystemExit):
        call_in_background(sys.exit, "apart")


def test_call_in_the_background_keeps_no_error_alive() -> None:
    class Held:
        pass

    found = list[weakref.ref[Held]]()

    def fail() -> None:
        held = Held()
        found.append(weakref.ref(held))
        raise OSError("gone")

    gc.disable()
    try:
        with pytest.raises(OSError, match="gone"):
            call_in_background(fail, "apart")
        assert found[0]() is None
    finally:
        gc.enable()


def test_call_in_the_background_is_unavailable_without_a_thread(refused_threads) -> None:
    refused_threads.next = 1
    with pytest.raises(ServingError) as refused:
        call_in_background(threading.current_thread, "apart")
    assert refused.value.code is StatusCode.UNAVAILABLE


@LINUX
def test_call_in_the_background_has_a_low_priority() -> None:
    usual = niceness()
    assert call_in_background(niceness, "apart") == max(usual, NICENESS)
    assert niceness() == usual


def test_threads_that_are_started_together_begin_when_the_last_one_has_been_started(refused_threads) -> None:
    began, started = list[str](), list[str]()
    names = ["a", "b", "c"]
    threads = [threading.Thread(target=began.append, args=(name,), name=name) for name in names]
    refused_threads.on_start = lambda thread: (started.append(thread.name), began and pytest.fail("too early"))
    start_all(threads)
    for thread in threads:
        thread.join(60)
    assert (started, sorted(began)) == (names, names)


def test_of_threads_that_are_started_together_none_begins_if_one_is_refused(refused_threads) -> None:
    began = list[str]()
    threads = [threading.Thread(target=began.append, args=(name,), name=name) for name in ("a", "b", "c")]
    refused_threads.on_start = lambda thread: setattr(refused_threads, "next", int(thread.name == "c"))
    with pytest.raises(ServingError) as refused:
        start_all(threads)
    assert refused.value.code is StatusCode.UNAVAILABLE
    assert "the thread c cannot be started" in str(refused.value)
    assert (began, [thread.is_alive() for thread in threads]) == ([], [False] * 3)
    refused_threads.on_start = lambda thread: None
    start(threads[2])
    threads[2].join(60)
    assert began == ["c"], "the refused one may be started again, by itself"


def test_bounded_call_gives_the_result_or_the_error() -> None:
    calls = BoundedCalls(60.0)
    assert calls.call("a", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls.call("a", lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        calls.call("a", raise_timeout)


def raise_timeout() -> None:
    raise TimeoutError("its own")


def test_call_that_hangs_is_refused_until_it_has_answered() -> None:
    calls, release = BoundedCalls(0.05, most=1), threading.Event()
    for _ in range(2):
        with pytest.raises(ServingError) as refusal:
            calls.call("the disk", release.wait)
        assert refusal.value.status.reason is Reason.DISK_HANGS
    with pytest.raises(ServingError):
        calls.call("another one", lambda: True)
    assert [name for name in left_behind() if name == "the disk"] == ["the disk"]
    release.set()
    wait_until(lambda: "the disk" not in left_behind(), "the thread has ended")
    assert calls.call("the disk", lambda: True)


def test_what_ends_something_has_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    assert within(60, "quick", lambda: None)
    assert within(60, "broken", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert "broken failed" in caplog.text
    assert not within(0.05, "slow", lambda: release.wait())  # type: ignore[arg-type, return-value]
    release.set()


def test_what_ends_many_things_has_one_bound_and_one_thread_more_for_each_that_hangs() -> None:
    release, threads = threading.Event(), list[int]()
    quick = ("quick", lambda: threads.append(threading.get_ident()))
    hanging = ("hanging", lambda: release.wait() and None)
    assert all_within(60, [quick] * 20)
    assert len(set(threads)) == 1
    assert not all_within(0.2, [hanging, quick, hanging, quick])
    assert len(threads) == 22
    assert left_behind().count("hanging") == 1  # by name
    release.set()


def test_call_that_hangs_for_good_is_tried_again_beside_it() -> None:
    """After as long again, then twice, four times ... as long; half of the threads at most hang in one key."""
    now = [0.0]
    calls, release, begun = BoundedCalls(0.05, most=8, monotonic=lambda: now[0]), threading.Event(), []

    def hang() -> None:
        begun.append(now[0])
        release.wait()

    for now[0] in (index * 0.05 for index in range(100)):
        with pytest.raises(ServingError):
            calls.call("the config", hang)
    assert begun == pytest.approx([0.0, 0.05, 0.15, 0.35])
    assert calls.call("another", lambda: 7) == 7
    release.set()
    wait_until(lambda: "the config" not in left_behind(), "the thread has ended")
    assert calls.call("the config", lambda: 7) == 7


def test_path_that_leads_to_something_else_is_read_though_the_first_read_never_ends() -> None:
    now, forever = [0.0], threading.Event()
    calls = BoundedCalls(0.05, monotonic=lambda: now[0])
    with pytest.raises(ServingError):
        calls.call("the path", forever.wait)
    with pytest.raises(ServingError):
        calls.call("the path", lambda: "good")
    now[0] = 0.06
    assert calls.call("the path", lambda: "good") == "good"
    assert calls.call("the path", lambda: "good") == "good"
    forever.set()


def test_pool_does_its_work_on_the_threads_that_it_has_while_there_are_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    pool, gate = Pool(4, "slow"), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        waiting = [pool.submit(gate.wait, 60), *(pool.submit(threading.get_ident) for _ in range(3))]
        gate.set()
        assert len({each.result(60) for each in waiting[1:]}) == 1
        with pytest.raises(ServingError, match="the thread late cannot be started: can't start new thread") as caught:
            Pool(4, "late")
        assert caught.value.code is StatusCode.UNAVAILABLE
    pool.shutdown()
