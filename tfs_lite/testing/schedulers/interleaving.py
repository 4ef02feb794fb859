"""Lanes of a batching servable as actors on a stage: real threads, of which exactly one goes on at a time.

    stage.step(actor) -> the actor's thread runs until it sleeps, is in a run, or (stepwise) wants a lock -> back here

So whoever directs the stage decides every interleaving, and the same directions give the same history. Time is virtual:
a lane that sleeps until a moment is ready when the clock has been moved there.
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
"""More steps than that without anything from outside: the actors go round in circles."""
PATIENCE = 60.0
"""Seconds of real time for one step."""


class Where(Enum):
    """What an actor waits for."""

    READY = "its next step"
    ASLEEP = "a ring or a moment"
    IN_RUN = "the end of its run"
    RECOVERING = "its worker"
    JOINING = "the end of another actor"
    GONE = "nothing"


class Violation(AssertionError):
    """The code on the stage did what it must not do."""


class SteppedThread:
    """A thread that goes on only when it is told to. ``where`` is true while it stands still."""

    def __init__(self, stage: InterleavingScheduler, name: str, act: Callable[[], object]) -> None:
        self.where = Where.READY
        self.fault: BaseException | None = None
        self.joins: SteppedThread | None = None
        self.go = threading.Lock()
        self.go.acquire()
        self.stage = stage
        self._act = act
        self.thread = _Thread(self, name)

    @property
    def ready(self) -> bool:
        if self.where is Where.JOINING:
            return self.joins is not None and self.joins.where is Where.GONE
        return self.where is Where.READY

    def main(self) -> None:
        self.go.acquire()
        try:
            self._act()
        except BaseException as error:
            self.fault = error
        self.where = Where.GONE
        self.stage.back.release()


class _Thread(threading.Thread):
    """An actor's. One actor that joins another leaves the stage until that is gone."""

    def __init__(self, actor: SteppedThread, name: str) -> None:
        super().__init__(target=actor.main, name=name, daemon=True)
        self.actor = actor

    def join(self, timeout: float | None = None) -> None:
        joining = current()
        if joining is not None and self.actor.where is not Where.GONE:
            joining.joins = self.actor
            joining.stage.pause(Where.JOINING)
        super().join(timeout)


def current() -> SteppedThread | None:
    """The actor whose thread this is; None on the director's."""
    thread = threading.current_thread()
    return thread.actor if isinstance(thread, _Thread) else None


class SteppedLane(SteppedThread):
    """Stands in for :class:`tfs_lite.schedulers.batching.worker_threads.WorkerThread`. ``wakes``: until when it
    sleeps."""

    def __init__(self, stage: InterleavingScheduler, model: Model, name: str, serve: Callable[[Any], None]) -> None:
        super().__init__(stage, name, lambda: serve(self))
        self.model = model
        self.idle = False
        self.ending = threading.Event()
        self.wakes = inf
        self._rung = False
        self._late = False

    @property
    def ready(self) -> bool:
        return (self.where is Where.ASLEEP and (self._rung or self._late)) or super().ready

    def sleep(self, seconds: float) -> bool:
        timer: Timer | None = None
        clock = self.stage.clock
        if not self._rung:
            self._late = False
            self.wakes = clock.monotonic() + max(seconds, 0.0)
            if seconds < inf:
                timer = clock.call_later(seconds, self._wake)
            self.stage.pause(Where.ASLEEP)
        if timer is not None:
            timer.cancel()
        rung, self._rung = self._rung, False
        return rung

    def _wake(self) -> None:
        self._late = True
        self.stage.woken()

    def ring(self) -> None:
        self.stage.pause_between()
        if self._rung:
            raise self.stage.violation("a lane was rung twice for one sleep, which its bell does not bear")
        self._rung = True


class SteppedLock:
    """Stands in for a lock: where an actor takes it, others may go first; nobody may stop while he has it."""

    def __init__(self, stage: InterleavingScheduler) -> None:
        self._stage = stage
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._stage.pause_between()
        if not self._lock.acquire(blocking=False):
            raise self._stage.violation("somebody was called, or slept, with the lock held")

    def __exit__(self, *rest: object) -> None:
        self._lock.release()


class StageClock:
    """The stage's clock as the servable sees it: on a stage that goes stepwise, what falls due is an actor of its
    own, as the clock's thread is."""

    def __init__(self, stage: InterleavingScheduler) -> None:
        self._stage = stage
        self.time = stage.clock.time
        self.monotonic = stage.clock.monotonic

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        return self._stage.clock.call_later(delay, partial(self._due, call))

    def _due(self, call: Callable[[], None]) -> None:
        if self._stage.stepwise:
            self._stage.enter("clock", call)
        else:
            call()


