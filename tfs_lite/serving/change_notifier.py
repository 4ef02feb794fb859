"""One bell for everything that a waiting reload, a probe or a watcher may want to look at again."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ChangeNotifier:
    """``ring`` after a change; whoever waits looks at the state itself. Any thread may call any method, also from a
    callback of the event bus. Listeners must be short and must not raise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._count = 0
        self._listeners: tuple[Callable[[], None], ...] = ()

    def listen(self, listener: Callable[[], None]) -> None:
        with self._changed:
            self._listeners = (*self._listeners, listener)

    @property
    def count(self) -> int:
        """Take it before looking at the state; then :meth:`wait_beyond` misses no change."""
        with self._changed:
            return self._count

    def ring(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            listeners = self._listeners
        for listener in listeners:
            listener()

    def wait_beyond(self, count: int, timeout: float | None) -> None:
        """Returns when there was a ring since ``count`` was taken, or after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._count != count, timeout)
