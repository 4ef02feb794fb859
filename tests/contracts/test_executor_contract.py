"""What managers rely on, for every executor there is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tfs_lite.core.executor import Executor, PoolExecutor, Task
from tfs_lite.testing.lifecycle.executor import ManualExecutor

MAKERS: dict[str, Callable[[int], Executor]] = {
    "pool": lambda threads: PoolExecutor("contract", threads),
    "manual": ManualExecutor,
}


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Executor]]:
    made: list[Executor] = []

    def make(threads: int) -> Executor:
        made.append(MAKERS[request.param](threads))
        return made[-1]

    yield make
    for executor in made:
        executor.shutdown()


class Log:
    """Tasks that write down what happens to them."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def task(self, name: str, wanted: bool = True, error: BaseException | None = None) -> Task:
        def begin() -> bool:
            self.lines.append(f"{name} begin")
            return wanted

        def work() -> None:
            self.lines.append(f"{name} work")
            if error is not None:
                raise error

        return Task(name, begin, work, lambda found: self.lines.append(f"{name} done {found!r}"))


@pytest.fixture
def log() -> Log:
    return Log()


def test_task_begins_works_and_is_done(make: Callable[[int], Executor], log: Log) -> None:
    executor = make(1)
    executor.submit(log.task("t"))
    executor.shutdown()
    assert log.lines == ["t begin", "t work", "t done None"]


def test_task_that_is_not_wanted_any_more_neither_works_nor_is_done(make: Callable[[int], Executor], log: Log) -> None:
    executor = make(1)
    executor.submit(log.task("t", wanted=False))
    executor.shutdown()
    assert log.lines == ["t begin"]


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1)])
def test_done_gets_what_the_work_raised_and_the_next_task_runs(make, log, error: BaseException) -> None:
    executor = make(1)
    executor.submit(log.task("bad", error=error))
    executor.submit(log.task("good"))
    executor.shutdown()
    assert log.lines[2:] == [f"bad done {error!r}", "good begin", "good work", "good done None"]


def test_tasks_begin_in_the_order_of_submission(make: Callable[[int], Executor], log: Log) -> None:
    executor = make(1)
    for index in range(20):
        executor.submit(log.task(str(index)))
    executor.shutdown()
    assert [line for line in log.lines if line.endswith("begin")] == [f"{index} begin" for index in range(20)]


def test_nothing_runs_inside_submit(make: Callable[[int], Executor]) -> None:
    executor, threads = make(0), []
    executor.submit(Task("t", lambda: True, lambda: threads.append(threading.current_thread()), lambda error: None))
    assert threads == []
    executor.run_pending()
    assert threads == [threading.current_thread()]


def test_run_pending_does_nothing_where_threads_do_the_work(make: Callable[[int], Executor]) -> None:
    executor, threads = make(1), []
    executor.submit(Task("t", lambda: True, lambda: threads.append(threading.get_ident()), lambda error: None))
    executor.run_pending()
    assert threading.get_ident() not in threads


def test_task_submitted_by_a_task_runs_within_the_same_run(make: Callable[[int], Executor], log: Log) -> None:
    executor = make(0)
    executor.submit(Task("t", lambda: True, lambda: executor.submit(log.task("inner")), lambda error: None))
    executor.run_pending()
    assert log.lines == ["inner begin", "inner work", "inner done None"]


def test_size_can_be_changed_and_keeps_what_waits(make: Callable[[int], Executor], log: Log) -> None:
    executor = make(0)
    executor.submit(log.task("t"))
    executor.resize(2)
    assert executor.num_threads == 2
    executor.shutdown()
    assert len(log.lines) == 3


def test_shutdown_runs_what_waits_and_drops_what_comes_later(make: Callable[[int], Executor], log: Log) -> None:
    executor = make(2)
    for index in range(5):
        executor.submit(log.task(str(index)))
    executor.shutdown()
    before = list(log.lines)
    assert len(before) == 15
    executor.submit(log.task("late"))
    executor.run_pending()
    executor.shutdown()
    assert log.lines == before
