"""The scheduling priority of a model's process while it loads, runs and ends.

    in_background (opening)  ->  lower priority than the server's (running)  ->  in_background (closing)

Opening a model is minutes of reading and building, and no client waits for it; clients wait for requests to other
models. In Linux's idle class a thread runs only while the processor is idle, and gives it up at once when another
thread wants it (sched(7), SCHED_IDLE); niceness would let a load finish its time slice first. A machine with no idle
time at all would never finish a load: after :data:`IDLE_CLASS_SECONDS` it goes on in the ordinary class.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NICENESS = 5
"""On a busy machine the system prefers the server, which accepts requests and refuses those too many."""
IDLE_CLASS_SECONDS = 10.0
"""How long a load stays in the idle class."""


def lower_priority() -> None:
    """Gives this process a little less than the server's priority. Call it once, at the start of the process."""
    os.nice(max(NICENESS - os.nice(0), 0))


@contextmanager
def in_background(seconds: float = IDLE_CLASS_SECONDS) -> Iterator[None]:
    """Inside, all threads of this process are in the idle class, for at most ``seconds``."""
    _set_policy(os.SCHED_IDLE)
    timer = threading.Timer(seconds, _set_policy, [os.SCHED_OTHER])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _set_policy(os.SCHED_OTHER)


def _set_policy(policy: int) -> None:
    """For every thread there is, and so for those that they start. Changes nothing where the system forbids it."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))
        except OSError:
            pass
