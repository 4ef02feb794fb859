"""One named thread that does one thing again and again, at intervals or when woken.

Used by the file-system source (polls), the aspired-versions manager (ticks) and the config-file poller, so that
there is one loop to get right: runs never overlap, the interval counts from start to start, a late run is
followed at once by the next, and stopping never waits for an interval.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


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
        self._thread.start()

    def wake(self) -> None:
        """The next run begins as soon as the current one has ended. Many wakes before a run count as one."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def stop(self) -> None:
        """Waits for a run in progress; afterwards no run happens any more. May be called more than once."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            started = time.monotonic()
            try:
                self._action()
            except Exception:
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
