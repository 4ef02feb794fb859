"""What became of every version, kept for whoever asks, and waits for what becomes of it.

The monitor listens to the event bus from before anything is published. It remembers the last state of each version,
a bounded number of ended ones per name, and optionally the last events. Waits look at the present state first, so a
wait for something that has already happened never hangs, and a wait that times out leaves nothing behind.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfs_lite.core.event_bus import EventBus, Subscription, TimedEvent
from tfs_lite.core.servable import ServableId, ServableRequest
from tfs_lite.core.state import ManagerState, ServableState, TimedState

logger = logging.getLogger(__name__)

Answers = dict[ServableId, ServableState]
"""The versions that answered a wait, each with the state it answered with."""
Notify = Callable[[bool, Answers], None]
"""(whether every answer is the goal, the answers)."""
VersionStates = dict[int, TimedState]
"""Version -> last state, highest version first."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    requests: tuple[ServableRequest, ...]
    goal: ManagerState
    notify: Notify


class ServableStateMonitor:
    """Queries may come from any thread, and from subscribers too. Callbacks run on the publisher's thread, outside the
    monitor's lock and inside the bus: they must be short and must not publish.

    A report "not accepted yet" (START with a status other than OK, e.g. while files still arrive) is kept as the
    version's state, answers no wait, and never hides a version that the manager already works on.

    Names come and go too: of those without a live version, the ``max_ended_names`` that ended last are remembered.
    """

    def __init__(
        self,
        event_bus: EventBus[ServableState],
        max_count_log_events: int = 0,
        max_ended_versions: int = 32,
        max_ended_names: int = 1000,
    ) -> None:
        self._max_ended_versions = max(max_ended_versions, 1)
        self._max_ended_names = max(max_ended_names, 1)
        self._lock = threading.Lock()  # guards the fields below; nothing is called under it
        self._states: dict[str, dict[int, TimedState]] = {}
        self._ended_names: dict[str, None] = {}  # those without a live version; the last to end is last
        self._log: deque[TimedState] = deque(maxlen=max_count_log_events)
        self._waits: set[_Wait] = set()
        self._subscribers: dict[int, Callable[[TimedState], None]] = {}
        self._next_key = 0
        self._subscription = event_bus.subscribe(self._on_event)

    def close(self) -> None:
        """Stops listening. What is known stays known; waits that are open are never answered."""
        self._subscription.close()

    # What is known.

    def get_state(self, servable_id: ServableId) -> ServableState | None:
        timed = self.get_state_and_time(servable_id)
        return timed.state if timed is not None else None

    def get_state_and_time(self, servable_id: ServableId) -> TimedState | None:
        with self._lock:
            return self._states.get(servable_id.name, {}).get(servable_id.version)

    def get_version_states(self, name: str) -> VersionStates:
        """Empty for an unknown name."""
        with self._lock:
            return _descending(self._states.get(name, {}))

    def get_all_servable_states(self) -> dict[str, VersionStates]:
        with self._lock:
            return {name: _descending(versions) for name, versions in self._states.items()}

    def get_live_servable_states(self) -> dict[str, VersionStates]:
        """Everything that has not ended; names without such a version are left out."""
        live = {
            name: {version: timed for version, timed in versions.items() if not _ended(timed)}
            for name, versions in self.get_all_servable_states().items()
        }
        return {name: versions for name, versions in live.items() if versions}

    def get_available_servable_states(self) -> set[str]:
        """Names with at least one version that is available."""
        with self._lock:
            return {
                name
                for name, versions in self._states.items()
                if any(timed.state.state is ManagerState.AVAILABLE for timed in versions.values())
            }

    def get_bounded_log(self) -> list[TimedState]:
        """The last events, oldest first; none unless ``max_count_log_events`` was given."""
        with self._lock:
            return list(self._log)

    def forget_unloaded_servable_states(self) -> None:
        """Forgets every version that has ended; names stay."""
        with self._lock:
            for name, versions in self._states.items():
                self._states[name] = {version: timed for version, timed in versions.items() if not _ended(timed)}

    # What becomes known.

    def subscribe(self, callback: Callable[[TimedState], None]) -> Subscription:
        """``callback`` runs after each event, when queries already show it."""
        with self._lock:
            key = self._next_key
            self._next_key += 1
            self._subscribers[key] = callback
        return Subscription(lambda: self._unsubscribe(key))

    def notify_when_servables_reach_state(
        self, requests: Sequence[ServableRequest], goal: ManagerState, notify: Notify
    ) -> Subscription:
        """Calls ``notify`` once, as soon as every request has its answer: a version in state ``goal``, or ended.

        A request without a version is answered by the highest version of the name that is in one of the two states at
        that moment; so "any version available" can be answered by the failure of a newer one. Without requests, or if
        all are answered now, the call comes before this returns. Closing the subscription gives the wait up.
        """
        wait = _Wait(tuple(requests), goal, notify)
        with self._lock:
            answers = self._answers(wait)
            if not _complete(answers):
                self._waits.add(wait)
                return Subscription(lambda: self._give_up(wait))
        _tell(wait, answers)
        return Subscription(lambda: None)

    def wait_until_servables_reach_state(
        self, requests: Sequence[ServableRequest], goal: ManagerState, timeout: float | None = None
    ) -> tuple[bool, Answers]:
        """Blocks until every request has its answer, at most ``timeout`` seconds (None: as long as it takes).

        Returns what :meth:`notify_when_servables_reach_state` tells; after a timeout False and the answers there are.
        """
        answered = threading.Event()
        result: list[tuple[bool, Answers]] = []

        def notify(reached: bool, answers: Answers) -> None:
            result.append((reached, answers))
            answered.set()

        subscription = self.notify_when_servables_reach_state(requests, goal, notify)
        if answered.wait(timeout):
            return result[0]
        subscription.close()
        with self._lock:
            answers = self._answers(_Wait(tuple(requests), goal, notify))
        reached, found = _summary(answers, goal)
        return reached and _complete(answers), found

    def _on_event(self, event: TimedEvent[ServableState]) -> None:
        timed = TimedState(event.event, event.time)
        with self._lock:
            if not self._remember(timed):
                return
            answered = [(wait, answers) for wait, answers in self._evaluated(timed) if _complete(answers)]
            self._waits.difference_update(wait for wait, _ in answered)
            subscribers = list(self._subscribers.values())
        for wait, answers in answered:
            _tell(wait, answers)
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
        self._log.append(timed)
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

    def _evaluated(self, timed: TimedState) -> list[tuple[_Wait, list[ServableState | None]]]:
        """The waits that the event may have answered. Called with the lock held."""
        name = timed.state.id.name
        return [
            (wait, self._answers(wait))
            for wait in self._waits
            if any(request.name == name for request in wait.requests)
        ]

    def _answers(self, wait: _Wait) -> list[ServableState | None]:
        """One answer, or None, per request. Called with the lock held."""
        return [_answer(request, wait.goal, self._states.get(request.name, {})) for request in wait.requests]

    def _give_up(self, wait: _Wait) -> None:
        with self._lock:
            self._waits.discard(wait)

    def _unsubscribe(self, key: int) -> None:
        with self._lock:
            self._subscribers.pop(key, None)


def _answer(request: ServableRequest, goal: ManagerState, versions: dict[int, TimedState]) -> ServableState | None:
    candidates = [request.version] if request.version is not None else sorted(versions, reverse=True)
    for version in candidates:
        timed = versions.get(version)
        if timed is not None and (_ended(timed) or timed.state.state is goal) and not _is_waiting(timed.state):
            return timed.state
    return None


def _complete(answers: Sequence[ServableState | None]) -> bool:
    return all(answer is not None for answer in answers)


def _summary(answers: Sequence[ServableState | None], goal: ManagerState) -> tuple[bool, Answers]:
    found = [answer for answer in answers if answer is not None]
    return all(answer.state is goal for answer in found), {answer.id: answer for answer in found}


def _tell(wait: _Wait, answers: Sequence[ServableState | None]) -> None:
    try:
        wait.notify(*_summary(answers, wait.goal))
    except Exception:
        logger.exception("a wait's callback failed")


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
