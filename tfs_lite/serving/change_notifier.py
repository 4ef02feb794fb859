"""Tells waiting reloads, probes and watchers that a state has changed, and that they may look at it again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tfs_lite.core.callbacks import name_of

logger = logging.getLogger(__name__)

KEPT_CHANGES = 10_000
"""Models whose last change is remembered."""


class ChangeNotifier:
    """``notify`` after a change; a waiter looks at the state itself. Any thread may call any method, also from a
    callback of the event bus. It says that something has changed, and not what: many of its causes are no event of a
    model (a remark, a config that is refused, the end of all waits). Listeners must be short; one that raises is
    logged."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._count = 0
        self._latest: dict[str, int] = {}  # by model: the count of its last change; the latest is last
        self._forgotten = 0  # changes up to this one may be of any model
        self._listeners: tuple[Callable[[], None], ...] = ()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after each change, on the thread of the change."""
        with self._changed:
            self._listeners = (*self._listeners, listener)

    @property
    def count(self) -> int:
        """The number of changes so far. Read it before looking at the state; then :meth:`wait_since` misses none."""
        with self._changed:
            return self._count

    def notify(self, model: str = "") -> None:
        """``model``: the one that has changed; empty: any of them may have."""
        with self._changed:
            self._count += 1
            self._note(model)
            self._changed.notify_all()
            listeners = self._listeners
        for listener in listeners:
            try:
                listener()
            except Exception:
                logger.exception("a listener to changes failed: %s", name_of(listener))

    def changed_since(self, count: int) -> set[str] | None:
        """The models that have changed since ``count`` was read; None: any of them may have."""
        found = set[str]()
        with self._changed:
            if count < self._forgotten:
                return None
            for model in reversed(self._latest):
                if self._latest[model] <= count:
                    break
                found.add(model)
        return found

    def wait_since(self, count: int, timeout: float | None) -> None:
        """Returns when there was a change since ``count`` was read, or after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._count != count, timeout)

    def _note(self, model: str) -> None:
        """Called with the lock held."""
        if not model:
            self._forgotten = self._count
            self._latest.clear()
            return
        self._latest.pop(model, None)
        self._latest[model] = self._count
        if len(self._latest) > KEPT_CHANGES:
            oldest = next(iter(self._latest))
            self._forgotten = self._latest.pop(oldest)
