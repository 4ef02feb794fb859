"""What only a pool of threads does: resizing, thread counts, ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.servers.process import wait_until
from tfs_lite.core.executor import Patience, PoolExecutor, Task
from tfs_lite.core.threads import left_behind
from tfs_lite.core.yielding import SWITCH_SECONDS
from tfs_lite.testing.lifecycle.clock import VirtualClock


def task(work: Callable[[], None], done: Callable[[BaseException | None], None] = lambda error: None) -> Task:
    return Task("t", lambda: True, work, done)


class Gate:
    """Work that reports its start and waits until it is let through."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = False
        self.running = self.most = self.finished = 0

    def work(self) -> None:
        with self._changed:
            self.running += 1
            self.most = max(self.most, self.running)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open, 60)
            self.running -= 1
            self.finished += 1
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 60)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def names(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def test_tasks_run_side_by_side_up_to_the_size(gate: Gate) -> None:
    pool = PoolExecutor("side", 3)
    for _ in range(7):
        pool.submit(task(gate.work))
    gate.wait_for(lambda: gate.running == 3)
    gate.open()
    pool.shutdown()
    assert (gate.most, gate.finished) == (3, 7)


def test_growing_starts_everything_that_waits(gate: Gate) -> None:
    pool = PoolExecutor("grow", 1)
    for _ in range(4):
        pool.submit(task(gate.work))
    gate.wait_for(lambda: gate.running == 1)
    pool.resize(4)
    gate.wait_for(lambda: gate.running == 4)
    gate.open()
    pool.shutdown()


def test_shrinking_returns_at_once_and_starts_nothing_above_the_new_size(gate: Gate) -> None:
    pool = PoolExecutor("shrink", 3)
    for _ in range(3):
        pool.submit(task(gate.work))
    gate.wait_for(lambda: gate.running == 3)
    pool.resize(1)
    assert pool.num_threads == 1
    late = Gate()
    for _ in range(3):
        pool.submit(task(late.work))
    gate.open()
    late.wait_for(lambda: late.running == 1)
    late.open()
    pool.shutdown()
    assert (late.most, late.finished) == (1, 3)


def test_pool_of_size_zero_runs_what_waits_once_it_grows(gate: Gate) -> None:
    pool = PoolExecutor("zero", 0)
    pool.submit(task(gate.work))
    assert names("zero") == []
    pool.resize(1)
    gate.open()
    pool.shutdown()
    assert gate.finished == 1


def test_pool_that_shrinks_to_zero_leaves_the_rest_to_the_caller() -> None:
    pool, order = PoolExecutor("tozero", 1), []
    gate = Gate()
    pool.submit(task(gate.work))
    gate.wait_for(lambda: gate.running == 1)
    pool.submit(task(lambda: order.append(threading.current_thread())))
    pool.resize(0)
    pool.run_pending()
    assert order == []  # one is still running: never two at a time
    gate.open()

    def ran() -> bool:
        pool.run_pending()
        return bool(order)

    wait_until(ran, "the caller has run it")
    assert order == [threading.current_thread()]


def test_pool_that_grows_from_zero_does_not_run_beside_a_caller(gate: Gate) -> None:
    pool = PoolExecutor("fromzero", 0)
    for _ in range(2):
        pool.submit(task(gate.work))
    caller = threading.Thread(target=pool.run_pending)
    caller.start()
    gate.wait_for(lambda: gate.running == 1)
    pool.resize(1)
    gate.open()
    caller.join(60)
    pool.shutdown()
    assert (gate.most, gate.finished) == (1, 2)


def test_threads_end_with_the_pool() -> None:
    pool = PoolExecutor("ending", 2)
    ran = threading.Event()
    pool.submit(task(ran.set))
    assert ran.wait(60)
    pool.shutdown()
    assert names("ending") == []


def test_negative_size_means_zero() -> None:
    pool = PoolExecutor("negative", -1)
    assert pool.num_threads == 0
    pool.resize(-5)
    assert pool.num_threads == 0


def test_interrupt_on_the_callers_thread_reaches_the_caller_and_the_task() -> None:
    pool, errors = PoolExecutor("interrupt", 0), []

    def interrupted() -> None:
        raise KeyboardInterrupt

    pool.submit(task(interrupted, errors.append))
    with pytest.raises(KeyboardInterrupt):
        pool.run_pending()
    assert isinstance(errors[0], KeyboardInterrupt)
    pool.shutdown()


def test_task_whose_done_raises_is_logged_and_the_thread_lives_on(caplog) -> None:
    pool, ran = PoolExecutor("done", 1), threading.Event()

    def broken(error: BaseException | None) -> None:
        raise RuntimeError("mine")

    pool.submit(task(lambda: None, broken))
    pool.submit(task(ran.set))
    assert ran.wait(60)
    pool.shutdown()
    assert "broke its contract" in caplog.text


def patient(clock: VirtualClock, threads: int = 1, most: int = 2) -> PoolExecutor:
    return PoolExecutor("patient", threads, Patience(10.0, most, clock))


def test_task_that_takes_too_long_gives_its_place_to_another(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    clock, late, ran = VirtualClock(), threading.Event(), threading.Event()
    pool = patient(clock)
    pool.submit(replace(task(gate.work), overdue=late.set))
    pool.submit(task(ran.set))
    gate.wait_for(lambda: gate.running == 1)
    clock.advance(9.0)
    assert (late.is_set(), ran.is_set()) == (False, False)
    clock.advance(1.0)
    assert late.is_set()
    assert ran.wait(60)
    clock.advance(100.0)
    assert len([record for record in caplog.records if "has run for 10 s" in record.message]) == 1
    gate.open()
    pool.shutdown()


def test_other_threads_get_the_interpreter_lock_sooner_while_a_task_runs_that_is_not_overdue(gate: Gate) -> None:
    clock, before = VirtualClock(), sys.getswitchinterval()
    pool = patient(clock)
    for count in range(1, 3):
        pool.submit(task(gate.work))
        gate.wait_for(lambda: gate.running == count)  # noqa: B023
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
        clock.advance(10.0)
        assert sys.getswitchinterval() == before
    gate.open()
    pool.shutdown()
    assert sys.getswitchinterval() == before


def test_so_many_tasks_may_be_overdue_and_one_more_keeps_its_place(gate: Gate) -> None:
    clock, ran = VirtualClock(), threading.Event()
    pool = patient(clock, most=2)
    for count in range(1, 4):
        pool.submit(task(gate.work))
        gate.wait_for(lambda: gate.running == count)  # noqa: B023
        clock.advance(10.0)
    pool.submit(task(ran.set))
    clock.advance(10.0)
    assert not ran.is_set()
    gate.open()
    assert ran.wait(60)
    pool.shutdown()
    assert gate.most == 3


def test_pool_has_its_size_again_when_the_overdue_task_has_ended(gate: Gate) -> None:
    clock = VirtualClock()
    pool = patient(clock)
    pool.submit(task(gate.work))
    gate.wait_for(lambda: gate.running == 1)
    clock.advance(10.0)
    gate.open()
    gate.wait_for(lambda: gate.running == 0)
    late = Gate()
    for _ in range(3):
        pool.submit(task(late.work))
    late.wait_for(lambda: late.running == 1)
    late.open()
    pool.shutdown()
    assert (late.most, late.finished) == (1, 3)


def test_task_that_comes_on_is_not_overdue() -> None:
    clock, steps, late = VirtualClock(), threading.Semaphore(0), threading.Event()
    pool, reached = patient(clock), threading.Semaphore(0)

    def work() -> None:
        for _ in range(3):
            reached.release()
            assert steps.acquire(timeout=60)
            pool.renew()

    pool.submit(replace(task(work), overdue=late.set))
    for _ in range(3):
        assert reached.acquire(timeout=60)
        clock.advance(9.0)
        steps.release()
    pool.shutdown()
    assert not late.is_set()


def test_shutdown_does_not_wait_for_what_is_overdue_and_says_so(gate: Gate) -> None:
    clock = VirtualClock()
    pool = patient(clock)
    pool.submit(replace(task(gate.work), name="the slow one"))
    gate.wait_for(lambda: gate.running == 1)
    clock.advance(10.0)
    pool.shutdown(60.0)
    assert "the slow one" in left_behind()
    gate.open()
    gate.wait_for(lambda: gate.running == 0)


def test_shutdown_has_a_bound(gate: Gate) -> None:
    pool = PoolExecutor("bounded", 1)
    pool.submit(replace(task(gate.work), name="the one without patience"))
    gate.wait_for(lambda: gate.running == 1)
    pool.shutdown(0.05)
    assert "the one without patience" in left_behind()
    gate.open()


def test_thread_that_the_system_refuses_is_tried_again_with_the_next_task(refused_threads, caplog) -> None:
    pool, ran = PoolExecutor("refused", 1), []
    refused_threads.next = 2
    pool.submit(task(lambda: ran.append(1)))
    pool.run_pending()
    assert names("refused") == []
    pool.submit(task(lambda: ran.append(2)))
    pool.shutdown()
    assert ran == [1, 2]
    assert len([record for record in caplog.records if "can't start new thread" in record.message]) == 1


def test_thread_that_was_refused_is_tried_again_when_the_pool_is_looked_after(refused_threads) -> None:
    pool, ran = PoolExecutor("refused", 1), threading.Event()
    refused_threads.next = 1
    pool.submit(task(ran.set))
    pool.run_pending()
    assert ran.wait(60)
    pool.shutdown()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("step", ["begin", "work", "done"])
def test_no_exception_of_a_task_ends_its_thread(step: str, error: BaseException) -> None:
    pool, ran, errors = PoolExecutor("ends", 1), threading.Event(), []

    def fail(*_: object) -> bool:
        raise error

    steps = {"begin": lambda: True, "work": lambda: None, "done": errors.append}
    pool.submit(Task("bad", **{**steps, step: fail}))
    pool.submit(task(ran.set))
    assert ran.wait(60)
    assert errors == ([error] if step == "work" else [])
    pool.shutdown()
    assert names("ends") == []


def test_interrupt_that_a_task_raises_on_another_callers_thread_does_not_reach_the_caller() -> None:
    pool, errors, ended = PoolExecutor("inline", 0), [], []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def caller() -> None:
        pool.run_pending()
        ended.append("the caller went on")

    pool.submit(task(interrupted, errors.append))
    thread = threading.Thread(target=caller)
    thread.start()
    thread.join(60)
    assert (ended, [type(error) for error in errors]) == (["the caller went on"], [KeyboardInterrupt])
    pool.shutdown()
