"""Every promise of the lifecycle with a guard between the sources and the manager.

The same simulation and the same rules as in ``test_lifecycle``, and orders, verdicts and bakes beside them. The source
does not hear of what is rejected, so the guard's own stand-ins come in its place.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.simulation.test_lifecycle import NAMES, THEN, Lifecycle, Then
from tests.support.lifecycle.simulation import Simulation
from tests.support.profiles import SeededRuns
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback, SourceRouter
from tfs_lite.core.state import ServableState, TimedState
from tfs_lite.core.status import ServingError
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager
from tfs_lite.managers.policies import Action
from tfs_lite.operations.guard.stage import GuardEffects, GuardStage
from tfs_lite.operations.guard.trial import NO_JUDGEMENT, Command, Judgement, TrialSettings, Verb
from tfs_lite.serving.lifecycle_events import StateChanged

JUDGEMENTS = [Judgement(rule=1), Judgement(rule=2), Judgement(leaning=True, against=3), NO_JUDGEMENT]
VERSIONS = st.one_of(st.none(), st.integers(1, 4))


class GuardedSimulation(Simulation):
    """The guard ticks with the manager."""

    stage: GuardStage
    judgements: dict[ServableId, Judgement]

    def judge(self, name: str, judgement: Judgement) -> None:
        for trial in self.stage.state(name).trials:
            self.judgements[ServableId(name, trial.new)] = judgement

    def order(self, name: str, command: Command) -> None:
        with self._step(self.checker.stage), contextlib.suppress(ServingError):
            self.stage.command(name, command)

    def _make_manager(self, bus: EventBus[ServableState]) -> AspiredVersionsManager:
        self.judgements = {}
        effects = GuardEffects(
            hold=ignore,
            set_trials=ignore,
            judgement=lambda servable_id: self.judgements.get(servable_id, NO_JUDGEMENT),
            wake=ignore,
            on_disk=self._on_disk,
            reject=ignore,
            report=ignore,
            save=ignore,
            hurry=ignore,
        )
        self.stage = GuardStage(effects, self.clock, lambda item: TrialSettings(60))
        bus.subscribe(lambda timed: self.stage.on_event(StateChanged(TimedState(timed.event, timed.time))))
        return super()._make_manager(bus)

    def _connect(self) -> SourceRouter[int, StoragePath]:
        """The base class notes what the source has emitted; with a guard, what that passes on is what must come."""
        router = super()._connect()
        source, raw = self._source, dict[str, Sequence[ServableData[StoragePath]]]()
        to_router = router.aspired_versions_callback()

        def from_guard(name: str, versions: Sequence[ServableData[StoragePath]]) -> None:
            before = dict(self._emitted)
            self._emitted[name] = versions
            to_router(name, versions)
            self._emitted.clear()
            self._emitted.update(before)

        guarded: AspiredVersionsCallback[StoragePath] = self.stage.observe(from_guard)

        def from_source(name: str, versions: Sequence[ServableData[StoragePath]]) -> None:
            guarded(name, versions)
            self._emitted[name] = raw[name] = versions

        source.set_aspired_versions_callback(from_source)
        self._raw = raw
        return router

    def _on_disk(self, name: str) -> Mapping[int, ServableData[StoragePath]] | None:
        servable = self.source_checker.config.by_name.get(name)
        if servable is None or not self.store.is_listable(servable.base_path):
            return None
        base = servable.base_path
        return {
            version: ServableData.ok(ServableId(name, version), f"{base}/{version}", f"{known.changed}/")
            for version, known in self.store.bases[base].items()
            if known.whole
        }

    def _tick(self) -> Action | None:
        self.stage.tick()
        return super()._tick()


class GuardedLifecycle(Lifecycle):
    made = GuardedSimulation

    @rule(name=st.sampled_from(NAMES), judgement=st.sampled_from(JUDGEMENTS), then=THEN)
    def judge(self, name: str, judgement: Judgement, then: Then) -> None:
        assert isinstance(self.simulation, GuardedSimulation)
        self.simulation.judge(name, judgement)
        self._go_on(then)

    @rule(name=st.sampled_from(NAMES), verb=st.sampled_from(Verb), version=VERSIONS, then=THEN)
    def order(self, name: str, verb: Verb, version: int | None, then: Then) -> None:
        assert isinstance(self.simulation, GuardedSimulation)
        self.simulation.order(name, Command(verb, version))
        self._go_on(then)

    @rule(then=THEN)
    def let_a_bake_pass(self, then: Then) -> None:
        self.simulation.advance(90)
        self._go_on(then)


@pytest.mark.timeout(1200)
def test_every_promise_of_the_lifecycle_holds_with_a_guard(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite"), "propagate", False)
    command = "tests/simulation/test_guard_lifecycle.py"
    runs = SeededRuns(GuardedLifecycle, command, runs=10, steps=60, batches=(1, 30), min_steps=(300, 15_000))
    runs.check(request.config.getoption("--hypothesis-seed"))
