"""Threads that run a model, and how they sleep and are woken.

    idle (asleep, perhaps with a timeout) --wake--> awake: takes a batch, runs it, asks for the next

A :class:`WorkerThread` is one thread and the model that it runs. It sleeps on a lock used as a binary semaphore, the
cheapest wake-up that Python has. A :class:`WorkerPool` knows all workers of one servable: which are idle, which have
lost their worker process, which leave.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf

from tfs_lite.core.model import Model
from tfs_lite.core.yielding import wait_exactly


class WorkerThread:
    """A thread that sleeps while it has no work. ``idle`` is guarded by the owner's lock: the worker's thread sets it
    and then sleeps without the lock; the thread that clears it calls ``wake``, exactly once. ``ending`` is set when the
    thread has to end after its batch."""

    __slots__ = ("_wakeup", "ending", "idle", "model", "thread")

    def __init__(self, model: Model, name: str, serve: Callable[[WorkerThread], None]) -> None:
        self.model = model
        self.idle = False
        self.ending = threading.Event()
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        self.thread = threading.Thread(target=self._run, args=(serve,), name=name, daemon=True)

    def _run(self, serve: Callable[[WorkerThread], None]) -> None:
        wait_exactly()
        serve(self)

    def sleep(self, seconds: float) -> bool:
        """Blocks until ``wake``; returns False if that has not come after ``seconds``."""
        if seconds == inf:
            return self._wakeup.acquire()
        return self._wakeup.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def wake(self) -> None:
        self._wakeup.release()


def make_workers(
    models: Iterable[Model], name: str, threads: int, serve: Callable[[WorkerThread], None], first: int = 0
) -> list[WorkerThread]:
    """Makes as many workers for each model as it asks for, or up to ``threads`` where it allows that many at once. They
    are not started. ``first`` is how many were made before."""
    workers: list[WorkerThread] = []
    for model in models:
        for _ in range(max(model.useful_threads, min(threads, model.concurrency))):
            number = first + len(workers)
            workers.append(WorkerThread(model, f"tfs-model-{name}-{number}" if number else f"tfs-model-{name}", serve))
    return workers


class WorkerPool:
    """The workers of one servable, which locks around everything but ``join``.

    A worker that leaves is not counted any more, but its thread may still be in a batch. The last thread inside a model
    that leaves closes the model.
    """

    def __init__(self, workers: Sequence[WorkerThread]) -> None:
        self._workers = list(workers)
        self._idle: deque[WorkerThread] = deque()  # the one that has been idle longest is woken first
        self._lost = set[WorkerThread]()  # their worker processes are being started again
        self._leaving: list[WorkerThread] = []
        self._ended: list[WorkerThread] = []  # their threads have ended or are about to
        self.made = len(self._workers)
        """How many workers there have ever been."""
        self.is_lost = False
        """Whether every worker has lost its process."""

    def __len__(self) -> int:
        return len(self._workers)

    def mark_idle(self, worker: WorkerThread) -> None:
        """The worker has nothing to do and will sleep."""
        worker.idle = True
        self._idle.append(worker)

    def pop_idle(self) -> WorkerThread | None:
        """Returns an idle worker, which the caller has to wake."""
        if not self._idle:
            return None
        worker = self._idle.popleft()
        worker.idle = False
        return worker

    def mark_awake(self, worker: WorkerThread) -> bool:
        """The worker's sleep has timed out. Returns False if another thread has popped it, and will wake it."""
        if not worker.idle:
            return False
        worker.idle = False
        self._idle.remove(worker)
        return True

    def mark_lost(self, worker: WorkerThread) -> None:
        """The worker's process has died."""
        if not worker.ending.is_set():
            self._lost.add(worker)
            self.is_lost = len(self._lost) == len(self._workers)

    def mark_recovered(self, worker: WorkerThread) -> None:
        self._lost.discard(worker)
        self.is_lost = len(self._lost) == len(self._workers)

    def change(self, add: Sequence[WorkerThread], remove: Collection[Model]) -> list[WorkerThread]:
        """Adds workers, which the caller starts, and removes those of some models. Returns the workers to wake."""
        leaving = [worker for worker in self._workers if any(worker.model is model for model in remove)]
        self._workers = [worker for worker in self._workers if worker not in leaving] + list(add)
        self.made += len(add)
        self._leaving += leaving
        self._ended = [worker for worker in self._ended if worker.thread.is_alive()]
        self._lost -= set(leaving)
        self.is_lost = len(self._lost) == len(self._workers)
        return self._end(leaving)

    def end(self) -> list[WorkerThread]:
        """Tells all workers to end. Returns those to wake."""
        return self._end(self._workers)

    def mark_ended(self, worker: WorkerThread) -> bool:
        """The worker's thread is about to end. Returns whether it has to close its model."""
        if worker not in self._leaving:
            return False
        self._leaving.remove(worker)
        self._ended.append(worker)
        return not any(other.model is worker.model for other in self._leaving)

    def join(self) -> None:
        """Blocks until no thread is left. Call ``end`` before."""
        for worker in (*self._workers, *self._leaving, *self._ended):
            worker.thread.join()

    def _end(self, workers: Iterable[WorkerThread]) -> list[WorkerThread]:
        idle = [worker for worker in workers if worker.idle]
        for worker in workers:
            worker.ending.set()
        for worker in idle:
            worker.idle = False
            self._idle.remove(worker)
        return idle
