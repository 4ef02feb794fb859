"""The promises of the guard, against whatever order of events hypothesis can think of.

Two servers look at the same disk: one has a guard, the other, its twin, has none. Managers, executors, clock and the
stage are the real ones or public fakes (:class:`tests.support.lifecycle.guard_fixture.GuardFixture`). After each step:

 - what is rejected does not answer requests without a version, as long as anything else is there
 - the old version of a trial is not withdrawn before the trial ends, and nothing that answers goes without another one
 - a list has one version more than the source's at most, two while a third is loaded or has failed, and one
   that is gone back to
 - only an empty list is passed on empty

and at rest: every model that the twin answers for answers; no trial is older than it may be; what was armed has begun
or ended; the source knows what is rejected, and the predictor which trials there are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.lifecycle.guard_fixture import Files, GuardFixture
from tests.support.profiles import CountedMachine, SeededRuns
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError
from tfs_lite.operations.guard.trial import MAX_SECONDS, Judgement, Running, TrialSettings, Verb
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy, VersionPolicy

NAMES = ("a", "b", "c")
SETTINGS = [
    TrialSettings(600),
    TrialSettings(600),
    TrialSettings(60, bake_requests=100),
    TrialSettings(600, tells_only=True),
    TrialSettings(),
]
JUDGEMENTS = [
    Judgement(rule=2, text="it fails"),
    Judgement(rule=1, against=15),
    Judgement(leaning=True, against=3),
    Judgement(against=1),
    Judgement(failed=1),
    Judgement(),
]
POLICIES: list[VersionPolicy] = [
    LatestPolicy(),
    LatestPolicy(),
    LatestPolicy(2),
    AllPolicy(),
    SpecificPolicy((1,)),
    SpecificPolicy((3, 2)),
]


class Then(NamedTuple):
    """What goes on after a step, with every step, on both servers."""

    look: bool = False
    guard: bool = False
    moves: int = 0


NOTHING = Then()
THEN = st.builds(Then, st.booleans(), st.booleans(), st.sampled_from([0, 0, 1, 3, 9]))
VERSIONS = st.one_of(st.none(), st.integers(1, 6))


class Guarded(CountedMachine):
    """One rule for each thing that can happen."""

    ram: int | None = None
    policies: ClassVar[list[VersionPolicy]] = POLICIES

    @initialize(settings=st.sampled_from(SETTINGS), versions=st.sets(st.integers(1, 3), min_size=1))
    def begin(self, settings: TrialSettings, versions: set[int]) -> None:
        self.guarded = GuardFixture(settings, ram=self.ram)
        self.disk = self.guarded.disk
        self.twin = GuardFixture(guarded=False, ram=self.ram, disk=self.disk, policies=self.guarded.policies)
        for name in NAMES[:2]:
            for version in versions:
                self.guarded.push(name, version)
        self._rest()

    def teardown(self) -> None:
        if hasattr(self, "guarded"):
            for server in (self.guarded, self.twin):
                server.close()
                assert not server.server.violations()

    # What people do.

    @rule(
        name=st.sampled_from(NAMES),
        loads=st.sampled_from([True, True, True, False]),
        higher=st.integers(0, 2),
        then=THEN,
    )
    def push(self, name: str, loads: bool, higher: int, then: Then) -> None:
        """A new number, mostly; or one that is there, with other files."""
        version = max(self.disk.get(name, {}), default=0) + min(higher, 1)
        self.guarded.push(name, max(version, 1), Files(f"s{self.steps}", loads))
        self._step(then)

    @rule(name=st.sampled_from(NAMES), version=st.integers(1, 6), loads=st.booleans(), then=THEN)
    def push_any(self, name: str, version: int, loads: bool, then: Then) -> None:
        self.guarded.push(name, version, Files(f"s{self.steps}", loads))
        self._step(then)

    @precondition(lambda self: any(self.disk.values()))
    @rule(index=st.integers(0, 9), then=THEN)
    def delete(self, index: int, then: Then) -> None:
        there = [(name, version) for name, versions in sorted(self.disk.items()) for version in sorted(versions)]
        self.guarded.delete(*there[index % len(there)])
        self._step(then)

    @rule(name=st.sampled_from(NAMES), then=THEN)
    def push_what_is_taken_back(self, name: str, then: Then) -> None:
        version = max(self.disk.get(name, {}), default=0) + 1
        self.guarded.push(name, version, Files(f"s{self.steps}"))
        self.guarded.judge(name, version, JUDGEMENTS[0])
        for server in (self.guarded, self.twin):
            server.poll(name)
            for _ in range(6):
                self._move(server)
        self._step(then)

    @rule(name=st.sampled_from(NAMES), then=THEN)
    def delete_all_but_the_newest(self, name: str, then: Then) -> None:
        for version in sorted(self.disk.get(name, {}))[:-1]:
            self.guarded.delete(name, version)
        self._step(then)

    @rule(name=st.sampled_from(NAMES), data=st.data(), then=THEN)
    def reload_config(self, name: str, data: st.DataObject, then: Then) -> None:
        policy: VersionPolicy | None = data.draw(st.sampled_from([*self.policies * 2, None]))
        self.guarded.policies.pop(name, None)
        if policy is not None:
            self.guarded.policies[name] = policy
        self._step(then)

    @rule(name=st.sampled_from(NAMES), readable=st.sampled_from([True, True, False]), then=THEN)
    def change_base_path(self, name: str, readable: bool, then: Then) -> None:
        for server in (self.guarded, self.twin):
            (server.unreadable.discard if readable else server.unreadable.add)(name)
        self._step(then)

    @rule(name=st.sampled_from(NAMES), verb=st.sampled_from(Verb), version=VERSIONS, then=THEN)
    def order(self, name: str, verb: Verb, version: int | None, then: Then) -> None:
        with contextlib.suppress(ServingError):
            self.guarded.command(name, verb, version)
        self._step(then)

    # What goes on by itself.

    @rule(judgement=st.sampled_from(JUDGEMENTS), answers=st.sampled_from([0, 100]), index=st.integers(0, 5), then=THEN)
    def judge(self, judgement: Judgement, answers: int, index: int, then: Then) -> None:
        trials = list(self._trials())
        if trials:
            name, trial = trials[index % len(trials)]
            self.guarded.judge(name, trial.new, replace(judgement, answered=answers))
        self._step(then)

    @rule(seconds=st.sampled_from([1, 20, 130, 620, 3600, MAX_SECONDS]), then=THEN)
    def let_time_pass(self, seconds: float, then: Then) -> None:
        for server in (self.guarded, self.twin):
            server.clock.advance(seconds)
        self._step(then)

    @rule(name=st.sampled_from(NAMES), then=THEN)
    def look(self, name: str, then: Then) -> None:
        for server in (self.guarded, self.twin):
            server.poll(name)
        self._step(then)

    @rule(then=THEN)
    def tick_the_guard(self, then: Then) -> None:
        self.guarded.tick()
        self._step(then)

    @rule(times=st.integers(1, 3), then=THEN)
    def tick(self, times: int, then: Then) -> None:
        for _ in range(times):
            self.guarded.server.tick()
            self.twin.server.tick()
        self._step(then)

    @rule(loads=st.booleans(), work=st.booleans(), then=THEN)
    def run(self, loads: bool, work: bool, then: Then) -> None:
        for server in (self.guarded, self.twin):
            executor = server.server.loads if loads else server.server.unloads
            if executor.can_start:
                if executor.start() and work:
                    executor.work(0)
            elif executor.running:
                executor.finish(0)
        self._step(then)

    @rule(now=st.sampled_from([True, False, False, False]), saves=st.sampled_from([True, True, False]), then=THEN)
    def restart(self, now: bool, saves: bool, then: Then) -> None:
        if now:
            assert not self.guarded.violations
            self.guarded, self.twin = self.guarded.restart(saves=saves), self._other_twin()
        self._step(then)

    @rule(now=st.sampled_from([True, False]), judgement=st.sampled_from([None, *JUDGEMENTS[2:]]))
    def rest(self, now: bool, judgement: Judgement | None) -> None:
        """With a judgement: every trial has it for as long as any trial may last."""
        if now and judgement is not None:
            for name, trial in self._trials():
                self.guarded.judge(name, trial.new, judgement)
            for server in (self.guarded, self.twin):
                server.rest(seconds=MAX_SECONDS)
        if now:
            self._rest()
        self._step()

    def _other_twin(self) -> GuardFixture:
        self.twin.close()
        return GuardFixture(guarded=False, ram=self.ram, disk=self.disk, policies=self.guarded.policies)

    def _rest(self) -> None:
        for server in (self.guarded, self.twin):
            for executor in (server.server.loads, server.server.unloads):
                while executor.running:
                    executor.finish()
            server.rest(seconds=1)
        self._check()
        self._check_rest()

    # The promises.

    def _step(self, then: Then = NOTHING) -> None:
        self.count_step()
        self._check()
        for server in (self.guarded, self.twin):
            if then.look:
                server.poll()
            for _ in range(then.moves):
                self._move(server)
        if then.guard:
            self.guarded.tick()
        self._check()

    def _move(self, server: GuardFixture) -> None:
        server.server.tick()
        for executor in (server.server.unloads, server.server.loads):
            if executor.can_start:
                executor.start()
            elif executor.running:
                executor.finish(0)

    def _trials(self) -> Iterator[tuple[str, Running]]:
        for name in NAMES:
            yield from ((name, trial) for trial in self.guarded.stage.state(name).trials)

    def _check(self) -> None:
        guarded = self.guarded
        assert not guarded.violations, guarded.violations
        for name, passed in guarded.passed.items():
            state, listed = guarded.stage.state(name), guarded.lists[name]
            rejected = guarded.stage.rejected(name)
            others = [version for version in guarded.server.ready(name) if version not in rejected]
            answers = guarded.answers_with(name)
            assert answers not in rejected or not others, (
                f"{name}: {answers} answers and is rejected, {others} are there"
            )
            pushed_out = state.running is not None and state.running.new not in listed
            more = max(min(len(state.trials), 2), 2 * pushed_out) + (state.going_back is not None)
            assert len(passed) <= len(listed) + more, f"{name}: {passed} of {listed}: {state}"
            assert bool(passed) == bool(listed), f"{name}: {passed} of {listed}: {state}"
            assert list(guarded.trials.get(name, ())) == list(state.trials)

    def _check_rest(self) -> None:
        guarded, now = self.guarded, self.guarded.clock.monotonic()
        for name in NAMES:
            state = guarded.stage.state(name)
            assert guarded.rejected.get(name, frozenset()) == state.rejected.keys()
            assert guarded.answers_with(name) not in state.rejected, f"{name}: {state}"
            running = state.running
            if running is not None:
                since = now - running.since
                assert since < max(3600, MAX_SECONDS), f"{name}: {running} for {since} s"
            waits = {trial.new for trial in state.armed.values() if running is None or trial.new > running.new}
            assert not waits, f"{name}: {waits} do not begin: {state}, {guarded.server.ready(name)}"
            if name not in guarded.unreadable:
                assert state.going_back is None, f"{name}: {state}"
        if self.ram is not None and any(
            guarded.judgements.get(ServableId(name, trial.new), JUDGEMENTS[-1]).leaning
            for name, trial in self._trials()
        ):
            return  # the old version of these stays, whoever needs its memory
        for name in NAMES:
            twin = self.twin.server.ready(name)
            assert guarded.answers_with(name) is not None or not twin, (
                f"{name}: nothing answers, without a guard {twin} do: {guarded.stage.state(name)},"
                f" {guarded.lists.get(name)} -> {guarded.passed.get(name)}"
            )


class Roomy(Guarded):
    pass


class Short(Guarded):
    """Three models that just fit, one of them twice."""

    ram = 4
    policies: ClassVar[list[VersionPolicy]] = [LatestPolicy()]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("machine", [Roomy, Short])
def test_a_guard_never_makes_a_model_less_available(
    machine: type[Guarded], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite"), "propagate", False)
    command = f"tests/simulation/test_guard.py -k {machine.__name__}"
    runs = SeededRuns(machine, command, runs=10, steps=60, batches=(2, 60), min_steps=(500, 25_000))
    runs.check(request.config.getoption("--hypothesis-seed"))
