"""Versions that change while they serve, against whatever order of events hypothesis can think of.

Disk in memory, source, follower, manager, executors and clock are the real ones or public fakes. Every state of a
version has a serial number that only grows. The promises, after each step:

 - what answers was loaded from one state, complete when it was read, and is alive while a request holds it
 - the answers of a version never go back to an older state of the same base path
 - with the availability policy a version that has answered answers as long as its directory is there

and at rest: what answers is what lies on the disk, if that is complete and can be loaded; else something older answers,
and somebody says why.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.support.lifecycle.simulated_models import Arrival, Flaw, ModelStore, Recipe
from tests.support.profiles import CountedMachine, SeededRuns
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.manifest import state_of
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.source import UnarySourceAdapter, connect
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.retrier import RetryPolicy
from tfs_lite.serving.version_follower import FollowerEffects, FollowerOptions, LoadedAs, VersionFollower
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig, SourceReport
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.loader import FakeLoader
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

BASES = ("/models/a", "/models/b")
QUIET, INTERVAL = 1.0, 10.0
SETTINGS = ModelSettings()
FLAWS = st.sampled_from([Flaw.NONE, Flaw.NONE, Flaw.NONE, Flaw.DAMAGED])


class _Loader(FakeLoader):
    """Reads the recipe at its path; its serial number is ``ram``."""

    def __init__(self, fixture: _Fixture, path: str) -> None:
        super().__init__()
        self._fixture, self._path = fixture, path

    def load(self, servable_id: ServableId) -> None:
        recipe = self._fixture.store.read(self._path)
        if recipe.flaw is not Flaw.NONE:
            raise ServingError(StatusCode.DATA_LOSS, "damaged")
        super().load(servable_id)
        self._fixture.loaded[self._servable] = (recipe.ram, self._fixture.state_of(self._path))


class _Fixture(ManagerFixture):
    def __init__(self, policy: str) -> None:
        super().__init__(
            policy, max_num_load_retries=1, load_retry_interval=INTERVAL, should_retry_model_load=_is_retryable
        )
        self.policy = policy
        self.store = ModelStore(self.clock)
        self.loaded: dict[Any, tuple[int, str]] = {}  # of a servable: the serial number and the state
        self.remarks: dict[ServableId, Status] = {}
        self.report = SourceReport("m")
        self.base = BASES[0]
        self.source = FileSystemStoragePathSource(
            self._config(), self.store.disk, self.clock, self._on_report, executor=ManualExecutor(0)
        )
        effects = FollowerEffects(
            read=lambda directory, name: SETTINGS,
            loaded_as=lambda servable: LoadedAs(SETTINGS, self.loaded[servable][1]),
            state_of=lambda directory, settings: self._state(directory),
            check=lambda directory, settings: None,
            make_loader=self._make_loader,
            resize=lambda servable_id, settings: None,
            remark=self._remark,
            wake_source=self._wake_source,
            on_replaced=lambda item, old: None,
            on_given_up=lambda servable_id: None,
        )
        options = FollowerOptions(QUIET, policy == "availability", RetryPolicy(1, INTERVAL), _is_retryable)
        self.follower = VersionFollower(options, self.manager, effects, self.clock)
        self.monitor.subscribe(lambda timed: self.follower.on_event(timed.state))
        adapter = UnarySourceAdapter[str, Any](self._make_loader)
        connect(adapter, self.manager)
        self._observed = self.follower.observe(adapter.aspired_versions_callback())
        self._offered: list[tuple[ServableId, str]] | None = None
        self.source.set_aspired_versions_callback(self._offer)

    def state_of(self, path: str) -> str:
        return state_of(path, self.store.disk.stat_tree(path).version.fingerprint)

    def move(self, base: str) -> None:
        self.base = base
        self.source.update_config(self._config())

    def poll(self) -> None:
        self.source.poll()
        self.follower.poll()

    def come_to_rest(self) -> None:
        for executor in (self.loads, self.unloads):
            while executor.running:
                executor.finish()
        for _ in range(8):
            self.clock.advance(QUIET + 0.5)
            self.poll()
            self.settle()
            self.clock.advance(INTERVAL)
            self.settle()

    def _config(self) -> SourceConfig:
        return SourceConfig((ServableToMonitor("m", self.base),), poll_interval=None, quiet_period=QUIET)

    def _offer(self, name: str, versions: Sequence[ServableData[str]]) -> None:
        """A poll of the server passes a list on if it differs from the last one: what a list changes comes once."""
        offered = [(item.id, item.revision) for item in versions]
        if offered != self._offered:
            self._offered = offered
            self._observed(name, versions)

    def _wake_source(self) -> None:
        self._offered = None

    def _on_report(self, report: SourceReport) -> None:
        self.report = report

    def _remark(self, servable_id: ServableId, status: Status | None) -> None:
        self.remarks.pop(servable_id, None)
        if status is not None:
            self.remarks[servable_id] = status

    def _state(self, path: str) -> str:
        try:
            return self.state_of(path)
        except OSError:
            raise ServingError(StatusCode.NOT_FOUND, "its directory is gone") from None

    def _make_loader(self, item: ServableData[str]) -> _Loader:
        loader = _Loader(self, item.payload)
        self.loaders.setdefault(item.id, []).append(loader)
        return loader


def _is_retryable(status: Status) -> bool:
    return status.code is not StatusCode.DATA_LOSS


class ChangedVersions(CountedMachine):
    """One model with version 1 at one of two base paths, both always there."""

    policy = "availability"

    @initialize(arrival=st.sampled_from([Arrival.RENAMED, Arrival.PUBLISHED]))
    def begin(self, arrival: Arrival) -> None:
        self.fixture = _Fixture(self.policy)
        self.serial = 0
        self.homes: dict[int, str] = {}  # the base path of each serial number
        self.newest: dict[str, int] = {}  # the highest serial number of each base path that has answered
        self.handles: list[tuple[ServableHandle, int]] = []
        for base in reversed(BASES):
            self._push(base, arrival, Flaw.NONE)
        self.fixture.come_to_rest()
        self._check()

    def teardown(self) -> None:
        if hasattr(self, "fixture"):
            for handle, _ in self.handles:
                handle.release()
            self.fixture.source.close()
            self.fixture.manager.close()
            assert not self.fixture.violations()

    # What people do.

    @rule(base=st.sampled_from(BASES), arrival=st.sampled_from(Arrival), flaw=FLAWS)
    def push(self, base: str, arrival: Arrival, flaw: Flaw) -> None:
        """The whole directory again, between two looks."""
        self._push(base, arrival, flaw)
        self._step()

    @rule(base=st.sampled_from(BASES), flaw=FLAWS)
    def overwrite(self, base: str, flaw: Flaw) -> None:
        self.fixture.store.overwrite(base, 1, self._recipe(flaw, base))
        self._step()

    @rule(base=st.sampled_from(BASES))
    def finish(self, base: str) -> None:
        """The rest of a copy, or a file again as it was."""
        self.fixture.store.finish(base, 1)
        self._step()

    @rule(base=st.sampled_from(BASES))
    def move(self, base: str) -> None:
        self.fixture.move(base)
        self._step()

    # What goes on by itself.

    @rule(seconds=st.sampled_from([0.1, QUIET, QUIET, INTERVAL]))
    def let_time_pass(self, seconds: float) -> None:
        self.fixture.clock.advance(seconds)
        self._step()

    @rule()
    def look(self) -> None:
        self.fixture.source.poll()
        self._step()

    @rule()
    def follow(self) -> None:
        self.fixture.follower.poll()
        self._step()

    @rule(times=st.integers(1, 3))
    def tick(self, times: int) -> None:
        for _ in range(times):
            self.fixture.manager.tick()
        self._step()

    @rule(loads=st.booleans(), work=st.booleans())
    def run(self, loads: bool, work: bool) -> None:
        executor = self.fixture.loads if loads else self.fixture.unloads
        if executor.can_start:
            if executor.start() and work:
                executor.work(0)
        elif executor.running:
            executor.finish(0)
        self._step()

    @rule(begins=st.booleans())
    def ask(self, begins: bool) -> None:
        if begins:
            handle = self._handle()
            if handle is not None:
                self.handles.append((handle, self.fixture.loaded[handle.servable][0]))
        elif self.handles:
            self.handles.pop(0)[0].release()
        self._step()

    @rule(now=st.sampled_from([True, False, False]))
    def rest(self, now: bool) -> None:
        if now:
            while self.handles:
                self.handles.pop()[0].release()
            self.fixture.come_to_rest()
            self._check_rest()
        self._step()

    # The promises.

    def _step(self) -> None:
        self.count_step()
        self._check()

    def _check(self) -> None:
        for handle, serial in self.handles:
            assert handle.servable.alive
            assert self.fixture.loaded[handle.servable][0] == serial
        handle = self._handle()
        if handle is None:
            assert self.policy != "availability", "nothing answers"
            return
        with handle:
            serial = self.fixture.loaded[handle.servable][0]
        home = self.homes[serial]
        assert serial >= self.newest.get(home, 0), f"{serial} answers after {self.newest[home]}"
        self.newest[home] = serial

    def _check_rest(self) -> None:
        stored = self.fixture.store.bases[self.fixture.base][1]
        handle, one = self._handle(), ServableId("m", 1)
        serial = None
        if handle is not None:
            with handle:
                serial = self.fixture.loaded[handle.servable][0]
        if stored.whole and stored.recipe.flaw is Flaw.NONE:
            assert serial == stored.recipe.ram, f"{serial} answers, {stored.recipe.ram} lies there"
            assert one not in self.fixture.remarks
            assert not self.fixture.report.changing
            return
        said = one in self.fixture.remarks or 1 in self.fixture.report.changing
        failed = self.fixture.state("m", 1) is HarnessState.ERROR
        assert said or failed, f"{serial} answers, and nobody says why"

    def _handle(self) -> ServableHandle | None:
        try:
            return self.fixture.manager.get_servable_handle(ModelRef("m"))
        except ServingError:
            return None

    def _push(self, base: str, arrival: Arrival, flaw: Flaw) -> None:
        self.fixture.store.push(base, 1, self._recipe(flaw, base), arrival)

    def _recipe(self, flaw: Flaw, base: str) -> Recipe:
        self.serial += 1
        self.homes[self.serial] = base
        return Recipe(ram=self.serial, flaw=flaw)


class KeepsAnswering(ChangedVersions):
    pass


class UnloadsFirst(ChangedVersions):
    policy = "resource"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("machine", [KeepsAnswering, UnloadsFirst])
def test_what_answers_is_what_lies_on_the_disk(
    machine: type[ChangedVersions], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite"), "propagate", False)
    command = f"tests/simulation/test_changed_versions.py -k {machine.__name__}"
    runs = SeededRuns(machine, command, runs=10, steps=200, batches=(3, 60), min_steps=(1_500, 40_000))
    runs.check(request.config.getoption("--hypothesis-seed"))
