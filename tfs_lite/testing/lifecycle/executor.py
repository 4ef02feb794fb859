"""An executor whose every step is taken by the test.

Each task goes through ``start`` (its begin), ``work`` and ``finish`` (its done), and may become overdue in between. A
test, or hypothesis, calls them one by one, in any order among the running tasks, and so chooses the interleaving that
threads would leave to chance.
"""

from __future__ import annotations

import threading
from collections import deque

from tfs_lite.core.executor import Task
from tfs_lite.core.threads import JOIN_SECONDS

MOST_OVERDUE = 4


class RunningTask:
    """A task between ``start`` and ``finish``."""

    __slots__ = ("error", "overdue", "task", "worked")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.overdue = False
        self.worked = False
        self.error: BaseException | None = None

    def work(self) -> None:
        self.worked = True
        try:
            self.task.work()
        except BaseException as error:
            self.error = error


class ManualExecutor:
    """An :class:`tfs_lite.core.executor.Executor`. ``num_threads`` bounds how many tasks run at a time; with 0, tasks
    run in ``run_pending`` only. Steps are taken by one thread at a time; any thread may submit."""

    def __init__(self, num_threads: int = 1) -> None:
        self._lock = threading.Lock()  # guards _queue, _size and _closed
        self._queue: deque[Task] = deque()
        self._size = max(num_threads, 0)
        self._closed = False
        self._running: list[RunningTask] = []

    @property
    def num_threads(self) -> int:
        with self._lock:
            return self._size

    @property
    def queued(self) -> list[str]:
        """The names of the tasks that wait, first come first."""
        with self._lock:
            return [task.name for task in self._queue]

    @property
    def running(self) -> list[str]:
        """The names of the tasks between ``start`` and ``finish``, in the order of their start."""
        return [running.task.name for running in self._running]

    @property
    def can_start(self) -> bool:
        """Whether a task waits and a thread is free."""
        return bool(self.queued) and self.has_free_thread

    @property
    def has_free_thread(self) -> bool:
        """Whether another task may run. Some that are overdue do not count."""
        overdue = sum(running.overdue for running in self._running)
        return len(self._running) - min(overdue, MOST_OVERDUE) < self.num_threads

    @property
    def hanging(self) -> list[str]:
        """The names of the running tasks that are overdue."""
        return [running.task.name for running in self._running if running.overdue]

    def submit(self, task: Task) -> None:
        with self._lock:
            if not self._closed:
                self._queue.append(task)

    def resize(self, num_threads: int) -> None:
        with self._lock:
            self._size = max(num_threads, 0)

    def start(self, index: int = 0) -> bool:
        """Runs the ``begin`` of a waiting task; False if it was not wanted any more."""
        if not self.can_start:
            raise RuntimeError(f"{len(self._running)} tasks run already, or none waits")
        running = RunningTask(self._take(index))
        if not running.task.begin():
            return False
        self._running.append(running)
        return True

    def work(self, index: int = 0) -> None:
        """Runs the ``work`` of a running task and keeps what it raised for ``finish``."""
        if self._running[index].worked:
            raise RuntimeError("its work is done")
        self._running[index].work()

    def pass_time(self, index: int = 0) -> None:
        """A running task has run for so long that it is overdue; nothing happens to one that is already."""
        running = self._running[index]
        if not running.overdue:
            running.overdue = True
            running.task.overdue()

    def finish(self, index: int = 0) -> None:
        """Runs the ``done`` of a running task, after its ``work`` if that was not run yet."""
        running = self._running[index]
        if not running.worked:
            running.work()
        del self._running[index]
        running.task.done(running.error)

    def run_one(self) -> bool:
        """Takes all steps of the next waiting task; False if none waits."""
        if not self.queued:
            return False
        self._take(0).run()
        return True

    def run_all(self) -> None:
        """Takes all steps of every waiting task, and of those that are submitted meanwhile."""
        while self.run_one():
            pass

    def run_pending(self) -> None:
        while self.num_threads == 0 and self.run_one():
            pass

    def renew(self) -> None:
        """A task is overdue when the test says so."""

    def shutdown(self, seconds: float = JOIN_SECONDS) -> None:
        with self._lock:
            self._closed = True
        if seconds:
            self.run_all()
            while self._running:
                self.finish()

    def _take(self, index: int) -> Task:
        with self._lock:
            task = self._queue[index]
            del self._queue[index]
            return task
