"""Tells waiting reloads, probes and watchers that a state has changed, and that they may look at it again."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ChangeNotifier:
    """``notify`` after a change; a waiter looks at the state itself. Any thread may call any method, also from a
    callback of the event bus. Listeners must be short and must not raise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._count = 0
        self._listeners: tuple[Callable[[], None], ...] = ()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after each change, on the thread of the change."""
        with self._changed:
            self._listeners = (*self._listeners, listener)

    @property
    def count(self) -> int:
        """How many changes there were. Read it before looking at the state; then :meth:`wait_since` misses none."""
        with self._changed:
            return self._count

    def notify(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            listeners = self._listeners
        for listener in listeners:
            listener()

    def wait_since(self, count: int, timeout: float | None) -> None:
        """Returns when there was a change since ``count`` was read, or after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._count != count, timeout)
