"""Managers in virtual time: a basic manager by itself, and a manager of aspired versions."""

from __future__ import annotations

from typing import Any

import pytest

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import MAIN, ResourceUtil, main_ram
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.state import ServableState
from tfs_lite.core.status import Status
from tfs_lite.managers.basic_manager import BasicManager, BasicManagerOptions
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.loader import FakeLoader
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture


class Basic:
    """``manage`` -> ``load`` -> ``unload``; ``outcomes`` collects what the callbacks got, by what was asked."""

    def __init__(self, *, threads: int = 4, ram: int | None = None, **options: Any) -> None:
        self.clock = VirtualClock()
        self.loads, self.unloads = ManualExecutor(threads), ManualExecutor(threads)
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.events: list[str] = []
        self.bus.subscribe(lambda timed: self.events.append(f"{timed.event.state.value} {timed.event.id.version}"))
        settings: dict[str, Any] = {
            "clock": self.clock,
            "load_executor": self.loads,
            "unload_executor": self.unloads,
            "event_bus": self.bus,
            "resource_tracker": None if ram is None else ResourceTracker(ResourceUtil({MAIN: 1}), main_ram(ram)),
        }
        self.manager = BasicManager(BasicManagerOptions(**(settings | options)))
        self.outcomes: list[tuple[str, Status]] = []

    def manage(self, version: int, loader: Loader | None = None) -> Loader:
        loader = loader or FakeLoader()
        self.manager.manage_servable(ServableData.ok(ServableId("m", version), loader))
        return loader

    def sized(self, version: int, size: int, **loading: Any) -> Loader:
        """Manages a version that needs ``size`` and asks for its load."""
        return self.request(version, FakeLoader(estimate=main_ram(size), **loading))

    def sized_now(self, version: int, size: int, **loading: Any) -> Loader:
        """As ``sized``, and runs what is queued."""
        loader = self.sized(version, size, **loading)
        self.loads.run_all()
        return loader

    def sized_begun(self, version: int, size: int, **loading: Any) -> None:
        """As ``sized``, and starts the next task of the loads."""
        self.sized(version, size, **loading)
        self.loads.start()

    def load(self, version: int) -> None:
        self.manager.load_servable(ServableId("m", version), self._collect(f"load {version}"))

    def request(self, version: int, loader: Loader | None = None) -> Loader:
        """Manages the version and asks for its load."""
        loader = self.manage(version, loader)
        self.load(version)
        return loader

    def begin(self, version: int, loader: Loader | None = None) -> Loader:
        """Manages the version, asks for its load, and starts it."""
        loader = self.request(version, loader)
        self.loads.start()
        return loader

    def load_now(self, version: int, loader: Loader | None = None) -> Loader:
        """Manages the version, asks for its load, and runs what is queued."""
        loader = self.request(version, loader)
        self.loads.run_all()
        return loader

    def unload(self, version: int) -> None:
        self.manager.unload_servable(ServableId("m", version), self._collect(f"unload {version}"))

    def unload_now(self, version: int) -> None:
        self.unload(version)
        self.unloads.run_all()

    def replace(self, version: int, loader: Loader | None = None, revision: str = "") -> Loader:
        """Asks for another load of a version that is ready, in its place."""
        loader = loader or FakeLoader()
        data = ServableData.ok(ServableId("m", version), loader, revision)
        self.manager.replace_servable(data, self._collect(f"replace {version}"))
        return loader

    def handle(self) -> ServableHandle:
        """To the latest version."""
        return self.manager.get_servable_handle(ModelRef("m"))

    def make_ready(self, *versions: int) -> None:
        for version in versions:
            self.load_now(version)
            assert self.state(version) is HarnessState.READY

    def state(self, version: int) -> HarnessState | None:
        snapshot = self.manager.get_managed_servable_state_snapshot(ServableId("m", version))
        return snapshot.state if snapshot is not None else None

    def codes(self) -> list[str]:
        return [f"{asked}: {status.code.name}" for asked, status in self.outcomes]

    def _collect(self, asked: str) -> Any:
        return lambda status: self.outcomes.append((asked, status))


@pytest.fixture
def basic() -> Basic:
    return Basic()


@pytest.fixture
def make_basic() -> type[Basic]:
    """For managers with options."""
    return Basic


@pytest.fixture
def fixture() -> ManagerFixture:
    return ManagerFixture()
