"""Threads: how they are started and joined, and one that does one thing again and again.

No start may be taken for granted (a system that is short of processes refuses it for a moment), and no join may wait
without a limit (a thread may hang in a call that never answers). :func:`join` bounds the wait and remembers the thread
that has not ended, so that the end of the process can say what was left behind.

:class:`PeriodicThread` is used by the file-system source (polls), the aspired-versions manager (ticks) and the
config-file poller, so that there is one loop to get right: runs never overlap, the interval counts from start to start,
a late run is followed at once by the next, and stopping never waits for an interval.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import NamedTuple, TypeVar

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.core.yielding import lower_priority

T = TypeVar("T")
logger = logging.getLogger(__name__)
JOIN_SECONDS = 5.0
"""The longest wait for the end of one thread, or of the threads of one pool, when something is closed."""
_left: list[tuple[str, Callable[[], bool]]] = []
"""Names, and whether it still goes on."""
_lock = threading.Lock()  # guards _left


def is_users(error: BaseException) -> bool:
    """Whether it is the user's Ctrl-C, which Python raises on the main thread only. On any other thread the code of a
    model has raised it, and it says no more than another error."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def usable_cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(thread: threading.Thread) -> None:
    """Starts it. UNAVAILABLE if the system refuses another thread; the same thread may be started again later."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ServingError(StatusCode.UNAVAILABLE, f"the thread {thread.name} cannot be started: {error}") from None


def start_all(threads: Sequence[threading.Thread]) -> None:
    """Starts all of these, or none: each begins its work when the last one has been started. UNAVAILABLE if the system
    refuses one of them."""
    all_started: Future[bool] = Future()
    started = list[threading.Thread]()
    try:
        for thread in threads:
            thread.run = partial(_run_if, all_started, thread)  # type: ignore[method-assign]
            start(thread)
            started.append(thread)
    finally:
        all_started.set_result(len(started) == len(threads))
        if len(started) < len(threads):
            del threads[len(started)].run  # the one that was refused, and may be started again
            for thread in started:
                join(thread)


def _run_if(condition: Future[bool], thread: threading.Thread) -> None:
    del thread.run  # what is left is its own, and no cycle keeps it alive
    if condition.result():
        thread.run()


def call_in_background(work: Callable[[], T], name: str) -> T:
    """Returns ``work()``, done by a new daemon thread of low priority that ends before this returns. Raises what
    ``work`` raises; UNAVAILABLE if the system refuses the thread. ``work`` must leave no thread and no process behind:
    they would keep the priority."""

    def run() -> T:
        lower_priority()
        return work()

    thread, outcome = _begin(run, name)
    thread.join()
    try:
        return outcome.result()
    finally:
        del outcome  # it holds the error, which refers to this frame


def _begin(work: Callable[[], T], name: str) -> tuple[threading.Thread, Future[T]]:
    """Has a new daemon thread do ``work``, with the caller's context variables. Returns it, and what will become of the
    work. UNAVAILABLE if the system refuses the thread."""
    outcome: Future[T] = Future()
    thread = threading.Thread(target=copy_context().run, args=(_settle, outcome, work), name=name, daemon=True)
    start(thread)
    return thread, outcome


def _settle(outcome: Future[T], work: Callable[[], T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        del outcome  # it holds the error, which refers to this frame


def join(thread: threading.Thread, seconds: float = JOIN_SECONDS) -> bool:
    """Waits for the end of a thread that was told to end. False: it has not ended and is left behind, which is logged.
    A thread that was never started has ended, and nothing waits for itself."""
    if thread is threading.current_thread() or not thread.is_alive():
        return True
    thread.join(seconds)
    if not thread.is_alive():
        return True
    leave_behind({thread.name: thread.is_alive})
    return False


def leave_behind(found: Mapping[str, Callable[[], bool]]) -> None:
    """Notes and logs what has not ended in time, by name, with what says whether it still goes on."""
    with _lock:
        new = {name: goes_on for name, goes_on in found.items() if (name, goes_on) not in _left}
        _left[:] = [(name, goes_on) for name, goes_on in _left if goes_on()] + list(new.items())
    if new:
        logger.warning("these have not ended in time and are left behind: %s", ", ".join(new))


def left_behind() -> list[str]:
    """The names of the calls that this process left behind and that still go on."""
    with _lock:
        left = list(_left)
    return list(dict.fromkeys(name for name, goes_on in left if goes_on()))


class Pool(ThreadPoolExecutor):
    """A few threads for slow work. The first is there from the beginning; while the system refuses another one, those
    that are there do the work. UNAVAILABLE if not even the first can be started."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        try:
            self.submit(int)
        except RuntimeError as error:
            raise ServingError(StatusCode.UNAVAILABLE, f"the thread {name} cannot be started: {error}") from None

    def _adjust_thread_count(self) -> None:
        """Called when work was queued."""
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


class _Hanging(NamedTuple):
    """A call that has not ended in time. ``since``: when that was found, in seconds of a monotonic clock."""

    key: str
    thread: threading.Thread
    since: float


