"""The ten promises of the lifecycle, against whatever order of events hypothesis can think of.

Disk, source, router, adapters, manager, executors, clock and bus are the real ones or public fakes, put together by
:class:`tfs_lite.testing.simulation.Simulation`, which checks all promises after every step. Nothing sleeps, nothing
has a thread: a run is its seed. Each run takes a new seed and prints it; a failing run also prints the shortest story
that fails. To see a run again:

    python -m pytest tests/simulation --hypothesis-seed=N

A failure is kept in ``.hypothesis`` and tried first the next time.
"""

from __future__ import annotations

import enum
import logging
import os
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tfs_lite.core.servable import ServableRequest
from tfs_lite.sources.source_config import ServableToMonitor
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy
from tfs_lite.testing.simulated_models import BASES, Arrival, Flaw, Recipe
from tfs_lite.testing.simulation import RETRY_INTERVAL, UNROUTED, Simulation, SimulationOptions

T = TypeVar("T")

MIN_STEPS = 20_000
"""Of each machine; there are two."""

SETTINGS = settings(
    max_examples=10,
    stateful_step_count=100,
    deadline=None,
    derandomize=False,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
    suppress_health_check=list(HealthCheck),
)

NAMES = ("a", "b", "c")
VERSIONS = st.integers(1, 4)
INDICES = st.integers(0, 5)

RECIPES = st.builds(
    Recipe,
    ram=st.sampled_from([1, 2, 3, 5, 7, 9]),
    gpu=st.sampled_from([0, 0, 1, 2, 3]),
    shrinks=st.booleans(),
    load_failures=st.sampled_from([0, 0, 0, 1, 2, 3]),
    estimate_failures=st.sampled_from([0, 0, 0, 1, 3]),
    flaw=st.sampled_from([Flaw.NONE] * 8 + list(Flaw)),
)
HEALTHY = Recipe(ram=2)


class Then(enum.Enum):
    """What follows a change at once. Hypothesis switches rules off at random; progress must not depend on any."""

    NOTHING = 0
    POLL = 1
    TICK = 2
    RUN = 3
    SETTLE = 4


THEN = st.sampled_from([Then.NOTHING, Then.POLL, Then.TICK, Then.TICK, Then.RUN, Then.RUN, Then.SETTLE])
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
        if draw(st.sampled_from([True] * 6 + [False])):
            base = draw(st.sampled_from([BASES[index]] * 4 + list(BASES)))
            port = draw(st.sampled_from([0] * 6 + [1, 1, UNROUTED]))
            found[name] = (ServableToMonitor(name, base, draw(POLICIES)), port)
    return found


