"""Runs the workers of a batching servable step by step: real threads, of which exactly one goes on at a time.

    scheduler.step(stepped) -> that thread runs until it sleeps, is in a run, or (stepwise) wants a lock -> back here

So the test decides every interleaving, and the same decisions give the same history. Time is virtual: a worker that
sleeps until a moment is ready when the clock has been moved there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from math import inf
from typing import Any
from unittest import mock

from tfs_lite.core.clock import Timer
from tfs_lite.core.model import Model
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.batching import batcher as batching
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.testing.lifecycle.clock import VirtualClock

MOST_STEPS = 2_000
"""With more steps than that without anything from outside, the threads go round in circles."""
PATIENCE = 60.0
"""Seconds of real time for one step."""


class ThreadState(Enum):
    """What a thread waits for."""

    READY = "its next step"
    ASLEEP = "a wake-up or a moment"
    IN_RUN = "the end of its run"
    RECOVERING = "its worker"
    JOINING = "the end of another thread"
    GONE = "nothing"


class Violation(AssertionError):
    """The code under test did what it must not do."""


class SteppedThread:
    """A thread that goes on only when it is told to. ``state`` is right while it stands still."""

    def __init__(self, scheduler: InterleavingScheduler, name: str, body: Callable[[], object]) -> None:
        self.state = ThreadState.READY
        self.fault: BaseException | None = None
        self.joins: SteppedThread | None = None
        self.go = threading.Lock()
        self.go.acquire()
        self.scheduler = scheduler
        self._body = body
        self.thread = _Thread(self, name)

    @property
    def ready(self) -> bool:
        if self.state is ThreadState.JOINING:
            return self.joins is not None and self.joins.state is ThreadState.GONE
        return self.state is ThreadState.READY

    def main(self) -> None:
        self.go.acquire()
        try:
            self._body()
        except BaseException as error:
            self.fault = error
        self.state = ThreadState.GONE
        self.scheduler.back.release()


class _Thread(threading.Thread):
    """The thread of a :class:`SteppedThread`. One that joins another is not ready until the other is gone."""

    def __init__(self, stepped: SteppedThread, name: str) -> None:
        super().__init__(target=stepped.main, name=name, daemon=True)
        self.stepped = stepped

    def join(self, timeout: float | None = None) -> None:
        joining = current()
        if joining is not None and self.stepped.state is not ThreadState.GONE:
            joining.joins = self.stepped
            joining.scheduler.pause(ThreadState.JOINING)
        super().join(timeout)


def current() -> SteppedThread | None:
    """The stepped thread that this is called on; None on the test's."""
    thread = threading.current_thread()
    return thread.stepped if isinstance(thread, _Thread) else None


class SteppedWorker(SteppedThread):
    """Stands in for :class:`tfs_lite.schedulers.batching.worker_threads.WorkerThread`. It sleeps until
    ``wakes_at``."""

    def __init__(self, scheduler: InterleavingScheduler, model: Model, name: str, serve: Callable[[Any], None]) -> None:
        super().__init__(scheduler, name, lambda: serve(self))
        self.model = model
        self.idle = False
        self.ending = threading.Event()
        self.wakes_at = inf
        self._woken = False
        self._timed_out = False

    @property
    def ready(self) -> bool:
        return (self.state is ThreadState.ASLEEP and (self._woken or self._timed_out)) or super().ready

    def sleep(self, seconds: float) -> bool:
        timer: Timer | None = None
        clock = self.scheduler.clock
        if not self._woken:
            self._timed_out = False
            self.wakes_at = clock.monotonic() + max(seconds, 0.0)
            if seconds < inf:
                timer = clock.call_later(seconds, self._time_out)
            self.scheduler.pause(ThreadState.ASLEEP)
        if timer is not None:
            timer.cancel()
        woken, self._woken = self._woken, False
        return woken

    def _time_out(self) -> None:
        self._timed_out = True
        self.scheduler.timer_fired()

    def wake(self) -> None:
        self.scheduler.pause_between()
        if self._woken:
            raise self.scheduler.violation("a worker was woken twice for one sleep, which its lock does not allow")
        self._woken = True


