"""The promises of the lifecycle, watched from outside while a simulation runs.

 1  a ready version of the newest aspired list never begins to unload
 2  availability policy: the last ready version never goes while the newest list is not empty
 3  resource policy: no load is begun while a version that is not wanted is resident or on its way, unless its load or
    unload hangs
 4  no unload under a live handle; loads and unloads happen on executors only, never where a handle is released
 5  events: obtainable before Available, Unloading before withdrawn, End after the unload; legal chains, one End each
 6  at most one load or unload per version at a time, both of a residency with the same loader
 7  a version that comes back never meets its former incarnation
 8  what is reserved and used together never exceeds the machine
 9  a base path that cannot be read unloads nothing (with the source's checker: it emits nothing)
10  nothing erroneous disturbs its siblings, nor does what hangs: at rest, every aspired version is served or has a
    reason of its own not to be
11  only an order empties a list (with the source's checker): a model without versions wanted, or a base path that has
lost them all and has been seen so for the quiet period; while anything that is wanted is to come, what answers stays
12  availability policy: the last version that is not wanted stays until every one that is wanted is available, or its
source has given it up; with the source's checker: a version that has failed takes nobody's place

The :class:`LifecycleChecker` keeps a record of its own, from lists, events and calls of loaders, and asks the manager
only for what its users may ask. Violations are collected, because a bus and a manager may swallow what is
raised.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.lifecycle.simulated_loader import Need, SimulatedLoader, free_gpus, has_room, is_within_total
from tfs_lite.core.event_bus import TimedEvent
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import Loader
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.policies import Action, ActionKind
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.testing.lifecycle.executor import ManualExecutor

_M, _H = ManagerState, HarnessState

_NEXT: dict[ManagerState | None, frozenset[ManagerState]] = {
    None: frozenset({_M.START, _M.END}),
    _M.START: frozenset({_M.LOADING, _M.END}),
    _M.LOADING: frozenset({_M.AVAILABLE, _M.END}),
    _M.AVAILABLE: frozenset({_M.UNLOADING}),
    _M.UNLOADING: frozenset({_M.END}),
    _M.END: frozenset({_M.START, _M.END}),
}

_PUBLIC: dict[HarnessState, frozenset[ManagerState]] = {
    _H.NEW: frozenset({_M.START}),
    _H.LOAD_REQUESTED: frozenset({_M.START}),
    _H.LOAD_APPROVED: frozenset({_M.START}),
    _H.LOADING: frozenset({_M.LOADING}),
    _H.READY: frozenset({_M.AVAILABLE}),
    _H.QUIESCING: frozenset({_M.UNLOADING}),
    _H.QUIESCED: frozenset({_M.UNLOADING}),
    _H.UNLOADING: frozenset({_M.UNLOADING, _M.LOADING}),
    _H.DISABLED: frozenset({_M.END}),
    _H.ERROR: frozenset({_M.END}),
}
"""The last event of a version, for every state it may rest in between two steps."""


class Stage(enum.Enum):
    """On whose thread things happen now."""

    SOURCE = "source"
    TICK = "tick"
    EXECUTOR = "executor"
    REQUEST = "request"


@dataclass(slots=True, eq=False)
class Life:
    """One id: the latest incarnation."""

    state: ManagerState | None = None
    health: ServableState | None = None
    loader: SimulatedLoader | None = None
    """The one that was asked for something last."""
    holds: bool = False
    """Its memory counts."""
    unwanted: bool = False
    """It was un-aspired before it was ready; nothing can make it available any more."""
    last_item: ServableData[Loader] | None = None
    """What the newest list said of it when it ended."""
    ended_item: ServableData[Loader] | None = None
    """The item that arrived with an error and has had its End."""

    @property
    def ended(self) -> bool:
        return self.state in (None, _M.END)


class LifecycleChecker:
    """Observes lists, events, loaders and handles. ``stage``, ``closing``, ``forgiven`` and ``without_room``
    are set by the simulation."""

    def __init__(
        self, policy: str, loads: ManualExecutor, unloads: ManualExecutor, monitor: ServableStateMonitor
    ) -> None:
        self.violations: list[str] = []
        self.stage = Stage.SOURCE
        self.closing = False
        self.forgiven: frozenset[str] = frozenset()
        """Streams whose passing faults are off."""
        self.without_room: set[str] = set()
        """Streams whose replicas the cluster has no room for."""
        self.lives: dict[ServableId, Life] = {}
        self.aspired: dict[str, dict[ServableId, ServableData[Loader]]] = {}
        self.handles: list[ServableHandle] = []
        self._policy, self._loads, self._unloads, self._monitor = policy, loads, unloads, monitor
        self._manager: AspiredVersionsManager

    def watch(self, manager: AspiredVersionsManager) -> None:
        self._manager = manager

    # What it sees.

    def on_list(self, name: str, versions: Sequence[ServableData[Loader]]) -> None:
        """A list reaches the manager."""
        self.aspired[name] = {item.id: item for item in versions}

    def on_event(self, timed: TimedEvent[ServableState]) -> None:
        event = timed.event
        life = self.lives.setdefault(event.id, Life())
        before, life.state, life.health = life.state, event.state, event
        self.expect(event.state in _NEXT[before], f"(5) {event} after {before}")
        match event.state:
            case ManagerState.START:
                self._see_start(event.id, life)
            case ManagerState.LOADING:
                life.holds = True
                self._expect_within_total(event.id)
            case ManagerState.AVAILABLE:
                self.expect(self._is_obtainable(event.id), f"(5) {event.id} is Available and not obtainable")
                cancelled = life.unwanted or self.closing
                self.expect(not cancelled, f"{event.id} becomes Available, although its load was cancelled")
            case ManagerState.UNLOADING:
                self._see_unloading(event.id)
            case ManagerState.END:
                self._see_end(event, before, life)

    def _see_start(self, servable_id: ServableId, life: Life) -> None:
        life.unwanted = False
        tasks = self._running().count(str(servable_id))
        self.expect(not tasks, f"(7) {servable_id} starts anew, while a task of its former incarnation runs")
        if life.loader is not None:
            self.expect(life.loader.servable is None, f"(7) {servable_id} starts anew beside its former incarnation")
            life.loader.failed.clear()

    def _see_unloading(self, servable_id: ServableId) -> None:
        self.expect(self._is_obtainable(servable_id), f"(5) {servable_id} is withdrawn before Unloading is published")
        wanted = self.aspired.get(servable_id.name, {})
        if self.closing or not wanted:
            return
        self.expect(servable_id not in wanted, f"(1) {servable_id} begins to unload, and the newest list has it")
        if self._policy == "availability":
            others = [other for other in self.available() if other.name == servable_id.name]
            self.expect(bool(others), f"(2) the last ready version goes, {servable_id}; wanted: {sorted(wanted)}")
            if all(other in wanted for other in others if other != servable_id):
                to_come = [id_ for id_, item in wanted.items() if id_ not in others and not item.given_up]
                self.expect(not to_come, f"(12) {servable_id} goes, although {to_come} may still fail")

    def _see_end(self, event: ServableState, before: ManagerState | None, life: Life) -> None:
        life.holds = False
        item = life.last_item = self.aspired.get(event.id.name, {}).get(event.id)
        if before in (None, _M.END):  # only an item that arrives with an error ends without having started, and once
            genuine = item is not None and item.status == event.health and item is not life.ended_item
            self.expect(genuine, f"(5) a second End: {event}")
            life.ended_item = item
        self.expect(event.health.ok is (before is _M.UNLOADING), f"(5) {event} after {before}")
        self.expect(not self._is_obtainable(event.id), f"(5) {event.id} has ended and is obtainable")
        loaded = life.loader is not None and life.loader.servable is not None
        self.expect(not loaded, f"(5) {event.id} has ended and is loaded")

    def on_estimate(self, loader: SimulatedLoader) -> None:
        life = self.lives.setdefault(loader.item.id, Life())
        if life.loader is not loader and life.loader is not None:
            self.expect(life.loader.servable is None, f"(7) two incarnations of {loader.item.id}")
        life.loader = loader

    def on_load_begin(self, loader: SimulatedLoader) -> int:
        life = self.lives[loader.item.id]
        self.expect(life.loader is loader and life.holds, f"(8) {loader.item.id} loads without a reservation")
        self._expect_on_executor(loader, self._loads, "load")
        free = free_gpus(self.held())
        return free.index(max(free))

    def on_too_many_attempts(self, loader: SimulatedLoader) -> None:
        self.expect(False, f"{loader.item.id} is tried again after {len(loader.failed)} failures")

    def on_load_end(self, loader: SimulatedLoader) -> None:
        self._expect_within_total(loader.item.id)

    def on_unload(self, loader: SimulatedLoader) -> None:
        servable_id = loader.item.id
        self.expect(self.lives[servable_id].loader is loader, f"(6) {servable_id} is unloaded through another loader")
        users = [handle for handle in self.handles if handle.id == servable_id]
        self.expect(not users, f"(4) {servable_id} is unloaded under {len(users)} live handles")
        self._expect_on_executor(loader, self._unloads, "unload")

    def forgives(self, name: str) -> bool:
        return name in self.forgiven

    def has_room(self, name: str) -> bool:
        return name not in self.without_room

    # What it checks after a step.

    def check_tick(self, action: Action | None) -> None:
        for snapshot in self._manager.get_managed_servable_state_snapshots():
            if not snapshot.is_aspired and snapshot.state is not _H.READY:
                self.lives[snapshot.id].unwanted = True
        if action is not None and action.kind is ActionKind.LOAD and self._policy == "resource":
            wanted = self.aspired[action.id.name]
            others = [id_ for id_, life in self.lives.items() if id_.name == action.id.name and not life.ended]
            left = [id_ for id_ in others if id_ not in wanted and id_ not in self._hanging()]
            self.expect(not left, f"(3) {action.id} begins to load, while {left} are not gone")

    def check_step(self) -> None:
        running = self._running()
        self.expect(len(running) == len(set(running)), f"(6) several tasks of one version: {running}")
        ready = self._manager.list_available_servable_ids()
        self.expect(ready == self.available(), f"(5) obtainable are {ready}, Available are {self.available()}")
        managed = {snapshot.id: snapshot.state for snapshot in self._manager.get_managed_servable_state_snapshots()}
        for servable_id, life in self.lives.items():
            state = managed.pop(servable_id, _H.DISABLED)
            self.expect(life.state in _PUBLIC.get(state, ()), f"(5) {servable_id} is {state}, known as {life.state}")
            known = self._monitor.get_state(servable_id)
            self.expect(known == life.health, f"the monitor says {known}, the last event was {life.health}")
            if life.loader is not None:
                self.expect(not life.loader.violations, f"(6) {servable_id}: {life.loader.violations}")
        self.expect(not managed, f"managed and never heard of: {managed}")
        for handle in self.handles:
            fits = handle.servable.alive and handle.servable.id == handle.id
            self.expect(fits, f"(4) the servable behind a handle to {handle.id} is gone, or another one")

    def check_rest(self, held: str | None) -> None:
        """Nothing moves any more by itself. ``held``: a stream whose handles are kept; it owes nothing."""
        for name in {id_.name for id_ in self.lives} | set(self.aspired):
            if name != held:
                self._check_stream_at_rest(name)

    def check_end(self) -> None:
        """Everything was closed, released and run."""
        for servable_id, life in self.lives.items():
            self.expect(life.state is _M.END, f"after the end {servable_id} is {life.state}")
            loaded = life.loader is not None and life.loader.servable is not None
            self.expect(not loaded, f"after the end {servable_id} is loaded")

    def _check_stream_at_rest(self, name: str) -> None:
        wanted = self.aspired.get(name, {})
        ready = [id_ for id_ in self.available() if id_.name == name]
        surplus = [id_ for id_ in ready if id_ not in wanted]
        missing = any(id_ not in ready and not item.given_up for id_, item in wanted.items())
        alone = missing or len(ready) == len(surplus)
        fallback = self._policy == "availability" and bool(wanted) and len(surplus) == 1 and alone
        self.expect(not surplus or fallback, f"(10) {surplus} are not unloaded; wanted are {sorted(wanted)}")
        for servable_id, item in wanted.items():
            life = self.lives.get(servable_id, Life())
            if life.state is not _M.AVAILABLE and not self._has_reason(item, life):
                self.violations.append(f"(10) {item} is wanted, and it is {life.health}")
        moving = [id_ for id_, life in self.lives.items() if id_.name == name and not life.ended and id_ not in ready]
        stuck = [id_ for id_ in moving if not self._waits(self.lives[id_])]
        self.expect(not stuck, f"(10) {stuck} do not come to rest: {[self.lives[id_].health for id_ in stuck]}")

    def _has_reason(self, item: ServableData[Loader], life: Life) -> bool:
        if self._waits(life):
            return True
        if life.state is not _M.END or life.health is None:
            return False
        status = life.health.health
        if not item.status.ok:  # if it was healthy before, it may have ended before it became an error
            return status.code is not StatusCode.CANCELLED
        if life.loader is None:
            return False
        if life.loader.item.revision != item.revision and item is not life.last_item:
            return False  # a list that came after its end has other files
        if status.code is StatusCode.RESOURCE_EXHAUSTED:
            return not has_room(self.held(), life.loader.need)
        return life.loader.explains(status)

    def _waits(self, life: Life) -> bool:
        return self._waits_for_place(life) or self._waits_for_memory(life)

    def _waits_for_place(self, life: Life) -> bool:
        """It is loading, has found no room in the cluster, and there is none yet."""
        loader = life.loader
        return (
            life.state is _M.LOADING
            and loader is not None
            and loader.waits is not None
            and not self.has_room(loader.item.id.name)
        )

    def _waits_for_memory(self, life: Life) -> bool:
        """It waits for memory, or behind one that does, while a held stream is in the middle of something that does not
        hang."""
        hanging = self._hanging()
        others = [o for id_, o in self.lives.items() if not self._waits_for_place(o) and id_ not in hanging]
        under_way = any(other.state in (_M.LOADING, _M.UNLOADING) for other in others)
        if life.state is not _M.START or life.loader is None or not under_way:
            return False
        waiting = [other for other in self.lives.values() if other.state is _M.START and other.loader is not None]
        return len(waiting) > 1 or not has_room(self.held(), life.loader.need)

    # What it knows.

    def available(self) -> list[ServableId]:
        return sorted(id_ for id_, life in self.lives.items() if life.state is _M.AVAILABLE)

    def held(self) -> list[Need]:
        """What is used, is being loaded, or was promised to a load that waits for a thread."""
        snapshots = self._manager.get_managed_servable_state_snapshots()
        promised = {snapshot.id for snapshot in snapshots if snapshot.state is _H.LOAD_APPROVED}
        return [
            life.loader.need
            for id_, life in self.lives.items()
            if life.loader is not None and (life.holds or id_ in promised)
        ]

    def _hanging(self) -> set[ServableId]:
        """What nobody waits for any more."""
        snapshots = self._manager.get_managed_servable_state_snapshots()
        return {snapshot.id for snapshot in snapshots if snapshot.is_overdue}

    def _running(self) -> list[str]:
        """The ids, as text, of the versions with a task between start and finish."""
        return [name.split(" ", 1)[1] for name in [*self._loads.running, *self._unloads.running]]

    def _is_obtainable(self, servable_id: ServableId) -> bool:
        try:
            self._manager.get_servable_handle(ModelRef(servable_id.name, servable_id.version)).release()
        except ServingError:
            return False
        return True

    def _expect_within_total(self, servable_id: ServableId) -> None:
        held = self.held()
        self.expect(is_within_total(held), f"(8) with {servable_id} the machine is overcommitted: {held}")

    def _expect_on_executor(self, loader: SimulatedLoader, executor: ManualExecutor, what: str) -> None:
        inline = self.stage is Stage.TICK and executor.num_threads == 0
        allowed = inline or self.stage is Stage.EXECUTOR
        self.expect(allowed, f"(4) {what} of {loader.item.id} on the thread of a {self.stage.value}")

    def expect(self, holds: bool, violation: str) -> None:
        if not holds:
            self.violations.append(violation)
