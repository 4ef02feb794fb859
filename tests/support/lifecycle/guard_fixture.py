"""A guard between a small source and a real manager, in virtual time.

fixture = GuardFixture()
fixture.push("m", 7)
fixture.rest()
fixture.push("m", 8)  # a trial of 8 over 7 is armed
fixture.rest()  # and has begun
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfs_lite.core.event_bus import TimedEvent
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.operations.guard.stage import GuardEffects, GuardStage
from tfs_lite.operations.guard.trial import (
    NO_JUDGEMENT,
    Command,
    Effect,
    Judgement,
    ModelState,
    Running,
    TrialSettings,
    Verb,
)
from tfs_lite.serving.lifecycle_events import LoadParked, StateChanged
from tfs_lite.sources.version_scan import LatestPolicy, VersionPolicy, choose
from tfs_lite.testing.lifecycle.loader import FakeLoader
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

MAX_ROUNDS = 200
BAKE = TrialSettings(bake_seconds=600.0)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a version. ``size``: the bytes of memory that it takes."""

    state: str = "a"
    loads: bool = True
    size: int = 1


class GuardFixture:
    """The disk is ``disk``, changed by ``push`` and ``delete``; a list goes out with ``poll`` only. ``settings`` are
    those of every new version. Without a guard (``guarded`` False) it is the twin that the guard is measured by."""

    def __init__(
        self,
        settings: TrialSettings = BAKE,
        *,
        guarded: bool = True,
        ram: int | None = None,
        saved: Mapping[str, ModelState] | None = None,
        disk: dict[str, dict[int, Files]] | None = None,
        policies: dict[str, VersionPolicy] | None = None,
    ) -> None:
        self.settings, self.ram = settings, ram
        self.server = ManagerFixture(ram=ram, on_parked=self._on_parked, max_num_load_retries=0)
        self.clock = self.server.clock
        self.disk: dict[str, dict[int, Files]] = disk if disk is not None else {}
        self.policies: dict[str, VersionPolicy] = policies if policies is not None else {}
        self.unreadable: set[str] = set()
        self.failed: dict[str, frozenset[int]] = {}
        self.rejected: dict[str, frozenset[int]] = {}
        self.held: set[ServableId] = set()
        self.trials: dict[str, Sequence[Running]] = {}
        self.judgements: dict[ServableId, Judgement] = {}
        self.effects: list[tuple[str, Effect]] = []
        self.saves = 0
        self.lists: dict[str, list[int]] = {}  # of the source
        self.passed: dict[str, list[int]] = {}  # to the manager
        self.violations: list[str] = []
        effects = GuardEffects(
            hold=self._hold,
            set_trials=self.trials.__setitem__,
            judgement=lambda servable_id: self.judgements.get(servable_id, NO_JUDGEMENT),
            wake=lambda: None,
            on_disk=self._on_disk,
            reject=self.rejected.__setitem__,
            report=lambda name, effect: self.effects.append((name, effect)),
            save=self._save,
            hurry=lambda waits: self.server.manager.set_num_load_threads(1 + waits),
        )
        self.stage = GuardStage(effects, self.clock, lambda item: self.settings)
        self.server.bus.subscribe(self._on_event)
        self._emit: AspiredVersionsCallback[str] = self._to_manager
        if guarded:
            self.stage.restore(saved or {})
            self._emit = self.stage.observe(self._to_manager)

    # What people do.

    def push(self, name: str, version: int, files: Files = Files()) -> None:
        self.policies.setdefault(name, LatestPolicy())
        self.disk.setdefault(name, {})[version] = files

    def delete(self, name: str, version: int) -> None:
        self.disk.get(name, {}).pop(version, None)

    def command(self, name: str, verb: Verb, version: int | None = None) -> None:
        self.stage.command(name, Command(verb, version, "ann"))

    def judge(self, name: str, version: int, judgement: Judgement) -> None:
        self.judgements[ServableId(name, version)] = judgement

    # What goes on by itself.

    def poll(self, *names: str) -> None:
        for name in names or sorted(self.disk.keys() | self.lists.keys()):
            if name not in self.unreadable:
                items = self.offer(name)
                self.lists[name] = [item.id.version for item in items]
                self._emit(name, items)

    def offer(self, name: str) -> list[ServableData[str]]:
        """The list of the source, as it is now."""
        if name not in self.policies:
            return []
        failed = self.failed.get(name, frozenset()) | self.rejected.get(name, frozenset())
        chosen = choose(map(str, self.disk.get(name, {})), self.policies[name], failed=failed)
        return [self._item(name, version, version in failed) for version, _ in chosen]

    def tick(self) -> bool:
        return self.stage.tick()

    def rest(self, *, seconds: float = 0.0) -> None:
        """Looks, ticks and tasks until nothing moves, then once more after ``seconds``."""
        for wait in (0.0, seconds) if seconds else (0.0,):
            self.clock.advance(wait)
            before: object = None
            for _ in range(MAX_ROUNDS):
                self.poll()
                self.tick()
                actions = self.server.settle()
                self.tick()
                now = (self._picture(), dict(self.rejected), len(self.effects))
                if now == before and not actions:
                    break
                before = now
            else:
                raise AssertionError(f"no rest: {before}")

    def restart(self, *, saves: bool = True) -> GuardFixture:
        """Another server on the same disk; this one is closed."""
        saved = self.stage.saved() if saves else {}
        self.close()
        return GuardFixture(self.settings, ram=self.ram, saved=saved, disk=self.disk, policies=self.policies)

    def close(self) -> None:
        for executor in (self.server.loads, self.server.unloads):
            while executor.running:
                executor.finish()
        self.server.manager.close()

    # What is seen.

    def answers_with(self, name: str) -> int | None:
        """The version that answers a request without a version."""
        ready = self.server.ready(name)
        free = (version for version in ready if ServableId(name, version) not in self.held)
        return max(free, default=max(ready, default=None))

    def seen(self, kind: type) -> list[Effect]:
        return [effect for _, effect in self.effects if isinstance(effect, kind)]

    # Inside.

    def _picture(self) -> object:
        return {name: (self.server.ready(name), self.passed.get(name), self.stage.state(name)) for name in self.disk}

    def _item(self, name: str, version: int, given_up: bool = False) -> ServableData[str]:
        files = self.disk[name][version]
        return ServableData.ok(ServableId(name, version), f"/models/{name}/{version}", f"{files.state}/c", given_up)

    def _on_disk(self, name: str) -> Mapping[int, ServableData[str]] | None:
        if name in self.unreadable:
            return None
        return {version: self._item(name, version) for version in self.disk.get(name, {})}

    def _to_manager(self, name: str, items: Sequence[ServableData[str]]) -> None:
        self.passed[name] = [item.id.version for item in items]
        self.server.emit(name, [item.with_payload(self._loader(item)) for item in items])

    def _loader(self, item: ServableData[str]) -> Loader:
        files = self.disk.get(item.id.name, {}).get(item.id.version, Files(loads=False))
        loader = FakeLoader(failures=0 if files.loads else -1, estimate=main_ram(files.size if self.ram else 0))
        self.server.loaders.setdefault(item.id, []).append(loader)
        return loader

    def _on_event(self, timed: TimedEvent[ServableState]) -> None:
        state = timed.event
        name, version = state.id.name, state.id.version
        failed = self.failed.get(name, frozenset())
        if state.state is ManagerState.END and not state.health.ok:
            self.failed[name] = failed | {version}
        elif state.state is ManagerState.AVAILABLE:
            self.failed[name] = failed - {version}
        elif state.state is ManagerState.UNLOADING:
            self._check_unload(name, version)
        self.stage.on_event(StateChanged(TimedState(state, timed.time)))

    def _check_unload(self, name: str, version: int) -> None:
        if not self.passed.get(name):
            return
        needed = {trial.old for trial in self.stage.state(name).trials}
        if version in needed & self.disk.get(name, {}).keys():  # whoever deletes a version orders it away
            self.violations.append(f"{name} {version} is withdrawn, and a trial needs it: {self.stage.state(name)}")
        if not any(other != version for other in self.server.ready(name)):
            self.violations.append(f"{name} {version} is withdrawn, and nothing else answers")

    def _on_parked(self, servable_id: ServableId, needs: object) -> None:
        self.stage.on_event(LoadParked(servable_id, needs))  # type: ignore[arg-type]

    def _hold(self, servable_id: ServableId, held: bool) -> None:
        (self.held.add if held else self.held.discard)(servable_id)

    def _save(self) -> None:
        self.saves += 1
