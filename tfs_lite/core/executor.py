"""Where loads and unloads run.

Work is handed over as a :class:`Task` of three parts, so that the decision to start (``begin``) and the result
(``done``) are short and belong to the manager, while ``work`` is the slow effect in between. Nothing waits inside
a task: retries come back through the clock, and a load that lacks memory comes back when some is freed. A pool of
one thread is therefore enough for a broken model not to hold up a healthy one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """``begin`` -> ``work`` -> ``done``, all on the same executor thread.

    ``begin`` answers whether the work is still wanted; if not, neither of the others is called. ``done`` gets the
    exception that ``work`` raised, or None. ``begin`` and ``done`` must not raise.
    """

    name: str
    begin: Callable[[], bool]
    work: Callable[[], None]
    done: Callable[[BaseException | None], None]

    def run(self) -> None:
        if not self.begin():
            return
        try:
            self.work()
        except KeyboardInterrupt as error:  # only on a caller's thread (size 0); it is meant for the caller too
            self.done(error)
            raise
        except BaseException as error:  # a model that calls sys.exit() fails like any other
            self.done(error)
        else:
            self.done(None)


class Executor(Protocol):
    """Runs tasks in the order of submission, up to ``num_threads`` at a time. Any thread may call any method."""

    @property
    def num_threads(self) -> int: ...

    def submit(self, task: Task) -> None:
        """Queues the task and returns. Never runs it inside the call. The queue is bounded by the number of managed
        servables, because a servable has at most one task that is wanted. After :meth:`shutdown` it is dropped."""

    def resize(self, num_threads: int) -> None:
        """Changes the number of threads and returns at once: queued tasks stay queued, running ones finish, and none
        is started while ``num_threads`` or more are running."""

    def run_pending(self) -> None:
        """With zero threads: runs everything that is queued, on the caller's thread. Otherwise does nothing."""

    def shutdown(self) -> None:
        """Runs what is queued, then ends the threads. Returns when they have ended."""


class PoolExecutor:
    """Threads that are started when needed. With size 0 there are none, and ``run_pending`` does the work."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._changed = threading.Condition()  # guards the fields below
        self._queue: deque[Task] = deque()
        self._size = max(num_threads, 0)
        self._threads: set[threading.Thread] = set()
        self._running = 0  # tasks, those on callers' threads included
        self._started = 0
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
        while (task := self._take_inline()) is not None:
            self._run(task)

    def shutdown(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        with self._changed:
            self._size = 0
        self.run_pending()

    def _staff(self) -> None:
        """Starts as many threads as there is work that idle ones will not take. Called with the lock held."""
        while len(self._queue) > len(self._threads) - self._running and len(self._threads) < self._size:
            self._started += 1
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True)
            self._threads.add(thread)
            thread.start()
        self._changed.notify_all()

    def _serve(self) -> None:
        while (task := self._take()) is not None:
            self._run(task)
            del task  # an idle thread keeps no loader alive

    def _take(self) -> Task | None:
        """The next task; None when this thread is to end (pool closed and empty, or shrunk)."""
        with self._changed:
            while len(self._threads) <= self._size:
                if self._queue and self._running < self._size:
                    self._running += 1
                    return self._queue.popleft()
                if self._closed and not self._queue:
                    break
                self._changed.wait()
            self._threads.discard(threading.current_thread())
            return None

    def _take_inline(self) -> Task | None:
        with self._changed:
            if self._size > 0 or self._running or not self._queue:
                return None
            self._running = 1
            return self._queue.popleft()

    def _run(self, task: Task) -> None:
        try:
            task.run()
        except Exception:
            logger.exception("task %s broke its contract: begin and done must not raise", task.name)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