class InterleavingScheduler:
    """``stepwise``: actors also stop between critical sections. Methods on the director's thread, but for ``pause``."""

    def __init__(self, clock: VirtualClock, stepwise: bool) -> None:
        self.clock = clock
        self.stepwise = stepwise
        self.back = threading.Lock()
        self.back.acquire()
        self.actors: list[SteppedThread] = []
        self.lanes: list[SteppedLane] = []
        self._violations: list[Violation] = []

    def violation(self, text: str) -> Violation:
        """To be raised where it is found; the director hears of it also if somebody catches it there."""
        self._violations.append(Violation(text))
        return self._violations[-1]

    def check(self) -> None:
        """Raises the first violation there was."""
        for violation in self._violations:
            raise violation

    def perform(
        self, models: Sequence[Model], settings: BatchSettings, *, threads: int = 1, **rest: Any
    ) -> BatchingServable:
        """A servable whose lanes are on this stage, and which takes itself to be under strain always: how busy the real
        processor is must not count."""
        with mock.patch.object(batching, "make_lanes", self._make_lanes):
            servable = BatchingServable(
                models, ServableId("m", 1), settings, clock=StageClock(self), threads=threads, **rest
            )
        servable._lock = SteppedLock(self)  # type: ignore[assignment]
        servable._strain = _Strained()  # type: ignore[assignment]
        return servable

    def _make_lanes(
        self, models: Iterable[Model], name: str, threads: int, serve: Callable[[Any], None], first: int = 0
    ) -> list[SteppedLane]:
        made = [
            SteppedLane(self, model, f"lane {index}", serve)
            for index, model in enumerate(
                (model for model in models for _ in range(max(model.lanes, min(threads, model.concurrency)))), first
            )
        ]
        self.lanes.extend(made)
        self.actors.extend(made)
        return made

    def resize(self, servable: BatchingServable, add: Sequence[Model], remove: Sequence[Model]) -> bool:
        """As the servable's, with the new lanes on this stage. One at a time."""
        with (
            mock.patch.object(batching, "make_lanes", self._make_lanes),
            mock.patch.object(batching, "strain_of", return_value=_Strained()),
        ):
            return servable.resize(add, remove)

    def enter(self, name: str, act: Callable[[], object]) -> SteppedThread:
        """Somebody else who does something; his first step is still to come."""
        actor = SteppedThread(self, name, act)
        self.actors.append(actor)
        actor.thread.start()
        return actor

    @property
    def ready(self) -> list[SteppedThread]:
        return [actor for actor in self.actors if actor.ready]

    def at(self, where: Where) -> list[SteppedLane]:
        return [lane for lane in self.lanes if lane.where is where]

    def step(self, actor: SteppedThread) -> None:
        """Until its next stop. Raises what the actor raised."""
        actor.where = Where.READY
        actor.go.release()
        if not self.back.acquire(timeout=PATIENCE):
            raise Violation(f"{actor.thread.name} never stops")
        if actor.where is Where.GONE:
            self.actors.remove(actor)
            actor.thread.join(PATIENCE)
        self.check()
        if actor.fault is not None:
            raise actor.fault

    def settle(self) -> None:
        """Until nobody can go on without something from outside."""
        for _ in range(MOST_STEPS):
            if self.is_quiet:
                return
            self.step(self.ready[0])
        raise Violation("the lanes are busy with nothing")

    @property
    def is_quiet(self) -> bool:
        """Whether nobody can go on, not even a timer that is overdue; such a one is started."""
        if not self.ready:
            self.clock.advance(0.0)
        return not self.ready

    def woken(self) -> None:
        """The clock has come to a moment that a lane slept for."""
        if not self.stepwise:
            self.settle()

    def pause(self, where: Where) -> None:
        """On an actor's thread; back when it is told to go on."""
        actor = current()
        assert actor is not None
        actor.where = where
        self.back.release()
        actor.go.acquire()

    def pause_between(self) -> None:
        """Where others may go first, if this stage goes stepwise."""
        if self.stepwise and current() is not None:
            self.pause(Where.READY)


class _Strained:
    strained = True

    def ran(self, now: float, seconds: float) -> None:
        pass


@contextlib.contextmanager
def no_threads_left() -> Iterator[None]:
    """None of the threads that were started inside is alive afterwards."""
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not left, f"threads are left: {left}"