class Lifecycle(RuleBasedStateMachine):
    """One rule per thing that can happen to a server."""

    policy = "availability"
    steps = 0
    simulation: Simulation

    @initialize(
        quiet=st.sampled_from([0.0, 0.0, 2.0]),
        retry=st.sampled_from([RETRY_INTERVAL, 0.0]),
        again=st.booleans(),
        versions=st.sets(VERSIONS, max_size=2),
    )
    def begin(self, quiet: float, retry: float, again: bool, versions: set[int]) -> None:
        """Two models, with these versions loaded already."""
        options = SimulationOptions(self.policy, quiet, retry, reload_errors=again)
        servables = {name: (ServableToMonitor(name, BASES[i], LatestPolicy(2)), 0) for i, name in enumerate(NAMES[:2])}
        self.simulation = Simulation(options, servables)
        self.store = self.simulation.store
        for version in sorted(versions):
            self.store.push(BASES[0], version, HEALTHY, Arrival.RENAMED)
            self.store.push(BASES[1], version, HEALTHY, Arrival.RENAMED)
        self.simulation.settle()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.close()

    # The disk.

    @rule(base=st.sampled_from(BASES), version=VERSIONS, recipe=RECIPES, arrival=st.sampled_from(Arrival), then=THEN)
    def push(self, base: str, version: int, recipe: Recipe, arrival: Arrival, then: Then) -> None:
        self.store.push(base, version, recipe, arrival)
        self._go_on(then)

    @rule(base=st.sampled_from(BASES[:2]), version=VERSIONS, then=THEN)
    def push_healthy(self, base: str, version: int, then: Then) -> None:
        self.store.push(base, version, HEALTHY, Arrival.RENAMED)
        self._go_on(then)

    @precondition(lambda self: self._versions())
    @rule(index=INDICES, then=THEN)
    def finish_copying(self, index: int, then: Then) -> None:
        self.store.finish(*_pick(self._versions(), index))
        self._go_on(then)

    @precondition(lambda self: self._versions())
    @rule(index=INDICES, recipe=st.one_of(RECIPES, st.just(HEALTHY)), then=THEN)
    def overwrite_in_place(self, index: int, recipe: Recipe, then: Then) -> None:
        self.store.overwrite(*_pick(self._versions(), index), recipe)
        self._go_on(then)

    @precondition(lambda self: self._versions())
    @rule(index=INDICES, then=THEN)
    def delete_version(self, index: int, then: Then) -> None:
        self.store.delete(*_pick(self._versions(), index))
        self._go_on(then)

    @precondition(lambda self: self.store.bases)
    @rule(index=INDICES, then=THEN)
    def remove_base_path(self, index: int, then: Then) -> None:
        self.store.remove_base(_pick(sorted(self.store.bases), index))
        self._go_on(then)

    @precondition(lambda self: self.store.bases)
    @rule(index=INDICES, then=THEN)
    def empty_base_path(self, index: int, then: Then) -> None:
        base = _pick(sorted(self.store.bases), index)
        for version in list(self.store.bases[base]):
            self.store.delete(base, version)
        self._go_on(then)

    @rule(base=st.sampled_from(BASES), denied=st.sampled_from([False] * 4 + [True]), then=THEN)
    def make_or_lock_base_path(self, base: str, denied: bool, then: Then) -> None:
        self.store.make_base(base)
        (self.store.deny if denied else self.store.allow)(base)
        self._go_on(then)

    # The source and the config.

    @rule()
    def poll(self) -> None:
        self.simulation.poll()
        self._go_on()

    @rule(servables=configs(), strict=st.sampled_from([False, False, False, True]), then=THEN)
    def reload_config(self, servables: dict[str, tuple[ServableToMonitor, int]], strict: bool, then: Then) -> None:
        self.simulation.reload(servables, strict)
        self._go_on(then)

    # The manager.

    @rule()
    def tick(self) -> None:
        self.simulation.tick()
        self._go_on()

    @rule(rounds=st.integers(1, 3))
    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.simulation.run()
        self._go_on()

    @rule(seconds=st.sampled_from([0.5, 2.5, RETRY_INTERVAL]))
    def let_time_pass(self, seconds: float) -> None:
        self.simulation.advance(seconds)
        self._go_on()

    @rule(num_threads=st.sampled_from([0, 1, 2, 2, 3]))
    def resize_load_executor(self, num_threads: int) -> None:
        self.simulation.resize_loads(num_threads)
        self._go_on()

    # Tasks, in their steps.

    @precondition(lambda self: self.simulation.loads.can_start)
    @rule(also_work=st.booleans())
    def start_load(self, also_work: bool) -> None:
        loads = self.simulation.loads
        if self.simulation.start(loads) and also_work:
            self.simulation.work(loads, len(loads.running) - 1)
        self._go_on()

    @precondition(lambda self: self.simulation.loads.running)
    @rule(index=INDICES)
    def finish_load(self, index: int) -> None:
        self.simulation.finish(self.simulation.loads, index % len(self.simulation.loads.running))
        self._go_on()

    @precondition(lambda self: self.simulation.unloads.can_start)
    @rule(also_work=st.booleans())
    def start_unload(self, also_work: bool) -> None:
        if self.simulation.start(self.simulation.unloads) and also_work:
            self.simulation.work(self.simulation.unloads, 0)
        self._go_on()

    @precondition(lambda self: self.simulation.unloads.running)
    @rule()
    def finish_unload(self) -> None:
        self.simulation.finish(self.simulation.unloads, 0)
        self._go_on()

    # Requests.

    @rule(name=st.sampled_from(NAMES), version=st.one_of(st.none(), VERSIONS))
    def take_handle(self, name: str, version: int | None) -> None:
        self.simulation.take_handle(ServableRequest(name, version))
        self._go_on()

    @rule(name=st.sampled_from(NAMES))
    def take_handle_to_earliest(self, name: str) -> None:
        self.simulation.take_handle(ServableRequest.earliest(name))
        self._go_on()

    @precondition(lambda self: self.simulation.referee.handles)
    @rule(index=INDICES)
    def release_handle(self, index: int) -> None:
        self.simulation.release_handle(index % len(self.simulation.referee.handles))
        self._go_on()

    # All at once.

    @rule(held=st.sampled_from([None, None, *NAMES]))
    def settle(self, held: str | None) -> None:
        self.simulation.settle(held)
        self._go_on()

    def _go_on(self, then: Then = Then.NOTHING) -> None:
        type(self).steps += 1
        if then in (Then.POLL, Then.TICK, Then.RUN):
            self.simulation.poll()
        if then is Then.TICK:
            self.simulation.tick()
        elif then is Then.RUN:
            self.simulation.run()
        elif then is Then.SETTLE:
            self.simulation.settle()

    def _versions(self) -> list[tuple[str, int]]:
        return [(base, version) for base, versions in sorted(self.store.bases.items()) for version in sorted(versions)]


def _pick(choices: Sequence[T], index: int) -> T:
    return choices[index % len(choices)]


class AvailabilityPreserving(Lifecycle):
    pass


class ResourcePreserving(Lifecycle):
    policy = "resource"


@pytest.mark.timeout(1200)  # a failing story is made as short as possible before it is told
@pytest.mark.parametrize("machine", [AvailabilityPreserving, ResourcePreserving])
def test_every_promise_holds_after_every_step(machine: type[Lifecycle], request: pytest.FixtureRequest) -> None:
    machine.steps = 0
    wanted = request.config.getoption("--hypothesis-seed")
    if wanted is not None:
        run_batch(machine, int(wanted))
        return
    seeds = random.SystemRandom()
    while machine.steps < MIN_STEPS:
        run_batch(machine, seeds.getrandbits(32))


def run_batch(machine: type[Lifecycle], number: int) -> None:
    """Ten stories. Batches are this small because hypothesis, from the eleventh on, mostly varies what it has tried."""
    logger = logging.getLogger("tfs_lite")
    try:
        logger.propagate = False
        run_state_machine_as_test(seed(number)(machine), settings=SETTINGS)
    except BaseException:
        print(f"replay: python -m pytest {os.path.relpath(__file__)} -k {machine.__name__} --hypothesis-seed={number}")
        raise
    finally:
        logger.propagate = True
