"""The executors on which loads, unloads and looks at disks run.

Work is handed over as a :class:`Task` of three parts, so that the decision to start (``begin``) and the result
(``done``) are short and belong to the manager, while ``work`` is the slow effect in between. Nothing waits inside
a task: retries come back through the clock, and a load that lacks memory comes back when some is freed. A pool of
one thread is therefore enough for a broken model not to hold up a healthy one.

A task may hang all the same, in a disk or in a model's own code, and a thread cannot be interrupted. Therefore a pool
has :class:`Patience`: a task that runs longer is *overdue*. It goes on, but it no longer counts as a worker: another
thread takes its place.

All of it is work in the background: while tasks run, the threads that answer requests get the interpreter lock sooner
(:mod:`tfs_lite.core.yielding`), but for tasks that are overdue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.status import ServingError
from tfs_lite.core.threads import JOIN_SECONDS, is_users, join, leave_behind, start
from tfs_lite.core.yielding import begin_giving_way, end_giving_way, let_others_run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """``begin`` -> ``work`` -> ``done``, all on the same executor thread.

    ``begin`` answers whether the work is still wanted; if not, neither of the others is called. ``done`` gets the
    exception that ``work`` raised, or None. ``overdue`` is called on another thread, once, when the task has run longer
    than the executor's patience; it may come while ``done`` runs, or just after it. None of the three may raise.
    """

    name: str
    begin: Callable[[], bool]
    work: Callable[[], None]
    done: Callable[[BaseException | None], None]
    overdue: Callable[[], None] = ignore

    def run(self) -> None:
        if not self.begin():
            return
        try:
            self.work()
        except BaseException as error:  # a model that calls sys.exit() fails like any other
            self.done(error)
            if is_users(error):
                raise
        else:
            self.done(None)


@dataclass(frozen=True, slots=True)
class Patience:
    """A task that runs for more than ``seconds`` is overdue. At most ``most`` tasks at a time are overdue and have
    another thread in their place; one more keeps its own."""

    seconds: float
    most: int
    clock: Clock


class Executor(Protocol):
    """Runs tasks in the order of submission, up to ``num_threads`` at a time, not counting those that are overdue. Any
    thread may call any method."""

    @property
    def num_threads(self) -> int: ...

    def submit(self, task: Task) -> None:
        """Queues the task and returns. Never runs it inside the call. The queue is bounded by the number of managed
        servables, because a servable has at most one task that is wanted. After :meth:`shutdown` it is dropped."""

    def resize(self, num_threads: int) -> None:
        """Changes the number of threads and returns at once: queued tasks stay queued, running ones finish, and none
        is started while ``num_threads`` or more are running."""

    def run_pending(self) -> None:
        """With zero threads it runs everything that is queued, on the caller's thread. Otherwise it only sees to it
        that there are threads for what is queued, if the system has refused one before."""

    def renew(self) -> None:
        """Called by a task: it has come on, and the patience with it counts from now. One that is overdue stays so."""

    def shutdown(self, seconds: float = JOIN_SECONDS) -> None:
        """Runs what is queued, then ends the threads. Returns when they have ended, or after that many seconds; tasks
        that are overdue are not waited for. What has not ended is left behind (:mod:`tfs_lite.core.threads`); after 0
        seconds that is what is overdue, and the rest goes on."""


class _RunningTask:
    """One task on its thread."""

    __slots__ = ("due", "overdue", "task", "thread")

    def __init__(self, task: Task, due: float) -> None:
        self.task, self.due, self.overdue = task, due, False
        self.thread = threading.current_thread()


class PoolExecutor:
    """Threads that are started when needed. With size 0 there are none, and ``run_pending`` does the work. If the
    system refuses a thread, the tasks stay queued, and the next call of any method tries again."""

    def __init__(self, name: str, num_threads: int, patience: Patience | None = None) -> None:
        """Without ``patience`` no task is ever overdue."""
        self._name = name
        self._patience = patience
        self._changed = threading.Condition()  # guards the fields below
        self._queue: deque[Task] = deque()
        self._size = max(num_threads, 0)
        self._threads: set[threading.Thread] = set()
        self._running: dict[_RunningTask, None] = {}  # in the order of their start, those on callers' threads included
        self._overdue = 0  # how many of them are
        self._watched = False  # whether the clock will call ``_review``
        self._started = 0
        self._refused = False  # the system has refused the last thread
        self._closed = False

    @property
    def num_threads(self) -> int:
        with self._changed:
            return self._size

    def submit(self, task: Task) -> None:
        with self._changed:
            if self._closed:
                return
            self._queue.append(task)
            self._staff()

    def resize(self, num_threads: int) -> None:
        with self._changed:
            self._size = max(num_threads, 0)
            self._staff()

    def run_pending(self) -> None:
        with self._changed:
            if self._refused:
                self._staff()
        while (run := self._take_inline()) is not None:
            self._run(run)

    def renew(self) -> None:
        if self._patience is None:
            return
        due, here = self._patience.clock.monotonic() + self._patience.seconds, threading.current_thread()
        with self._changed:
            for run in self._running:
                if run.thread is here:
                    run.due = due

    def shutdown(self, seconds: float = JOIN_SECONDS) -> None:
        with self._changed:
            self._closed = True
            self._staff()
            threads = set(self._threads)
            ended = self._changed.wait_for(lambda: len(self._threads) <= self._overdue, seconds)
            hanging = {run.task.name: run.thread.is_alive for run in self._running if run.overdue or seconds}
            threads -= self._threads
            if ended:
                self._size = 0
        for thread in threads:  # each has nothing left to do but to end
            join(thread)
        leave_behind(hanging)
        if ended:
            self.run_pending()

    def _staff(self) -> None:
        """Starts as many threads as there is work that idle ones will not take. Called with the lock held."""
        while len(self._queue) > len(self._threads) - len(self._running) and len(self._threads) < self._capacity:
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{self._started + 1}", daemon=True)
            try:
                start(thread)
            except ServingError as error:
                if not self._refused:
                    logger.warning("%s; what is queued waits until one can be", error)
                self._refused = True
                break
            self._started += 1
            self._refused = False
            self._threads.add(thread)
        self._changed.notify_all()

    @property
    def _capacity(self) -> int:
        """The number of tasks that may run now. Called with the lock held."""
        return self._size + (min(self._overdue, self._patience.most) if self._patience is not None else 0)

    def _serve(self) -> None:
        while (run := self._take()) is not None:
            self._run(run)
            del run  # an idle thread keeps no loader alive

    def _take(self) -> _RunningTask | None:
        """The next task; None when this thread is to end (pool closed and empty, or shrunk)."""
        with self._changed:
            while len(self._threads) <= self._capacity:
                if self._queue and len(self._running) < self._capacity:
                    return self._enter()
                if self._closed and not self._queue:
                    break
                self._changed.wait()
            self._threads.discard(threading.current_thread())
            self._changed.notify_all()
            return None

    def _take_inline(self) -> _RunningTask | None:
        with self._changed:
            if self._size > 0 or self._running or not self._queue:
                return None
            return self._enter()

    def _enter(self) -> _RunningTask:
        """Called with the lock held."""
        patience = self._patience
        run = _RunningTask(
            self._queue.popleft(), patience.clock.monotonic() + patience.seconds if patience is not None else 0
        )
        self._running[run] = None
        begin_giving_way()
        if patience is not None and not self._watched:
            self._watched = True
            patience.clock.call_later(patience.seconds, self._review)
        return run

    def _run(self, run: _RunningTask) -> None:
        try:
            let_others_run()
            run.task.run()
        except BaseException as error:  # the thread goes on, whatever it is
            if is_users(error):
                raise
            logger.exception("task %s broke its contract: begin and done must not raise", run.task.name)
        finally:
            with self._changed:
                del self._running[run]
                self._overdue -= run.overdue
                if not run.overdue:
                    end_giving_way()
                self._changed.notify_all()

    def _review(self) -> None:
        """Finds the tasks that are overdue, on the clock's thread. One delayed call watches over all tasks."""
        patience = self._patience
        assert patience is not None  # else it is never called
        with self._changed:
            now = patience.clock.monotonic()
            waited_for = [run for run in self._running if not run.overdue]
            late = [run for run in waited_for if run.due <= now]
            for run in late:
                run.overdue = True
                end_giving_way()  # what hangs may do so for ever
            self._overdue += len(late)
            left = min((run.due - now for run in waited_for if not run.overdue), default=None)
            self._watched = left is not None
            if left is not None:
                patience.clock.call_later(left, self._review)
            self._staff()
        for run in late:
            logger.warning(
                "%s has run for %g s and goes on; others do not wait for it", run.task.name, patience.seconds
            )
            run.task.overdue()
