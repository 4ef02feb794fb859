"""Lets other threads run while one does long work in Python.

A thread that wants the interpreter's lock gets it only after the switch interval, 5 ms, from a thread that keeps
running, and a request needs it several times. A load that gives the lock away about twice a millisecond is hardly
noticed. Releasing the lock is not enough: the thread would take it back before the waiting one has woken up.

That is what a network does that runs once in a load: each of its thousand operators releases the lock, and each release
wakes the waiting thread, which is too late and waits for the whole switch interval again, for 10 ms and longer in all.
An interval that is shorter than an operator ends that (:func:`giving_way`).

The processor is another matter: a thread that waits for it, and has not run yet, does not ask for the lock. The system
takes a processor from a busy thread at its next tick, after up to 4 ms, unless that thread counts for less than the one
that waits (:func:`lower_priority`), and has run for its slice.

And waits end late: by default the system wakes a thread up to 50 us after its time, and each wait for the interpreter
lock is such a wait. Threads that answer requests ask it not to (:func:`wait_exactly`).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERVAL_SECONDS = 0.0005
PAUSE_SECONDS = 0.0001
SWITCH_SECONDS = 0.00005
"""The interpreter's switch interval while somebody works in the background."""
NICENESS = 10
"""The niceness of a thread of low priority, which gets a tenth of a processor that another thread wants as well."""
_PR_SET_TIMERSLACK = 29


class Yielder:
    """Gives the interpreter lock away between steps of work: call it often; it does so if half a millisecond has
    passed. One thread."""

    def __init__(self) -> None:
        self._next = time.perf_counter() + INTERVAL_SECONDS

    def __call__(self) -> None:
        if time.perf_counter() >= self._next:
            let_others_run()
            self._next = time.perf_counter() + INTERVAL_SECONDS


class _Interval:
    """The interpreter's switch interval, which belongs to the whole process: the longest that anybody asks for now,
    and no longer than the ordinary one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._asked = list[float]()
        self._ordinary = 0.0  # seconds

    def ask(self, seconds: float) -> None:
        with self._lock:
            if not self._asked:
                self._ordinary = sys.getswitchinterval()
            self._asked.append(seconds)
            self._set()

    def withdraw(self, seconds: float) -> None:
        with self._lock:
            self._asked.remove(seconds)
            self._set()

    def _set(self) -> None:
        sys.setswitchinterval(min(self._ordinary, max(self._asked, default=self._ordinary)))


switch_interval = _Interval()


def begin_giving_way() -> None:
    """From now on a thread that waits for the interpreter lock gets it after :data:`SWITCH_SECONDS`, from whichever
    thread has it, until each beginning has had its end. Any thread."""
    switch_interval.ask(SWITCH_SECONDS)


def end_giving_way() -> None:
    """Ends it, for one that has begun. Any thread."""
    switch_interval.withdraw(SWITCH_SECONDS)


@contextmanager
def giving_way() -> Iterator[None]:
    """Gives way while the context lasts."""
    begin_giving_way()
    try:
        yield
    finally:
        end_giving_way()


def let_others_run() -> None:
    """Lets those threads run that wait for this thread's processor: the system may else leave it to this one until its
    next tick."""
    time.sleep(PAUSE_SECONDS)


def lower_priority() -> None:
    """Lowers the priority of the calling thread for good, where the system has one for each thread, and lets those run
    that wait for its processor. Threads and processes that it starts inherit the priority, and only privileged users
    may raise it again: for threads that open versions, not for those that start what answers requests."""
    if sys.platform == "linux":  # elsewhere only processes have a priority
        with suppress(OSError):
            priority = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), priority)
    let_others_run()


def wait_exactly() -> None:
    """From now on the calling thread's waits end in time, where the system can do that. Threads that it starts inherit
    it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
