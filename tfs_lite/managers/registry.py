"""The managed versions of one manager, the lock that guards them, and the order in which their events are published.

The facts that a decision needs of all versions are kept here too and follow each change of a harness, so that no step
looks at every version: which streams have changed, what is held and what is on its way, which versions lacked memory.

The load flow, the unload flow and the manager's own operations share one registry. Events are queued under the lock,
together with the change of state they report, and published outside it by :meth:`Registry.publish_events`: so the order
of events is the order of the changes, whichever threads are involved, and no subscriber ever runs under the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.resources import ResourceAllocation, RunningTotal
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import OK, ServingError, Status, StatusCode, failed_precondition, not_found
from tfs_lite.managers.harness import HOLDS_RESOURCES, IN_FLIGHT, HarnessState, LoaderHarness

logger = logging.getLogger(__name__)

Done = Callable[[Status], None]
"""Called exactly once, outside all locks, after the last event of an operation."""


class Registry:
    """``lock`` guards every field here and in every harness, and the flows' own bookkeeping.

    It is held for bookkeeping only: never while publishing, estimating, loading, or calling anything passed in.
    ``after_change`` is called, outside the lock, after anything changed that a tick may act on.
    """

    def __init__(
        self,
        event_bus: EventBus[ServableState] | None,
        after_change: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.Condition(threading.Lock())
        self.harnesses: dict[ServableId, LoaderHarness] = {}
        """Changed by :meth:`add`, :meth:`remove` and :meth:`change_places` only."""
        self.beside: dict[LoaderHarness, float] = {}
        """Second loads of managed versions, those that are to take a place and those that had one, and since when they
        are here, in seconds of ``monotonic``. Changed by :meth:`keep_beside`, :meth:`drop_beside` and
        :meth:`change_places` only."""
        self.staying, self.leaving = RunningTotal(), RunningTotal()
        """The memory of the versions that hold some: of those that stay, and of those on their way out."""
        self.moving: dict[LoaderHarness, None] = {}
        """Those whose state is IN_FLIGHT, in the order in which they began."""
        self.exhausted: dict[LoaderHarness, None] = {}
        """Those that ended because they lacked resources."""
        self.room_changes = 0
        """The number of changes by which a load may be admitted or refused."""
        self._streams: dict[str, dict[ServableId, LoaderHarness]] = {}
        self._changed_streams: set[str] = set()
        self._counted: dict[LoaderHarness, tuple[bool, bool, ResourceAllocation]] = {}
        self.closing = False
        self.releases = 0
        """The number of times that memory came free that nothing was parked for: by unloads, and by loads that had
        waited."""
        self.changes = 0
        self._event_bus = event_bus
        self._after_change = after_change
        self._monotonic = monotonic
        self._queued: deque[ServableState] = deque()
        self._publishing = threading.RLock()  # serialises flushes, guards no field; innermost but for the bus

    # Which versions there are. Called with the lock held.

    def add(self, harness: LoaderHarness) -> None:
        """Manages it, in the place of what had its id."""
        self.remove(harness.id)
        self.harnesses[harness.id] = harness
        self._streams.setdefault(harness.id.name, {})[harness.id] = harness
        self._follow(harness)

    def remove(self, servable_id: ServableId) -> None:
        harness = self.harnesses.pop(servable_id, None)
        if harness is None:
            return
        stream = self._streams[servable_id.name]
        del stream[servable_id]
        if not stream:
            del self._streams[servable_id.name]
        self._let_go(harness)

    def keep_beside(self, harness: LoaderHarness) -> None:
        self.beside[harness] = self._monotonic()
        self._follow(harness)

    def drop_beside(self, harness: LoaderHarness) -> None:
        if harness in self.beside:
            del self.beside[harness]
            self._let_go(harness)

    def change_places(self, new: LoaderHarness, old: LoaderHarness) -> None:
        """Exchanges a managed version with its second load: ``new``, which was kept beside ``old``, becomes the managed
        one, and ``old`` is kept beside it."""
        self.beside.pop(new, None)
        self.beside[old] = self._monotonic()
        self.harnesses[new.id] = self._streams[new.id.name][new.id] = new
        self._changed_streams.add(new.id.name)

    def stream(self, name: str) -> Iterable[LoaderHarness]:
        """The managed versions of the stream."""
        return self._streams.get(name, {}).values()

    def take_changed_streams(self) -> set[str]:
        """The streams of which something that a policy sees has changed since the last call."""
        changed, self._changed_streams = self._changed_streams, set()
        return changed

    @property
    def in_flight(self) -> bool:
        """Whether anything will get somewhere by itself, and may free memory when it does."""
        return any(harness.in_flight for harness in self.moving)

    def _follow(self, harness: LoaderHarness) -> None:
        harness.on_change = self._count
        self._count(harness)

    def _let_go(self, harness: LoaderHarness) -> None:
        harness.on_change = ignore
        self._uncount(harness)
        self.moving.pop(harness, None)
        self.exhausted.pop(harness, None)
        self._changed_streams.add(harness.id.name)

    def _count(self, harness: LoaderHarness) -> None:
        """Updates the counts after each change of a harness."""
        self._changed_streams.add(harness.id.name)
        if harness.state in IN_FLIGHT:
            self.moving.setdefault(harness)
        else:
            self.moving.pop(harness, None)
        if harness.state is HarnessState.ERROR and harness.status.code is StatusCode.RESOURCE_EXHAUSTED:
            self.exhausted.setdefault(harness)
        share = (harness.is_leaving, harness.in_flight, harness.estimate)
        holds = harness.state in HOLDS_RESOURCES
        if self._counted.get(harness) == (share if holds else None):
            return
        self._uncount(harness)
        if holds:
            self._counted[harness] = share
            (self.leaving if share[0] else self.staying).add(harness.estimate)

    def _uncount(self, harness: LoaderHarness) -> None:
        self.room_changes += 1
        share = self._counted.pop(harness, None)
        if share is not None:
            (self.leaving if share[0] else self.staying).take(share[2])

    # Operations.

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
