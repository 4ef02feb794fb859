"""Threads that run a model, and how they sleep and are woken.

    idle (asleep, or until a moment) --ring--> awake: asks for work, runs it, asks again

A :class:`WorkerThread` is one thread's view: the model that it runs, and a bell. The bell is a lock used as a binary
semaphore, the cheapest wake-up that Python has. A :class:`WorkerPool` is all lanes of one servable: who is idle, who
has lost its worker, who leaves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf

from tfs_lite.core.model import Model


class WorkerThread:
    """``idle`` is guarded by the owner's lock: the lane's thread sets it and then sleeps without the lock; whoever
    clears it rings, exactly once. ``ending``: its work is over after the batch that it runs."""

    __slots__ = ("_bell", "ending", "idle", "model", "thread")

    def __init__(self, model: Model, name: str, serve: Callable[[WorkerThread], None]) -> None:
        self.model = model
        self.idle = False
        self.ending = threading.Event()
        self._bell = threading.Lock()
        self._bell.acquire()
        self.thread = threading.Thread(target=serve, args=(self,), name=name, daemon=True)

    def sleep(self, seconds: float) -> bool:
        """Until the bell rings; False if it has not rung after ``seconds``."""
        if seconds == inf:
            return self._bell.acquire()
        return self._bell.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def ring(self) -> None:
        self._bell.release()


def make_lanes(
    models: Iterable[Model], name: str, threads: int, serve: Callable[[WorkerThread], None], first: int = 0
) -> list[WorkerThread]:
    """As many threads for each model as are worth having; up to ``threads``, where the model bears them. They are not
    started. ``first``: how many were made before."""
    lanes: list[WorkerThread] = []
    for model in models:
        for _ in range(max(model.lanes, min(threads, model.concurrency))):
            number = first + len(lanes)
            lanes.append(WorkerThread(model, f"tfs-model-{name}-{number}" if number else f"tfs-model-{name}", serve))
    return lanes


class WorkerPool:
    """The lanes of one servable, which locks around everything but ``join``.

    A lane that leaves is none of the crew's any more, but its thread may still be in a batch. Whoever is the last one
    inside a model that leaves closes it.
    """

    def __init__(self, lanes: Sequence[WorkerThread]) -> None:
        self._lanes = list(lanes)
        self._idle: deque[WorkerThread] = deque()  # who has been idle longest is rung first
        self._lost = set[WorkerThread]()  # whose worker is being started again
        self._leaving: list[WorkerThread] = []
        self._over: list[WorkerThread] = []  # that have left, or are about to
        self.made = len(self._lanes)
        """Lanes there have ever been."""

    def __len__(self) -> int:
        return len(self._lanes)

    def rest(self, lane: WorkerThread) -> None:
        """The lane has nothing to do, and will sleep."""
        lane.idle = True
        self._idle.append(lane)

    def pop_idle(self) -> WorkerThread | None:
        """A lane that has nothing to do, to be rung."""
        if not self._idle:
            return None
        lane = self._idle.popleft()
        lane.idle = False
        return lane

    def leave_idle(self, lane: WorkerThread) -> bool:
        """The lane has woken by itself. False: somebody has taken it for idle already, and will ring."""
        if not lane.idle:
            return False
        lane.idle = False
        self._idle.remove(lane)
        return True

    @property
    def is_lost(self) -> bool:
        """Whether no lane has a worker."""
        return len(self._lost) == len(self._lanes)

    def lose(self, lane: WorkerThread) -> bool:
        """The lane's worker has died. Whether there is none left."""
        if lane.ending.is_set():
            return False
        self._lost.add(lane)
        return self.is_lost

    def regain(self, lane: WorkerThread) -> None:
        self._lost.discard(lane)

    def change(self, add: Sequence[WorkerThread], remove: Collection[Model]) -> list[WorkerThread]:
        """Lanes to start join, those of the models leave. Returns lanes to ring."""
        leaving = [lane for lane in self._lanes if any(lane.model is model for model in remove)]
        self._lanes = [lane for lane in self._lanes if lane not in leaving] + list(add)
        self.made += len(add)
        self._leaving += leaving
        self._over = [lane for lane in self._over if lane.thread.is_alive()]
        self._lost -= set(leaving)
        return self._end(leaving)

    def end(self) -> list[WorkerThread]:
        """All lanes have to end. Returns those to ring."""
        return self._end(self._lanes)

    def left(self, lane: WorkerThread) -> bool:
        """The lane's thread is about to end. Whether it has to close its model."""
        if lane not in self._leaving:
            return False
        self._leaving.remove(lane)
        self._over.append(lane)
        return not any(other.model is lane.model for other in self._leaving)

    def join(self) -> None:
        """After ``end``. Until no thread is left."""
        for lane in (*self._lanes, *self._leaving, *self._over):
            lane.thread.join()

    def _end(self, lanes: Iterable[WorkerThread]) -> list[WorkerThread]:
        idle = [lane for lane in lanes if lane.idle]
        for lane in lanes:
            lane.ending.set()
        for lane in idle:
            lane.idle = False
            self._idle.remove(lane)
        return idle
