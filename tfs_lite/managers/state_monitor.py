"""The last state of every version, kept for queries.

The monitor listens to the event bus from before anything is published. Of the versions of one name that have ended it
remembers a bounded number.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tfs_lite.core.event_bus import EventBus, Subscription, TimedEvent
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, ServableState, TimedState

logger = logging.getLogger(__name__)

VersionStates = dict[int, TimedState]
"""Version -> last state, highest version first."""


class ServableStateMonitor:
    """Queries may come from any thread, and from subscribers too. Callbacks run on the publisher's thread, outside the
    monitor's lock and inside the bus: they must be short and must not publish.

    A report "not accepted yet" (START with a status other than OK, e.g. while files still arrive) is kept as the
    version's state, and never hides a version that the manager already works on.

    Names come and go too: of those without a live version, the ``max_ended_names`` that ended last are remembered.
    """

    def __init__(
        self, event_bus: EventBus[ServableState], max_ended_versions: int = 32, max_ended_names: int = 1000
    ) -> None:
        self._max_ended_versions = max(max_ended_versions, 1)
        self._max_ended_names = max(max_ended_names, 1)
        self._lock = threading.Lock()  # guards the fields below; nothing is called under it
        self._states: dict[str, dict[int, TimedState]] = {}
        self._ended_names: dict[str, None] = {}  # those without a live version; the last to end is last
        self._subscribers: dict[int, Callable[[TimedState], None]] = {}
        self._next_key = 0
        self._subscription = event_bus.subscribe(self._on_event)

    def close(self) -> None:
        """Stops listening. What is known stays known."""
        self._subscription.close()

    # What is known.

    def get_state(self, servable_id: ServableId) -> ServableState | None:
        """The last state of the version; None for one that is not known."""
        with self._lock:
            timed = self._states.get(servable_id.name, {}).get(servable_id.version)
        return timed.state if timed is not None else None

    def get_version_states(self, name: str) -> VersionStates:
        """Empty for an unknown name."""
        with self._lock:
            return _descending(self._states.get(name, {}))

    def get_all_servable_states(self) -> dict[str, VersionStates]:
        with self._lock:
            return {name: _descending(versions) for name, versions in self._states.items()}

    # What becomes known.

    def subscribe(self, callback: Callable[[TimedState], None]) -> Subscription:
        """``callback`` runs after each event, when queries already show it."""
        with self._lock:
            key = self._next_key
            self._next_key += 1
            self._subscribers[key] = callback
        return Subscription(lambda: self._unsubscribe(key))

    def _on_event(self, event: TimedEvent[ServableState]) -> None:
        timed = TimedState(event.event, event.time)
        with self._lock:
            if not self._remember(timed):
                return
            subscribers = list(self._subscribers.values())
        for subscriber in subscribers:
            _call(subscriber, timed)

    def _remember(self, timed: TimedState) -> bool:
        """Called with the lock held. False if the event says nothing new."""
        servable_id = timed.state.id
        versions = self._states.setdefault(servable_id.name, {})
        known = versions.get(servable_id.version)
        if _is_waiting(timed.state) and known is not None and not (_ended(known) or _is_waiting(known.state)):
            return False
        versions.pop(servable_id.version, None)
        versions[servable_id.version] = timed  # so the order of a stream's entries is the order of their last events
        ended = [version for version, last in versions.items() if _ended(last)]
        for version in ended[: -self._max_ended_versions]:
            del versions[version]
        self._bound_names(servable_id.name, has_ended=all(_ended(last) for last in versions.values()))
        return True

    def _bound_names(self, name: str, has_ended: bool) -> None:
        """Called with the lock held, after each event of a name."""
        self._ended_names.pop(name, None)
        if has_ended:
            self._ended_names[name] = None
        if len(self._ended_names) > self._max_ended_names:
            oldest = next(iter(self._ended_names))
            del self._ended_names[oldest], self._states[oldest]

    def _unsubscribe(self, key: int) -> None:
        with self._lock:
            self._subscribers.pop(key, None)


def _call(subscriber: Callable[[TimedState], None], timed: TimedState) -> None:
    try:
        subscriber(timed)
    except Exception:
        logger.exception("a subscriber of the state monitor failed on %s", timed.state)


def _descending(versions: dict[int, TimedState]) -> VersionStates:
    return dict(sorted(versions.items(), reverse=True))


def _ended(timed: TimedState) -> bool:
    return timed.state.state is ManagerState.END


def _is_waiting(state: ServableState) -> bool:
    return state.state is ManagerState.START and not state.health.ok
