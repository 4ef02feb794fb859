"""Lets other threads run while one does long work in Python.

A thread that wants the interpreter's lock gets it only after the switch interval, 5 ms, from a thread that keeps
running, and a request needs it several times. A load that gives the lock away about twice a millisecond is hardly
noticed. Releasing the lock is not enough: the thread would take it back before the waiting one has woken up.
"""

from __future__ import annotations

import time

INTERVAL_SECONDS = 0.0005
PAUSE_SECONDS = 0.0001


class Yielder:
    """Gives the interpreter lock away between steps of work: call it often; it does so if half a millisecond has
    passed. One thread."""

    def __init__(self) -> None:
        self._next = time.perf_counter() + INTERVAL_SECONDS

    def __call__(self) -> None:
        if time.perf_counter() >= self._next:
            time.sleep(PAUSE_SECONDS)
            self._next = time.perf_counter() + INTERVAL_SECONDS
