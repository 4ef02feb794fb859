"""The ten promises of the lifecycle, against whatever order of events hypothesis can think of.

Disk, source, router, adapters, manager, executors, clock and bus are the real ones or public fakes, put together by
:class:`tests.support.lifecycle.simulation.Simulation`, which checks every promise after every step. Nothing sleeps,
nothing has a thread: a run is its seed. Each run takes new seeds; one that fails prints its seed, the command that
runs it again, and the shortest story that fails:

    python -m pytest tests/simulation --hypothesis-seed=N

A failing story is also kept in ``.hypothesis`` and tried first the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.lifecycle.simulated_models import BASES, Arrival, Flaw, Recipe
from tests.support.lifecycle.simulation import RETRY_INTERVAL, UNROUTED, Simulation, SimulationOptions
from tests.support.profiles import CountedMachine, SeededRuns
from tfs_lite.core.servable import ModelRef
from tfs_lite.sources.source_config import ServableToMonitor
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy

T = TypeVar("T")


NAMES = ("a", "b", "c")
VERSIONS = st.integers(1, 4)
INDICES = st.integers(0, 5)

HEALTHY = Recipe(ram=2)
RECIPES = st.one_of(
    st.just(HEALTHY),
    st.builds(
        Recipe,
        ram=st.sampled_from([1, 2, 3, 5, 7, 9]),
        gpu=st.sampled_from([0, 0, 1, 2, 3]),
        shrinks=st.booleans(),
        load_failures=st.sampled_from([0, 0, 0, 1, 2, 3]),
        estimate_failures=st.sampled_from([0, 0, 0, 1, 3]),
        flaw=st.sampled_from([Flaw.NONE] * 8 + list(Flaw)),
        remote=st.sampled_from([False, False, True]),
    ),
)
ARRIVALS = st.sampled_from([Arrival.RENAMED, Arrival.RENAMED, Arrival.PUBLISHED, Arrival.COPIED])
REQUESTS = st.one_of(st.builds(ModelRef, st.sampled_from(NAMES)), st.builds(ModelRef, st.sampled_from(NAMES), VERSIONS))


class Then(NamedTuple):
    """What goes on after a step, with every step: hypothesis switches rules off at random, and progress must not depend
    on any of them. ``loads`` and ``unloads`` count moves of tasks: each begins the next one or ends the first one."""

    poll: bool = False
    ticks: int = 0
    loads: int = 0
    unloads: int = 0


NOTHING = Then()
FEW = st.sampled_from([0, 0, 1, 1, 2, 3])
THEN = st.builds(Then, poll=st.booleans(), ticks=FEW, loads=FEW, unloads=FEW)
POLICIES = st.sampled_from(
    [
        *[LatestPolicy(), LatestPolicy(2), AllPolicy(), AllPolicy()],
        *[SpecificPolicy((1,)), SpecificPolicy((3, 2)), SpecificPolicy(())],
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


class Lifecycle(CountedMachine):
    """One rule per thing that can happen to a server."""

    policy = "availability"
    made: ClassVar[type[Simulation]] = Simulation
    simulation: Simulation

    @initialize(
        quiet=st.sampled_from([0.0, 0.0, 2.0]),
        retry=st.sampled_from([RETRY_INTERVAL, 0.0]),
        versions=st.sets(VERSIONS, min_size=1, max_size=2),
    )
    def begin(self, quiet: float, retry: float, versions: set[int]) -> None:
        """Two models, with these versions loaded already."""
        options = SimulationOptions(self.policy, quiet, retry)
        servables = {name: (ServableToMonitor(name, BASES[i], LatestPolicy(2)), 0) for i, name in enumerate(NAMES[:2])}
        self.simulation = self.made(options, servables)
        self.store = self.simulation.store
        for version in sorted(versions):
            self.store.push(BASES[0], version, HEALTHY, Arrival.RENAMED)
            self.store.push(BASES[1], version, HEALTHY, Arrival.RENAMED)
        self.simulation.settle()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.close()

    # The disk.

    @rule(base=st.sampled_from(BASES[:2] * 3 + BASES), version=VERSIONS, recipe=RECIPES, arrival=ARRIVALS, then=THEN)
    def push(self, base: str, version: int, recipe: Recipe, arrival: Arrival, then: Then) -> None:
        self.store.push(base, version, recipe, arrival)
        self._go_on(then)

    @precondition(lambda self: self._versions())
    @rule(index=INDICES, then=THEN)
    def delete(self, index: int, then: Then) -> None:
        self.store.delete(*_pick(self._versions(), index))
        self._go_on(then)

    @precondition(lambda self: self._versions())
    @rule(index=INDICES, recipe=st.one_of(st.none(), RECIPES), then=THEN)
    def write_in_place(self, index: int, recipe: Recipe | None, then: Then) -> None:
        """The rest of a version that is being copied, or another recipe: a repair, or the contrary."""
        base, version = _pick(self._versions(), index)
        if recipe is None:
            self.store.finish(base, version)
        else:
            self.store.overwrite(base, version, recipe)
        self._go_on(then)

    @rule(base=st.sampled_from(BASES), change=st.sampled_from(["empty", "remove", "lock", "open", "open"]), then=THEN)
    def change_base_path(self, base: str, change: str, then: Then) -> None:
        self.store.make_base(base)
        if change == "empty":
            for version in list(self.store.bases[base]):
                self.store.delete(base, version)
        elif change == "remove":
            self.store.remove_base(base)
        elif change == "lock":
            self.store.deny(base)
        else:
            self.store.allow(base)
        self._go_on(then)

    # The config, time, and the rest of the server.

    @rule(servables=configs(), then=THEN)
    def reload_config(self, servables: dict[str, tuple[ServableToMonitor, int]], then: Then) -> None:
        self.simulation.reload(servables)
        self._go_on(then)

    @rule(then=THEN)
    def go_on(self, then: Then) -> None:
        self._go_on(then)

    @rule(seconds=st.sampled_from([0.5, 2.5, RETRY_INTERVAL]), then=THEN)
    def let_time_pass(self, seconds: float, then: Then) -> None:
        self.simulation.advance(seconds)
        self._go_on(then)

    @rule(held=st.sampled_from([None, None, *NAMES]), now=st.sampled_from([False, False, True]))
    def settle(self, held: str | None, now: bool) -> None:
        """Not too often: most of what can go wrong goes wrong while something is under way."""
        if now:
            self.simulation.settle(held)
        self._go_on()

    @rule(num_threads=st.sampled_from([0, 1, 2, 2, 3]), then=THEN)
    def resize_load_executor(self, num_threads: int, then: Then) -> None:
        self.simulation.resize_loads(num_threads)
        self._go_on(then)

    @rule(name=st.sampled_from(NAMES), has_room=st.booleans(), then=THEN)
    def change_room_in_the_cluster(self, name: str, has_room: bool, then: Then) -> None:
        self.simulation.change_room(name, has_room)
        self._go_on(then)

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
            self.simulation.work(self.simulation.unloads, len(self.simulation.unloads.running) - 1)
        self._go_on()

    @precondition(lambda self: self.simulation.unloads.running)
    @rule(index=INDICES)
    def finish_unload(self, index: int) -> None:
        self.simulation.finish(self.simulation.unloads, index % len(self.simulation.unloads.running))
        self._go_on()

    @precondition(lambda self: self.simulation.loads.running)
    @rule(index=INDICES, then=THEN)
    def load_hangs(self, index: int, then: Then) -> None:
        self.simulation.hang(self.simulation.loads, index % len(self.simulation.loads.running))
        self._go_on(then)

    @precondition(lambda self: self.simulation.unloads.running)
    @rule(index=INDICES, then=THEN)
    def unload_hangs(self, index: int, then: Then) -> None:
        self.simulation.hang(self.simulation.unloads, index % len(self.simulation.unloads.running))
        self._go_on(then)

    # Requests.

    @rule(request=REQUESTS, then=THEN)
    def take_handle(self, request: ModelRef, then: Then) -> None:
        self.simulation.take_handle(request)
        self._go_on(then)

    @precondition(lambda self: self.simulation.checker.handles)
    @rule(index=INDICES, then=THEN)
    def release_handle(self, index: int, then: Then) -> None:
        self.simulation.release_handle(index % len(self.simulation.checker.handles))
        self._go_on(then)

    def _go_on(self, then: Then = NOTHING) -> None:
        self.count_step()
        if then.poll:
            self.simulation.poll()
        for _ in range(then.ticks):
            self.simulation.tick()
        for executor, moves in ((self.simulation.loads, then.loads), (self.simulation.unloads, then.unloads)):
            for _ in range(moves):
                self.simulation.move(executor)

    def _versions(self) -> list[tuple[str, int]]:
        return [(base, version) for base, versions in sorted(self.store.bases.items()) for version in sorted(versions)]


def _pick(choices: Sequence[T], index: int) -> T:
    return choices[index % len(choices)]


class AvailabilityPreserving(Lifecycle):
    pass


class ResourcePreserving(Lifecycle):
    policy = "resource"


@pytest.mark.timeout(1200)  # a story that fails is made as short as possible before it is told
@pytest.mark.parametrize("machine", [AvailabilityPreserving, ResourcePreserving])
def test_every_promise_holds_after_every_step(
    machine: type[Lifecycle], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite"), "propagate", False)
    command = f"tests/simulation/test_lifecycle.py -k {machine.__name__}"
    runs = SeededRuns(machine, command, runs=10, steps=100, batches=(2, 30), min_steps=(1_000, 20_000))
    runs.check(request.config.getoption("--hypothesis-seed"))