class BoundedCalls:
    """Calls that may hang, such as those that ask a disk, each with a bound in time. Any thread."""

    def __init__(self, seconds: float, most: int = 16, monotonic: Callable[[], float] = time.monotonic) -> None:
        """At most ``most`` calls that have taken more than ``seconds`` go on at a time; further ones are refused. No
        more than half of them, but one at least, have the same key."""
        self._seconds = seconds
        self._most = most
        self._monotonic = monotonic
        self._lock = threading.Lock()  # guards _hanging
        self._hanging: list[_Hanging] = []

    def call(self, key: str, work: Callable[[], T]) -> T:
        """The result of ``work``, which runs on a thread of its own with the caller's context variables. Raises what it
        raises, and UNAVAILABLE if it has not ended in time: then it goes on, and each call with this key is refused at
        once until it has ended, or until it is worth a second try while the first goes on. The path may lead to
        something else by then, and a thread that hangs for good would never tell: it is tried after as long again, then
        after twice, four times ... as long. ``key`` names the work in messages."""
        with self._lock:
            self._hanging = [each for each in self._hanging if each.thread.is_alive()]
            same = [each for each in self._hanging if each.key == key]
            if len(self._hanging) >= self._most:
                raise self._refusal(key if same else self._hanging[0].key)
            if same and not self._is_worth_another(same):
                raise self._refusal(key)
        thread, outcome = _begin(work, key)
        try:
            return outcome.result(self._seconds)
        except TimeoutError:
            if outcome.done():
                raise
        finally:
            del outcome  # it holds the error, which refers to this frame
        with self._lock:
            self._hanging.append(_Hanging(key, thread, self._monotonic()))
        with _lock:
            _left.append((key, thread.is_alive))
        raise self._refusal(key)

    def _is_worth_another(self, same: Sequence[_Hanging]) -> bool:
        wait = self._seconds * 2 ** (len(same) - 1)
        return len(same) < max(self._most // 2, 1) and self._monotonic() - same[-1].since >= wait

    def _refusal(self, key: str) -> ServingError:
        message = f"{key} has not answered for {self._seconds:g} s: does its disk hang?"
        return ServingError(StatusCode.UNAVAILABLE, message, Reason.DISK_HANGS)


def within(seconds: float, name: str, work: Callable[[], None]) -> bool:
    """Runs ``work``, which ends something, on a thread of its own. False: it has not ended after so long and is left
    behind. What it raises is logged."""
    return all_within(seconds, [(name, work)])


def all_within(seconds: float, works: Sequence[tuple[str, Callable[[], None]]]) -> bool:
    """Runs all of these, by name, one after the other on one thread, as :func:`within` does one. Where one takes half
    of what is left of the time, another thread goes on with those behind it."""
    ends = time.monotonic() + seconds
    waiting = deque(works)
    threads: list[threading.Thread] = []
    context = copy_context()

    def run() -> None:
        while waiting:
            name, work = waiting.popleft()
            threading.current_thread().name = name
            try:
                work()
            except BaseException:
                logger.exception("%s failed", name)

    while waiting:
        thread = threading.Thread(target=context.copy().run, args=(run,), name=waiting[0][0], daemon=True)
        try:
            start(thread)
        except ServingError as error:
            logger.warning("%s", error)
            break
        threads.append(thread)
        thread.join(max((ends - time.monotonic()) / 2, 0.01))
    ended = [join(thread, max(ends - time.monotonic(), 0.0)) for thread in threads]
    return all(ended) and not waiting


class PeriodicThread:
    """Runs ``action`` at once, then every ``interval`` seconds and whenever :meth:`wake` is called.

    With ``interval`` None it runs once at the start and then only when woken. An action that raises is logged, and the
    loop goes on. ``start`` -> ``wake``* -> ``stop``; all from any thread, ``stop`` not from the action itself.
    """

    def __init__(self, name: str, action: Callable[[], None], interval: float | None) -> None:
        self._action = action
        self._interval = interval
        self._changed = threading.Condition()  # guards _woken and _stopped
        self._woken = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """UNAVAILABLE if the system refuses another thread."""
        start(self._thread)

    def wake(self) -> None:
        """The next run begins as soon as the current one has ended. Many wakes before a run count as one."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def end(self) -> None:
        """No further run begins. Returns at once."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def stop(self, seconds: float = JOIN_SECONDS) -> None:
        """Waits for a run in progress, for that long at most; no run begins any more. May be called more than once."""
        self.end()
        join(self._thread, seconds)

    def _run(self) -> None:
        while True:
            started = time.monotonic()
            try:
                self._action()
            except BaseException:
                logger.exception("%s: a run failed; the next one comes as planned", self._thread.name)
            if not self._wait(started):
                return

    def _wait(self, started: float) -> bool:
        with self._changed:
            while not (self._stopped or self._woken):
                left = None if self._interval is None else started + self._interval - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            self._woken = False
            return not self._stopped
