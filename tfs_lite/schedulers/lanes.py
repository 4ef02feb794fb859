"""Threads that run a model, and how they sleep and are woken.

    idle (asleep, or until a moment) --ring--> awake: asks for work, runs it, asks again

A :class:`Lane` is one thread's view: the model that it runs, and a bell. The bell is a lock used as a binary semaphore,
the cheapest wake-up that Python has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from math import inf

from tfs_lite.core.model import Model


class Lane:
    """``idle`` is guarded by the owner's lock: the lane's thread sets it and then sleeps without the lock; whoever
    clears it rings, exactly once."""

    __slots__ = ("_bell", "idle", "model", "thread")

    def __init__(self, model: Model, name: str, serve: Callable[[Lane], None]) -> None:
        self.model = model
        self.idle = False
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


def make_lanes(models: Iterable[Model], name: str, threads: int, serve: Callable[[Lane], None]) -> list[Lane]:
    """As many threads for each model as are worth having; up to ``threads``, where the model bears them. They are not
    started."""
    lanes: list[Lane] = []
    for model in models:
        for _ in range(max(model.lanes, min(threads, model.concurrency))):
            lanes.append(Lane(model, f"tfs-model-{name}-{len(lanes)}" if lanes else f"tfs-model-{name}", serve))
    return lanes