class SteppedLock:
    """Stands in for a lock: where a thread takes it, others may go first; no thread may stop while it has it."""

    def __init__(self, scheduler: InterleavingScheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._scheduler.pause_between()
        if not self._lock.acquire(blocking=False):
            raise self._scheduler.violation("a thread made a call, or slept, with the lock held")

    def __exit__(self, *rest: object) -> None:
        self._lock.release()


class SchedulerClock:
    """The scheduler's clock as the servable sees it: with a scheduler that goes stepwise, a timer that fires is a
    thread of its own, as the clock's thread is."""

    def __init__(self, scheduler: InterleavingScheduler) -> None:
        self._scheduler = scheduler
        self.time = scheduler.clock.time
        self.monotonic = scheduler.clock.monotonic

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        return self._scheduler.clock.call_later(delay, partial(self._due, call))

    def _due(self, call: Callable[[], None]) -> None:
        if self._scheduler.stepwise:
            self._scheduler.start("clock", call)
        else:
            call()


class InterleavingScheduler:
    """``stepwise``: threads also stop between critical sections. Methods on the test's thread, but for ``pause``."""

    def __init__(self, clock: VirtualClock, stepwise: bool) -> None:
        self.clock = clock
        self.stepwise = stepwise
        self.back = threading.Lock()
        self.back.acquire()
        self.threads: list[SteppedThread] = []
        self.workers: list[SteppedWorker] = []
        self._violations: list[Violation] = []

    def violation(self, text: str) -> Violation:
        """To be raised where it is found; ``check`` raises it also if it was caught there."""
        self._violations.append(Violation(text))
        return self._violations[-1]

    def check(self) -> None:
        """Raises the first violation there was."""
        for violation in self._violations:
            raise violation

    def make_servable(
        self, models: Sequence[Model], settings: BatchSettings, *, threads: int = 1, **rest: Any
    ) -> BatchingServable:
        """A servable whose workers are stepped here, and which always counts as saturated: how busy the real processor
        is must not matter."""
        with mock.patch.object(batching, "make_workers", self._make_workers):
            servable = BatchingServable(
                models, ServableId("m", 1), settings, clock=SchedulerClock(self), threads=threads, **rest
            )
        servable._lock = SteppedLock(self)  # type: ignore[assignment]
        servable._saturation = _Saturated()  # type: ignore[assignment]
        return servable

    def _make_workers(
        self, models: Iterable[Model], name: str, threads: int, serve: Callable[[Any], None], first: int = 0
    ) -> list[SteppedWorker]:
        made = [
            SteppedWorker(self, model, f"worker {index}", serve)
            for index, model in enumerate(
                (model for model in models for _ in range(max(model.useful_threads, min(threads, model.concurrency)))),
                first,
            )
        ]
        self.workers.extend(made)
        self.threads.extend(made)
        return made

    def resize(self, servable: BatchingServable, add: Sequence[Model], remove: Sequence[Model]) -> bool:
        """As the servable's, with the new workers stepped here. One at a time."""
        with (
            mock.patch.object(batching, "make_workers", self._make_workers),
            mock.patch.object(batching, "saturation_of", return_value=_Saturated()),
        ):
            return servable.resize(add, remove)

    def start(self, name: str, body: Callable[[], object]) -> SteppedThread:
        """Starts another thread, which has not made its first step yet."""
        stepped = SteppedThread(self, name, body)
        self.threads.append(stepped)
        stepped.thread.start()
        return stepped

    @property
    def ready(self) -> list[SteppedThread]:
        return [stepped for stepped in self.threads if stepped.ready]

    def in_state(self, state: ThreadState) -> list[SteppedWorker]:
        return [worker for worker in self.workers if worker.state is state]

    def step(self, stepped: SteppedThread) -> None:
        """Lets the thread go on until its next stop. Raises what it raised."""
        stepped.state = ThreadState.READY
        stepped.go.release()
        if not self.back.acquire(timeout=PATIENCE):
            raise Violation(f"{stepped.thread.name} never stops")
        if stepped.state is ThreadState.GONE:
            self.threads.remove(stepped)
            stepped.thread.join(PATIENCE)
        self.check()
        if stepped.fault is not None:
            raise stepped.fault

    def settle(self) -> None:
        """Steps until no thread can go on without something from outside."""
        for _ in range(MOST_STEPS):
            if self.is_quiet:
                return
            self.step(self.ready[0])
        raise Violation("the workers are busy with nothing")

    @property
    def is_quiet(self) -> bool:
        """Whether no thread can go on. Fires timers that are overdue."""
        if not self.ready:
            self.clock.advance(0.0)
        return not self.ready

    def timer_fired(self) -> None:
        """The clock has come to a moment that a worker slept for."""
        if not self.stepwise:
            self.settle()

    def pause(self, state: ThreadState) -> None:
        """On a stepped thread; returns when it is told to go on."""
        stepped = current()
        assert stepped is not None
        stepped.state = state
        self.back.release()
        stepped.go.acquire()

    def pause_between(self) -> None:
        """Lets others go first, if this scheduler goes stepwise."""
        if self.stepwise and current() is not None:
            self.pause(ThreadState.READY)


class _Saturated:
    saturated = True

    def ran(self, now: float, seconds: float) -> None:
        pass


@contextlib.contextmanager
def no_threads_left() -> Iterator[None]:
    """None of the threads that were started inside is alive afterwards."""
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not left, f"threads are left: {left}"
