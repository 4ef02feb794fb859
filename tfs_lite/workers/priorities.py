"""The scheduling priority of a model's process while it loads, runs and ends.

    in_background (opening)  ->  lower priority than the server's (running)  ->  in_background (closing)

Opening a model is minutes of reading and building, and no client waits for it; clients wait for requests to other
models. In Linux's idle class a thread runs only while the processor is idle, and gives it up at once when another
thread wants it (sched(7), SCHED_IDLE); niceness would let a load finish its time slice first. A machine with no idle
time at all would never finish a load: after :data:`IDLE_CLASS_SECONDS` it goes on in the ordinary class. Users whom
the system does not let leave the idle class load in the class for batches (SCHED_BATCH) instead, which gives way less.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

NICENESS = 5
"""The niceness of a model's process: on a busy machine the system prefers the server, which accepts requests and
refuses those too many."""
OOM_SCORE = 500
"""The amount by which the score of a model's process exceeds the server's: as if it took half of the memory more."""
MAX_OOM_SCORE = 1000
IDLE_CLASS_SECONDS = 10.0
"""How long a load stays in the idle class."""


def lower_priority() -> None:
    """Gives this process a little less than the server's priority. Call it once, at the start of the process."""
    os.nice(max(NICENESS - os.nice(0), 0))


def offer_memory_first(path: str = "/proc/self/oom_score_adj") -> None:
    """Raises the score of this process and all that it starts above the server's: on a machine or in a container
    without memory, the kernel ends the process with the highest score first. Call it once, at the start of the process,
    before a sandbox. Raising the score takes no rights; where it cannot be told, it stays."""
    with suppress(OSError, ValueError), open(path, "r+", encoding="ascii") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(score + OOM_SCORE, MAX_OOM_SCORE)))


@contextmanager
def in_background(seconds: float = IDLE_CLASS_SECONDS) -> Iterator[None]:
    """Puts all threads of this process into the idle class or that for batches while the context lasts, for at most
    ``seconds``."""
    _set_policy(os.SCHED_IDLE if _may_leave_idle_class() else os.SCHED_BATCH)
    timer = threading.Timer(seconds, _set_policy, [os.SCHED_OTHER])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _set_policy(os.SCHED_OTHER)


@cache
def _may_leave_idle_class() -> bool:
    """Whether the process may leave the idle class: only root may, or a user with a limit for it (RLIMIT_NICE). Tries
    it on a thread of its own."""
    left: list[bool] = []

    def enter_and_leave() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        except OSError:
            return
        left.append(True)

    thread = threading.Thread(target=enter_and_leave)
    thread.start()
    thread.join()
    return bool(left)


def _set_policy(policy: int) -> None:
    """Sets the policy of every thread there is, and so of those that they start. Changes nothing where the system
    forbids it."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))
        except OSError:
            pass
