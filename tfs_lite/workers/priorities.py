"""How much of the processors a model's process may claim while it loads, runs and ends.

    in_background (opening)  ->  beside the server (running)  ->  in_background (closing)

Opening a model is minutes of reading and building that nobody waits for; requests of other models are waited for. In
Linux's idle class a thread runs where nothing else wants the processor, and gives it up at once when something does
(sched(7), SCHED_IDLE); niceness only shares time out, and lets a load finish its slice first. A machine with no idle
time at all would never finish a load: after :data:`PATIENCE_SECONDS` it goes on in the ordinary class.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NICENESS = 5
"""Where processors are short, the system prefers the server, which takes requests and refuses those too many."""
PATIENCE_SECONDS = 10.0
"""How long a load yields to everything."""


def step_beside() -> None:
    """This process is a little less urgent than the server. Once, at its start."""
    os.nice(max(NICENESS - os.nice(0), 0))


@contextmanager
def in_background(patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Inside, all threads of this process run only where nothing else wants to, for ``patience`` seconds at most."""
    _enter(os.SCHED_IDLE)
    timer = threading.Timer(patience, _enter, [os.SCHED_OTHER])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _enter(os.SCHED_OTHER)


def _enter(policy: int) -> None:
    """Every thread there is, and with them those that they start. Where the system forbids it, nothing changes."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))
        except OSError:
            pass
