"""The managed versions of one manager, the lock that guards them, and the order in which their events are published.

The load flow, the unload flow and the manager's own operations share one registry. Events are queued under the lock,
together with the change of state they report, and published outside it by :meth:`Registry.publish_events`: so the order
of events is the order of the changes, whichever threads are involved, and no subscriber ever runs under the lock.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import OK, ServingError, Status, failed_precondition, not_found
from tfs_lite.managers.harness import LoaderHarness

logger = logging.getLogger(__name__)

Done = Callable[[Status], None]
"""Called exactly once, outside all locks, after the last event of an operation."""


class Registry:
    """``lock`` guards every field here and in every harness, and what the flows keep beside them.

    It is held for bookkeeping only: never while publishing, estimating, loading, or calling anything passed in.
    ``after_change`` is called, outside the lock, after anything changed that a tick may act on.
    """

    def __init__(self, event_bus: EventBus[ServableState] | None, after_change: Callable[[], None]) -> None:
        self.lock = threading.Condition(threading.Lock())
        self.harnesses: dict[ServableId, LoaderHarness] = {}
        self.beside: set[LoaderHarness] = set()
        """Second loads of managed versions: those that are to take a place, and those that had one."""
        self.closing = False
        self.releases = 0
        """How often memory came free that nothing was parked for: by unloads, and by loads that had waited."""
        self.changes = 0
        self._event_bus = event_bus
        self._after_change = after_change
        self._queued: deque[ServableState] = deque()
        self._publishing = threading.RLock()  # serialises flushes, guards no field; innermost but for the bus

    def in_memory(self) -> Iterator[LoaderHarness]:
        """Every harness that may hold memory. Called with the lock held."""
        yield from self.harnesses.values()
        yield from self.beside

    def find(self, servable_id: ServableId) -> LoaderHarness:
        """The harness of a version that may be loaded or unloaded. Called with the lock held.

        NOT_FOUND if it is not managed; its own error if it has one.
        """
        harness = self.harnesses.get(servable_id)
        if harness is None:
            raise not_found(f"Servable {servable_id} is not being managed")
        if not harness.status.ok:
            raise ServingError(harness.status.code, harness.status.message)
        return harness

    def refuse_if_closing(self) -> None:
        """Called with the lock held."""
        if self.closing:
            raise failed_precondition("the manager is shutting down")

    def queue_event(self, harness: LoaderHarness, state: ManagerState, health: Status = OK) -> None:
        """Queues an event. Called with the lock held; followed by :meth:`publish_events` once the lock is released."""
        if self._event_bus is not None:
            self._queued.append(ServableState(harness.id, state, health))

    def queue_end(self, harness: LoaderHarness) -> None:
        """The ``on_error`` of every harness: queues its End. Called with the lock held."""
        harness.releases_seen = self.releases
        self.queue_event(harness, ManagerState.END, harness.status)

    def publish_events(self) -> None:
        """Returns when every event queued before the call has been published, by this thread or another."""
        with self._publishing:
            while self._queued and self._event_bus is not None:
                self._event_bus.publish(self._queued.popleft())

    def changed(self) -> None:
        """Wakes the threads that wait for a change and calls ``after_change``. Called outside the lock."""
        with self.lock:
            self.changes += 1
            self.lock.notify_all()
        self._after_change()


def call_done(done: Done, status: Status) -> None:
    """Calls ``done``; what that raises is logged."""
    try:
        done(status)
    except Exception:
        logger.exception("the callback of a load or unload failed")
