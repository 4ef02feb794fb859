"""Publish and subscribe between the manager and its observers.

``publish`` stamps an event once and calls every subscriber in the order of subscription, on the publisher's
thread, one event after the other: all subscribers see the same total order. Callbacks must be short and must not
call the bus; doing so raises RuntimeError where a plain lock would deadlock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfs_lite.core.clock import Clock
from tfs_lite.core.threads import is_users

E = TypeVar("E")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimedEvent(Generic[E]):
    """An event and its publication time in seconds since the epoch."""

    event: E
    time: float


class Subscription:
    """Ends with :meth:`close`, which waits for a running callback; afterwards no callback happens any more."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def close(self) -> None:
        self._close()


class EventBus(Generic[E]):
    """Publish/subscribe in one process. All methods may be called from any thread, never from a callback.

    A callback that raises is logged and does not disturb the others nor the publisher.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # guards _callbacks and _publishing; held while callbacks run
        self._callbacks: dict[int, Callable[[TimedEvent[E]], None]] = {}
        self._next_key = 0
        self._publishing = False

    def subscribe(self, callback: Callable[[TimedEvent[E]], None]) -> Subscription:
        with self._lock:
            self._refuse_reentry()
            key = self._next_key
            self._next_key += 1
            self._callbacks[key] = callback
        return Subscription(lambda: self._unsubscribe(key))

    def publish(self, event: E) -> None:
        with self._lock:
            self._refuse_reentry()
            self._publishing = True
            try:
                stamped = TimedEvent(event, self._clock.time())
                for callback in self._callbacks.values():
                    _call(callback, stamped)
            finally:
                self._publishing = False

    def _unsubscribe(self, key: int) -> None:
        with self._lock:
            self._refuse_reentry()
            self._callbacks.pop(key, None)

    def _refuse_reentry(self) -> None:
        if self._publishing:
            raise RuntimeError("an event bus callback must not call the bus")


def _call(callback: Callable[[TimedEvent[E]], None], event: TimedEvent[E]) -> None:
    try:
        callback(event)
    except BaseException as error:
        if is_users(error):
            raise
        logger.exception("a subscriber failed on %s", event)
