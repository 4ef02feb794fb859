"""Real threads: versions swap while many take and release handles.

What must hold at every instant is checked by the parties themselves: users see that what they hold is alive, loaders
watch their contract, a subscriber checks the order of events.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import ServingError
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

SUCCESSORS = {
    None: {ManagerState.START, ManagerState.END},
    ManagerState.START: {ManagerState.LOADING, ManagerState.END},
    ManagerState.LOADING: {ManagerState.AVAILABLE, ManagerState.END},
    ManagerState.AVAILABLE: {ManagerState.UNLOADING},
    ManagerState.UNLOADING: {ManagerState.END},
    ManagerState.END: {ManagerState.START},
}


@pytest.fixture(autouse=True)
def threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Watch:
    """Collects whatever went wrong."""

    def __init__(self, fixture: ManagerFixture) -> None:
        self.fixture = fixture
        self.problems: list[str] = []
        self._last: dict[ServableId, ManagerState] = {}
        fixture.bus.subscribe(self._on_event)

    def _on_event(self, timed: Any) -> None:
        event = timed.event
        last = self._last.get(event.id)
        if event.state not in SUCCESSORS[last]:
            self.problems.append(f"{event.id}: {event.state} after {last}")
        self._last[event.id] = event.state
        if event.state in (ManagerState.AVAILABLE, ManagerState.UNLOADING):
            try:
                self.fixture.manager.get_servable_handle(ModelRef(event.id.name, event.id.version)).release()
            except ServingError:
                self.problems.append(f"{event.id} is not obtainable at {event.state}")


class Users:
    """Threads that use the latest version until told to stop."""

    def __init__(self, fixture: ManagerFixture, watch: Watch, threads: int, must_succeed: bool) -> None:
        self._world, self._watch, self._must_succeed = fixture, watch, must_succeed
        self._stop = threading.Event()
        self.served: set[int] = set()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(threads)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            try:
                handle = self._world.manager.get_servable_handle(ModelRef("m"))
            except ServingError as error:
                if self._must_succeed:
                    self._watch.problems.append(f"lookup failed: {error}")
                continue
            with handle:
                servable = handle.servable
                for _ in range(chance.randrange(20)):
                    if not servable.alive:
                        self._watch.problems.append(f"{handle.id} was unloaded under a handle")
                self.served.add(handle.id.version)


@pytest.fixture
def make_threaded() -> Iterator[Callable[..., ManagerFixture]]:
    """Makes worlds with real time and real threads."""
    clock = SystemClock()

    def make(policy: str = "availability", **options: Any) -> ManagerFixture:
        settings = {
            "clock": clock,
            "load_executor": PoolExecutor("load", 2),
            "unload_executor": PoolExecutor("unload", 2),
            "tick_interval": 0.05,
            "load_retry_interval": 0.001,
        }
        fixture = ManagerFixture(policy, **(settings | options))
        fixture.manager.start()
        return fixture

    yield make
    clock.close()


def wait_for(fixture: ManagerFixture, goal: ManagerState, *versions: int) -> None:
    fixture.wait_for(goal, *(ServableId("m", version) for version in versions))


def finish(fixture: ManagerFixture, watch: Watch) -> None:
    fixture.manager.close(30)
    assert fixture.manager.list_available_servable_ids() == []
    for loaders in fixture.loaders.values():
        for loader in loaders:
            assert loader.unloads <= 1
            assert loader.servable is None
    assert watch.problems == []
    assert fixture.violations() == []


def test_no_lookup_fails_and_nothing_is_unloaded_in_use_while_versions_swap(make_threaded) -> None:
    fixture = make_threaded()
    watch = Watch(fixture)
    fixture.aspire("m", 1)
    wait_for(fixture, ManagerState.AVAILABLE, 1)
    users = Users(fixture, watch, threads=6, must_succeed=True)
    for version in range(2, 60):
        fixture.aspire("m", version)
        wait_for(fixture, ManagerState.AVAILABLE, version)
    wait_for(fixture, ManagerState.END, *range(30, 59))
    users.stop()
    assert max(users.served) >= 50
    finish(fixture, watch)


def test_every_third_version_broken_changes_nothing_for_users(make_threaded) -> None:
    fixture = make_threaded(max_num_load_retries=1)
    watch = Watch(fixture)
    fixture.aspire("m", 1)
    wait_for(fixture, ManagerState.AVAILABLE, 1)
    users = Users(fixture, watch, threads=4, must_succeed=True)
    for version in range(2, 40):
        broken = version % 3 == 0
        fixture.loading[ServableId("m", version)] = {"failures": -1 if broken else version % 2}
        fixture.aspire("m", version)
        wait_for(fixture, ManagerState.END if broken else ManagerState.AVAILABLE, version)
    users.stop()
    assert not {version for version in users.served if version % 3 == 0}
    finish(fixture, watch)


@pytest.mark.parametrize("policy", ["availability", "resource"])
@pytest.mark.parametrize("seed", range(3))
def test_random_lists_from_many_threads(make_threaded, policy: str, seed: int) -> None:
    fixture = make_threaded(policy, ram=100)
    watch = Watch(fixture)
    lock = threading.Lock()  # guards fixture.loaders
    chance = random.Random(seed)
    for version in range(8):
        size = chance.choice([10, 40, 60, 101])
        fixture.loading[ServableId("m", version)] = {
            "failures": chance.choice([0, 0, 1, -1]),
            "estimate": main_ram(size),
            "estimate_after_load": main_ram(size // 2),
        }
    users = Users(fixture, watch, threads=2, must_succeed=False)

    def emit_lists(own: random.Random) -> None:
        for _ in range(150):
            versions = own.sample(range(8), own.randrange(4))
            with lock:
                data = [fixture.data("m", version, str(own.randrange(3))) for version in versions]
            fixture.emit("m", data)
            fixture.manager.set_num_load_threads(own.randrange(4))
            fixture.manager.get_managed_servable_state_snapshots()

    in_threads(emit_lists, [random.Random(f"{seed}/{index}") for index in range(3)])
    users.stop()
    fixture.manager.set_num_load_threads(2)
    fixture.loading[ServableId("m", 9)] = {}
    fixture.aspire("m", 9)
    wait_for(fixture, ManagerState.AVAILABLE, 9)
    finish(fixture, watch)


def test_close_in_the_middle_of_everything(make_threaded) -> None:
    for seed in range(10):
        fixture = make_threaded()
        watch = Watch(fixture)
        users = Users(fixture, watch, threads=2, must_succeed=False)
        chance = random.Random(seed)
        for version in range(chance.randrange(1, 6)):
            fixture.aspire("m", version, version + 1)
            if chance.random() < 0.5:
                wait_for(fixture, ManagerState.AVAILABLE, version + 1)
        fixture.manager.close(30)  # with users inside
        users.stop()
        finish(fixture, watch)
        assert {state.state for state in last_states(fixture)} <= {ManagerState.END}


def last_states(fixture: ManagerFixture) -> list[Any]:
    return [
        timed.state for versions in fixture.monitor.get_all_servable_states().values() for timed in versions.values()
    ]


def in_threads(call: Callable[[Any], None], arguments: list[Any]) -> None:
    threads = [threading.Thread(target=call, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
