"""A manager that the test drives: virtual time, manual executors, fake loaders, and every event recorded.

fixture = ManagerFixture()
fixture.aspire("m", 1)
fixture.settle()
assert fixture.history("m", 1) == ["Start", "Loading", "Available"]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import MAIN, GroupMemory, ResourceUtil, main_ram
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import Status
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager, AspiredVersionsManagerOptions
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.policies import POLICIES, Action, Policy
from tfs_lite.managers.resource_tracker import ModelShare, ResourceTracker
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.loader import FakeLoader

MAX_STEPS = 1000


class ManagerFixture:
    """A manager with its loaders and their configuration; ``loading[id]`` are the arguments of the :class:`FakeLoader`
    made for that id whenever it is aspired."""

    def __init__(
        self,
        policy: str | Policy = "availability",
        *,
        threads: int = 1,
        ram: int | None = None,
        group: Callable[[], GroupMemory | None] | None = None,
        **options: Any,
    ) -> None:
        """``ram``: bytes that models may have; ``group``: a control group that they share with others, without a
        reserve."""
        self.clock = VirtualClock()
        self.loads, self.unloads = ManualExecutor(threads), ManualExecutor(threads)
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.events: list[ServableState] = []
        self.bus.subscribe(lambda event: self.events.append(event.event))
        self.monitor = ServableStateMonitor(self.bus)
        self.loading: dict[ServableId, dict[str, Any]] = {}
        self.loaders: dict[ServableId, list[FakeLoader]] = {}
        share = None if group is None else ModelShare(group, lambda limit: 0)
        tracker = None if ram is None else ResourceTracker(ResourceUtil({MAIN: 1}), main_ram(ram), share)
        settings: dict[str, Any] = {
            "clock": self.clock,
            "load_executor": self.loads,
            "unload_executor": self.unloads,
            "event_bus": self.bus,
            "resource_tracker": tracker,
            "policy": POLICIES[policy] if isinstance(policy, str) else policy,
            "tick_interval": None,
        }
        self.manager = AspiredVersionsManager(AspiredVersionsManagerOptions(**(settings | options)))
        self.emit = self.manager.aspired_versions_callback()

    # Doing.

    def data(self, name: str, version: int, revision: str = "") -> ServableData[Loader]:
        """The version with a new loader."""
        servable_id = ServableId(name, version)
        loader = FakeLoader(**self.loading.get(servable_id, {}))
        self.loaders.setdefault(servable_id, []).append(loader)
        return ServableData.ok(servable_id, loader, revision)

    def aspire(self, name: str, *versions: int, revision: str = "", given_up: Collection[int] = ()) -> None:
        """Emits the list, without a tick."""
        items = [self.data(name, version, revision) for version in versions]
        self.emit(name, [replace(item, given_up=item.id.version in given_up) for item in items])

    def aspire_and_tick(self, name: str, *versions: int) -> Action | None:
        """Emits the list and ticks once."""
        self.aspire(name, *versions)
        return self.tick()

    def serve(self, name: str, *versions: int, revision: str = "") -> list[Action]:
        """Emits the list and lets everything happen that follows from it. Returns the actions."""
        self.aspire(name, *versions, revision=revision)
        return self.settle()

    def tick(self) -> Action | None:
        return self.manager.tick()

    def settle(self) -> list[Action]:
        """Ticks and runs everything, without moving the time, until two ticks in a row find nothing to do (the first
        of them may mark what the second drops). Returns the actions."""
        actions: list[Action] = []
        idle = 0
        for _ in range(MAX_STEPS):
            action = self.manager.tick()
            idle = 0 if action or self.loads.queued or self.unloads.queued else idle + 1
            self.loads.run_all()
            self.unloads.run_all()
            if action is not None:
                actions.append(action)
            elif idle == 2:
                return actions
        raise AssertionError(f"not settled after {MAX_STEPS} ticks")

    def wait_for(self, goal: ManagerState, *ids: ServableId, timeout: float = 60) -> None:
        """Waits, for managers with threads, until each of these versions has reached ``goal``. AssertionError if one
        ended instead, or on a timeout."""
        done = threading.Event()

        def states() -> dict[ServableId, ServableState | None]:
            return {wanted: self.monitor.get_state(wanted) for wanted in ids}

        def look(timed: object = None) -> None:
            if all(found and found.state in (goal, ManagerState.END) for found in states().values()):
                done.set()

        subscription = self.monitor.subscribe(look)
        look()
        assert done.wait(timeout), states()
        subscription.close()
        assert all(found and found.state is goal for found in states().values()), states()

    # Seeing.

    def loader(self, name: str, version: int, incarnation: int = -1) -> FakeLoader:
        return self.loaders[ServableId(name, version)][incarnation]

    def state(self, name: str, version: int) -> HarnessState | None:
        """The harness state of a version; None if it is not managed."""
        snapshot = self.manager.get_managed_servable_state_snapshot(ServableId(name, version))
        return snapshot.state if snapshot is not None else None

    def status(self, name: str, version: int) -> Status | None:
        snapshot = self.manager.get_managed_servable_state_snapshot(ServableId(name, version))
        return snapshot.status if snapshot is not None else None

    def ready(self, name: str) -> list[int]:
        return [found.version for found in self.manager.list_available_servable_ids() if found.name == name]

    def history(self, name: str, version: int) -> list[str]:
        """The events of one version: ``Start``, ``Loading``, ``Available``, ``Unloading``, ``End``, and the code where
        the health is not OK: ``End(CANCELLED)``."""
        return [_text(event) for event in self.events if event.id == ServableId(name, version)]

    def timeline(self) -> list[tuple[str, int]]:
        """All events in order: (text, version)."""
        return [(_text(event), event.id.version) for event in self.events]

    def violations(self) -> Sequence[str]:
        """How loaders saw their contract broken."""
        return [
            f"{found}: {violation}"
            for found, made in self.loaders.items()
            for one in made
            for violation in one.violations
        ]


def _text(event: ServableState) -> str:
    return event.state.value if event.health.ok else f"{event.state.value}({event.health.code.name})"
