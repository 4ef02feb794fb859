"""The ten promises of the lifecycle, against whatever order of events hypothesis can think of.

Disk, source, router, adapters, manager, executors, clock and bus are the real ones or public fakes, put together by
:class:`tfs_lite.testing.simulation.Simulation`, which checks all promises after every step. Nothing sleeps, nothing
has a thread: a run is its seed. Each run takes a new seed and prints it; a failing run also prints the shortest story
that fails. To see a run again:

    python -m pytest tests/simulation --hypothesis-seed=N

A failure is kept in ``.hypothesis`` and tried first the next time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tfs_lite.core.servable import ServableRequest
from tfs_lite.sources.source_config import ServableToMonitor
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy
from tfs_lite.testing.executor import ManualExecutor
from tfs_lite.testing.simulated_models import BASES, Arrival, Flaw, Recipe
from tfs_lite.testing.simulation import RETRY_INTERVAL, UNROUTED, Simulation, SimulationOptions

EXAMPLES, STEPS = 130, 100
"""Of each machine."""
MIN_STEPS = 10_000
"""Of each machine; there are two."""

NAMES = ("a", "b", "c")
VERSIONS = st.integers(1, 4)
INDICES = st.integers(0, 5)

RECIPES = st.builds(
    Recipe,
    ram=st.sampled_from([1, 1, 2, 4, 7, 9]),
    gpu=st.sampled_from([0, 0, 1, 3]),
    shrinks=st.booleans(),
    load_failures=st.sampled_from([0, 0, 0, 1, 2, 3]),
    estimate_failures=st.sampled_from([0, 0, 0, 1, 3]),
    flaw=st.sampled_from([Flaw.NONE] * 8 + list(Flaw)),
)
HEALTHY = Recipe()
POLICIES = st.sampled_from(
    [
        LatestPolicy(),
        LatestPolicy(2),
        AllPolicy(),
        SpecificPolicy((1,)),
        SpecificPolicy((3, 2)),
        SpecificPolicy(()),
    ]
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, tuple[ServableToMonitor, int]]:
    """Any of the streams, mostly at home, now and then somewhere else or without a platform."""
    found = {}
    for index, name in enumerate(NAMES):
        if draw(st.sampled_from([True, True, True, False])):
            base = draw(st.sampled_from([BASES[index]] * 4 + list(BASES)))
            port = draw(st.sampled_from([0, 0, 0, 1, UNROUTED]))
            found[name] = (ServableToMonitor(name, base, draw(POLICIES)), port)
    return found


class Lifecycle(RuleBasedStateMachine):
    """One rule per thing that can happen to a server."""

    policy = "availability"
    steps = 0
    simulation: Simulation

    @initialize(quiet=st.sampled_from([0.0, 0.0, 2.0]), retry=st.sampled_from([RETRY_INTERVAL, 0.0]), again=st.booleans())
    def begin(self, quiet: float, retry: float, again: bool) -> None:
        options = SimulationOptions(self.policy, quiet, retry, reload_errors=again)
        servables = {name: (ServableToMonitor(name, BASES[i], LatestPolicy()), 0) for i, name in enumerate(NAMES[:2])}
        self.simulation = Simulation(options, servables)
        self.store = self.simulation.store

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.close()

    # The disk.

    @rule(base=st.sampled_from(BASES), version=VERSIONS, recipe=RECIPES, arrival=st.sampled_from(Arrival))
    def push(self, base: str, version: int, recipe: Recipe, arrival: Arrival) -> None:
        self._step()
        self.store.push(base, version, recipe, arrival)

    @rule(index=INDICES, version=VERSIONS)
    def push_a_healthy_version(self, index: int, version: int) -> None:
        self._step()
        self.store.push(BASES[index % 2], version, HEALTHY, Arrival.RENAMED)

    @precondition(lambda self: self._versions())
    @rule(index=INDICES)
    def finish_copying(self, index: int) -> None:
        self._step()
        self.store.finish(*self._pick(self._versions(), index))

    @precondition(lambda self: self._versions())
    @rule(index=INDICES, recipe=st.one_of(RECIPES, st.just(HEALTHY)))
    def overwrite_in_place(self, index: int, recipe: Recipe) -> None:
        self._step()
        self.store.overwrite(*self._pick(self._versions(), index), recipe)

    @precondition(lambda self: self._versions())
    @rule(index=INDICES)
    def delete_version(self, index: int) -> None:
        self._step()
        self.store.delete(*self._pick(self._versions(), index))

    @precondition(lambda self: self.store.bases)
    @rule(index=INDICES)
    def remove_base_path(self, index: int) -> None:
        self._step()
        self.store.remove_base(self._pick(sorted(self.store.bases), index))

    @rule(base=st.sampled_from(BASES))
    def make_base_path(self, base: str) -> None:
        self._step()
        self.store.make_base(base)

    @precondition(lambda self: self.store.bases)
    @rule(index=INDICES)
    def empty_base_path(self, index: int) -> None:
        self._step()
        base = self._pick(sorted(self.store.bases), index)
        for version in list(self.store.bases[base]):
            self.store.delete(base, version)

    @rule(base=st.sampled_from(BASES), denied=st.booleans())
    def lock_or_unlock_base_path(self, base: str, denied: bool) -> None:
        self._step()
        (self.store.deny if denied else self.store.allow)(base)

    # The source and the config.

    @rule()
    def poll(self) -> None:
        self._step()
        self.simulation.poll()

    @rule(servables=configs(), strict=st.sampled_from([False, False, False, True]))
    def reload_config(self, servables: dict[str, tuple[ServableToMonitor, int]], strict: bool) -> None:
        self._step()
        self.simulation.reload(servables, strict)

    # The manager.

    @rule()
    def tick(self) -> None:
        self._step()
        self.simulation.tick()

    @rule()
    def run(self) -> None:
        self._step()
        self.simulation.run()

    @rule(seconds=st.sampled_from([0.5, 2.5, RETRY_INTERVAL]))
    def let_time_pass(self, seconds: float) -> None:
        self._step()
        self.simulation.advance(seconds)

    @rule(num_threads=st.integers(0, 3))
    def resize_load_executor(self, num_threads: int) -> None:
        self._step()
        self.simulation.resize_loads(num_threads)

    @precondition(lambda self: self.simulation.loads.can_start)
    @rule()
    def start_load(self) -> None:
        self._step()
        self.simulation.start(self.simulation.loads)

    @precondition(lambda self: self._unworked(self.simulation.loads))
    @rule(index=INDICES)
    def work_at_load(self, index: int) -> None:
        self._step()
        self.simulation.work(self.simulation.loads, self._pick(self._unworked(self.simulation.loads), index))

    @precondition(lambda self: self.simulation.loads.running)
    @rule(index=INDICES)
    def finish_load(self, index: int) -> None:
        self._step()
        self.simulation.finish(self.simulation.loads, index % len(self.simulation.loads.running))

    @precondition(lambda self: self.simulation.unloads.can_start)
    @rule()
    def start_unload(self) -> None:
        self._step()
        self.simulation.start(self.simulation.unloads)

    @precondition(lambda self: self.simulation.unloads.running)
    @rule()
    def finish_unload(self) -> None:
        self._step()
        self.simulation.finish(self.simulation.unloads, 0)

    # Requests.

    @rule(
        name=st.sampled_from(NAMES),
        request=st.one_of(VERSIONS.map(lambda v: ("specific", v)), st.sampled_from([("latest",), ("earliest",)])),
    )
    def take_handle(self, name: str, request: tuple) -> None:
        self._step()
        self.simulation.take_handle(getattr(ServableRequest, request[0])(name, *request[1:]))

    @precondition(lambda self: self.simulation.referee.handles)
    @rule(index=INDICES)
    def release_handle(self, index: int) -> None:
        self._step()
        self.simulation.release_handle(index % len(self.simulation.referee.handles))

    # All at once.

    @rule(held=st.sampled_from([None, None, *NAMES]))
    def settle(self, held: str | None) -> None:
        self._step()
        self.simulation.settle(held)

    def _step(self) -> None:
        type(self).steps += 1

    def _versions(self) -> list[tuple[str, int]]:
        return [(base, version) for base, versions in sorted(self.store.bases.items()) for version in sorted(versions)]

    def _unworked(self, executor: ManualExecutor) -> list[int]:
        return [index for index, task in enumerate(executor._running) if not task.worked]

    @staticmethod
    def _pick(choices, index):
        return choices[index % len(choices)]


class AvailabilityPreserving(Lifecycle):
    pass


class ResourcePreserving(Lifecycle):
    policy = "resource"


@pytest.mark.timeout(1200)  # a failure is made as short as possible before it is told
@pytest.mark.parametrize("machine", [AvailabilityPreserving, ResourcePreserving])
def test_every_promise_holds_after_every_step(machine: type[Lifecycle]) -> None:
    machine.steps = 0
    number = random.SystemRandom().getrandbits(32)
    print(f"seed: {number}")
    run_state_machine_as_test(
        seed(number)(machine),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            derandomize=False,
            database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert machine.steps >= MIN_STEPS
