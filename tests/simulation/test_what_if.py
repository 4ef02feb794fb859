"""What a config would change is what it then changes: for random disks and random pairs of configs, with both policies.

The plan is made of the source's look ahead and the manager's snapshot, without effects; then the config is applied, and
every load and unload that begins is compared with it. In the simulation, nothing sleeps and nothing has a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.lifecycle.simulated_loader import MAX_RETRIES, TOTAL, TOTAL_GPU, Need
from tests.support.lifecycle.simulated_models import BASES, Arrival, Flaw, ModelStore, Recipe
from tests.support.lifecycle.simulation import UNROUTED, Simulation, SimulationOptions
from tfs_lite.core.resources import GPU, MAIN, ResourceUtil
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, TimedState
from tfs_lite.core.status import ServingError
from tfs_lite.managers.harness import HOLDS_RESOURCES
from tfs_lite.managers.policies import POLICIES
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.operations.what_if.forecast import BEGIN, Fate
from tfs_lite.operations.what_if.plan import Course, Expected, ExpectedEnd, Lists, Managed, plan
from tfs_lite.sources.source_config import ServableToMonitor
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy

Servables = Mapping[str, tuple[ServableToMonitor, int]]
Change = tuple[str, str, int, Recipe, Arrival]


class Story(NamedTuple):
    """A config, the ``versions`` that its models begin with, what happens on the disk; another config, and what happens
    there before it is applied."""

    policy: str
    quiet_period: float
    before: Servables
    versions: set[int]
    at_first: list[Change]
    after: Servables
    meanwhile: list[Change]

    @property
    def is_still(self) -> bool:
        """Whether a later poll finds nothing that the first one has not: nothing settles, and nothing is hashed."""
        arrivals = {arrival for *_, arrival in (*self.at_first, *self.meanwhile)}
        return not self.quiet_period and Arrival.PUBLISHED not in arrivals


MOST_LISTS = 6
"""Each version that fails may bring another one: so many polls of a disk that is still."""
TRACKER = ResourceTracker(ResourceUtil({MAIN: 1, GPU: len(TOTAL_GPU)}), TOTAL)
POLICIES_OF_VERSIONS = st.sampled_from(
    [
        LatestPolicy(),
        LatestPolicy(),
        LatestPolicy(2),
        AllPolicy(),
        AllPolicy(),
        SpecificPolicy((1,)),
        SpecificPolicy((3, 2)),
    ]
)
KINDS = st.sampled_from(["push", "push", "push", "delete", "overwrite", "finish", "deny", "allow", "make"])
ARRIVALS = st.sampled_from([Arrival.RENAMED, Arrival.RENAMED, Arrival.PUBLISHED, Arrival.COPIED])


def recipes(ram: st.SearchStrategy[int], gpu: st.SearchStrategy[int]) -> st.SearchStrategy[Recipe]:
    return st.builds(
        Recipe,
        ram=ram,
        gpu=gpu,
        load_failures=st.sampled_from([0, 0, 0, 1, 3]),
        estimate_failures=st.sampled_from([0, 0, 0, 1, 3]),
        flaw=st.sampled_from([Flaw.NONE] * 8 + list(Flaw)),
    )


@st.composite
def configs(draw: st.DrawFn, names: str, moves: bool) -> dict[str, tuple[ServableToMonitor, int]]:
    """``moves``: whether models may have other base paths than their own, and may be left out."""
    found = {}
    for index, name in enumerate(names):
        if not moves or draw(st.sampled_from([True] * 4 + [False])):
            base = draw(st.sampled_from([BASES[index]] * 4 + list(BASES))) if moves else BASES[index]
            port = draw(st.sampled_from([0] * 6 + [1, UNROUTED]))
            found[name] = (ServableToMonitor(name, base, draw(POLICIES_OF_VERSIONS)), port)
    return found


@st.composite
def stories(draw: st.DrawFn, names: str, recipes: st.SearchStrategy[Recipe], moves: bool = True) -> Story:
    bases = st.sampled_from(BASES if moves else BASES[:1])
    changes = st.lists(st.tuples(KINDS, bases, st.integers(1, 4), recipes, ARRIVALS), min_size=2, max_size=8)
    return Story(
        draw(st.sampled_from(["availability", "resource"])),
        draw(st.sampled_from([0.0, 2.0])),
        draw(configs(names, moves)),
        draw(st.sets(st.integers(1, 4), min_size=1 if moves else 3)),
        draw(changes),
        draw(configs(names, moves)),
        draw(changes),
    )


def change(store: ModelStore, what: str, base: str, version: int, recipe: Recipe, arrival: Arrival) -> None:
    there = version in store.bases.get(base, {})
    if what == "push":
        store.push(base, version, recipe, arrival)
    elif what == "delete" and there:
        store.delete(base, version)
    elif what == "overwrite" and there:
        store.overwrite(base, version, recipe)
    elif what == "finish" and there:
        store.finish(base, version)
    elif what == "deny" and base in store.bases:
        store.deny(base)
    elif what == "allow" and base in store.bases:
        store.allow(base)
    elif what == "make":
        store.make_base(base)


def expectation(store: ModelStore, base: str, version: int, port: int) -> Expected:
    """What an inspection would say; here the recipe says it."""
    path = f"{base}/{version}"
    try:
        recipe = store.recipe_at(path)
    except ServingError as error:
        return Expected(ExpectedEnd.NEVER_BEGINS, why=str(error))
    never = (Flaw.UNREADABLE, Flaw.UNESTIMABLE, Flaw.ALIEN)
    if port == UNROUTED or recipe.flaw in never or recipe.estimate_failures > MAX_RETRIES:
        return Expected(ExpectedEnd.NEVER_BEGINS)
    needs = TRACKER.verify(Need(recipe.ram, recipe.gpu).allocation())
    if recipe.flaw in (Flaw.CORRUPT, Flaw.DAMAGED) or recipe.load_failures > MAX_RETRIES:
        return Expected(ExpectedEnd.FAILS, needs)
    try:
        store.read(path)
    except ServingError:
        return Expected(ExpectedEnd.FAILS, needs)
    return Expected(ExpectedEnd.LOADS, needs)


def planned(simulation: Simulation, policy: str, servables: Servables, polls: int) -> dict[ServableId, Course]:
    views = simulation.survey().versions

    def look(outcomes: Mapping[ServableId, bool]) -> Lists:
        wanted: dict[str, dict[int, str]] = {id.name: {} for id in views}
        expected, given_up = {}, set()
        for name, look in simulation.look_ahead(servables, outcomes).items():
            wanted.pop(name, None)
            if look.aspired is not None:
                wanted[name] = {item.id.version: item.revision for item in look.aspired}
            for item in look.aspired or ():
                servable, port = servables[name]
                expected[item.id] = expectation(simulation.store, servable.base_path, item.id.version, port)
                given_up |= {item.id} if item.given_up else set()
        return Lists(wanted, expected, frozenset(given_up))

    held = {id: view.estimate for id, view in views.items() if view.state.state in HOLDS_RESOURCES}
    managed = Managed([view.state for view in views.values()], held, POLICIES[policy], TRACKER)
    return plan(managed, look({}), look if polls > 1 else None)


def begun(
    simulation: Simulation, servables: Servables, polls: int
) -> tuple[dict[ServableId, int], dict[ServableId, int], dict[ServableId, ManagerState]]:
    """How often a load and an unload of each version begins in a reload, and the last state of each."""
    loads: dict[ServableId, int] = {}
    unloads: dict[ServableId, int] = {}
    states: dict[ServableId, ManagerState] = {}

    def note(timed: TimedState) -> None:
        id, state = timed.state.id, timed.state.state
        counted = {ManagerState.LOADING: loads, ManagerState.UNLOADING: unloads}.get(state)
        if counted is not None:
            counted[id] = counted.get(id, 0) + 1
        states[id] = state

    subscription = simulation.monitor.subscribe(note)
    try:
        simulation.reload(servables)
        for _ in range(polls):
            simulation.poll()
            simulation.come_to_rest()
    finally:
        subscription.close()
    return loads, unloads, states


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite"), "propagate", False)


def check(story: Story, ram: int) -> None:
    """``ram``: what the versions of the beginning need."""
    policy, after = story.policy, story.after
    simulation = Simulation(SimulationOptions(policy, story.quiet_period), story.before)
    for base in BASES[:3]:
        for version in sorted(story.versions):
            simulation.store.push(base, version, Recipe(ram=ram), Arrival.RENAMED)
    for one in story.at_first:
        change(simulation.store, *one)
    simulation.settle()
    for one in story.meanwhile:
        change(simulation.store, *one)
    polls = MOST_LISTS if story.is_still else 1
    found = planned(simulation, policy, after, polls)
    loads, unloads, states = begun(simulation, after, polls)
    fates = {id: (*course.before, course.fate) for id, course in found.items()}
    assert loads == {id: count for id, all in fates.items() if (count := sum(fate in BEGIN for fate in all))}
    assert unloads == {id: count for id, all in fates.items() if (count := all.count(Fate.UNLOAD))}
    assert {id for id, state in states.items() if state is ManagerState.AVAILABLE} == {
        id for id, course in found.items() if course.fate is Fate.LOAD
    }
    simulation.close()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(stories("abc", recipes(st.just(0), st.just(0))))
def test_exactly_the_versions_that_are_named_load_and_unload(story: Story) -> None:
    check(story, ram=0)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(stories("a", recipes(st.sampled_from([2, 3, 5, 7, 9]), st.sampled_from([0, 0, 1, 2, 3])), moves=False))
def test_where_memory_is_short_the_versions_without_room_are_named(story: Story) -> None:
    """Of one model: which of several models goes without is a matter of the order in which they load."""
    check(story, ram=3)
