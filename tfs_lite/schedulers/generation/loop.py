"""One thread on which engines take turns.

    join -> turn, turn, ... (round robin) -> no engine has work: sleep until wake -> leave

Two engines that compute on the CPU at the same time are many times slower than one after the other, so all CPU engines
of a process share a loop. An engine of a GPU has a loop of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Protocol

from tfs_lite.core.threads import start
from tfs_lite.core.yielding import wait_exactly

logger = logging.getLogger(__name__)


class TakesTurns(Protocol):
    """What a loop needs of an engine."""

    def turn(self) -> bool:
        """Does a bounded piece of work, on the loop's thread. False means that there is nothing to do until the next
        ``wake``. It must not raise."""


class StepLoop:
    """A daemon thread that starts with the first engine and ends with the last; it may start again. Any thread may call
    any method, except that ``leave`` is not for the loop's own."""

    def __init__(self, name: str = "tfs-steps") -> None:
        self._name = name
        self._changed = threading.Condition()  # guards the fields below
        self._engines: deque[TakesTurns] = deque()  # the next one first
        self._current: TakesTurns | None = None
        self._idle = 0  # turns in a row that found nothing to do
        self._wakes = 0
        self._thread: threading.Thread | None = None

    def join(self, engine: TakesTurns) -> None:
        """Gives the engine turns from now on. UNAVAILABLE if the system refuses the thread."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start(thread)
                self._thread = thread
            self._engines.append(engine)
            self._notify()

    def leave(self, engine: TakesTurns) -> None:
        """Returns when the engine is in no turn and gets no more; for the last engine, when the thread has ended.
        Nothing happens for an engine that has not joined. RuntimeError on the loop's own thread."""
        with self._changed:
            thread = self._thread
            if thread is None:
                return
            if thread is threading.current_thread():
                raise RuntimeError("an engine cannot leave its loop during a turn")
            if engine in self._engines:
                self._engines.remove(engine)
                self._notify()
            self._changed.wait_for(
                lambda: self._current is not engine and (self._engines or self._thread is not thread)
            )
            over = self._thread is not thread
        if over:
            thread.join()

    def wake(self) -> None:
        """Tells the loop that an engine may have work."""
        with self._changed:
            self._notify()

    def _notify(self) -> None:
        self._wakes += 1
        self._idle = 0
        self._changed.notify_all()

    def _run(self) -> None:
        wait_exactly()
        while (found := self._next()) is not None:
            engine, wakes = found
            busy = False
            try:
                busy = engine.turn()
            except BaseException:
                logger.exception("an engine broke its contract: a turn must not raise")
            self._turned(busy, wakes)

    def _next(self) -> tuple[TakesTurns, int] | None:
        """The engine whose turn it is, and the count of wakes; None when no engine is left."""
        with self._changed:
            while self._engines and self._idle >= len(self._engines):
                self._changed.wait()
            if not self._engines:
                self._thread = None
                self._changed.notify_all()
                return None
            self._current = self._engines[0]
            self._engines.rotate(-1)
            return self._current, self._wakes

    def _turned(self, busy: bool, wakes: int) -> None:
        """A ``wake`` during the turn may be about work that the turn did not see."""
        with self._changed:
            leaves = self._current not in self._engines
            self._current = None
            self._idle = 0 if busy or wakes != self._wakes else self._idle + 1
            if leaves:
                self._changed.notify_all()


_SHARED = StepLoop()


def shared_loop() -> StepLoop:
    """The loop of all CPU engines of this process."""
    return _SHARED
