"""What only a pool of threads does: resizing, thread counts, ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tfs_lite.core.executor import PoolExecutor, Task


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
    pause = threading.Event()
    while not order:
        pool.run_pending()
        pause.wait(0.001)
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
