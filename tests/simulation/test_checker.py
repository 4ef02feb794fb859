"""The simulation notices what it is there to notice: each promise, broken on purpose, is a violation."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.support.lifecycle.simulated_models import BASES, Arrival, Flaw, Recipe
from tests.support.lifecycle.simulation import Simulation, SimulationOptions
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.managers.harness import HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import Action, ActionKind, AvailabilityPreservingPolicy, Policy
from tfs_lite.sources.source_config import ServableToMonitor
from tfs_lite.sources.version_scan import AllPolicy

Make = Callable[..., Simulation]
M1 = ServableId("m", 1)


class Impatient:
    """Loads what is wanted, and unloads what its subclasses choose."""

    def next_action(self, snapshots: Sequence[ServableStateSnapshot]) -> Action | None:
        ready = [snapshot for snapshot in snapshots if snapshot.state is HarnessState.READY]
        for snapshot in ready:
            if self.unloads(snapshot):
                return Action(ActionKind.UNLOAD, snapshot.id)
        return AvailabilityPreservingPolicy().next_action([s for s in snapshots if s not in ready])

    def unloads(self, snapshot: ServableStateSnapshot) -> bool:
        return True


class UnloadsUnwantedAtOnce(Impatient):
    def unloads(self, snapshot: ServableStateSnapshot) -> bool:
        return not snapshot.is_aspired


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes a simulation of one model, ``m``, of which all versions are wanted."""
    made: list[Simulation] = []

    def make_one(policy: str = "availability", custom_policy: Policy | None = None) -> Simulation:
        servables = {"m": (ServableToMonitor("m", BASES[0], AllPolicy()), 0)}
        made.append(Simulation(SimulationOptions(policy, custom_policy=custom_policy), servables))
        return made[-1]

    yield make_one
    for simulation in made:
        simulation.close()


def push(simulation: Simulation, version: int, recipe: Recipe = Recipe()) -> None:  # noqa: B008 - frozen
    simulation.store.push(BASES[0], version, recipe, Arrival.RENAMED)


def test_story_without_a_fault_has_no_breach(make: Make) -> None:
    simulation = make()
    push(simulation, 1)
    simulation.settle()
    simulation.take_handle(ModelRef("m"))
    push(simulation, 2)
    simulation.store.delete(BASES[0], 1)
    simulation.settle(held="m")
    assert simulation.checker.available() == [ServableId("m", 2)]
    simulation.release_handle(0)
    simulation.settle()
    assert simulation.checker.lives[M1].ended


def test_unloading_a_wanted_version_is_a_breach(make: Make) -> None:
    simulation = make(custom_policy=Impatient())
    push(simulation, 1)
    with pytest.raises(AssertionError, match=r"\(1\) {name: m version: 1} begins to unload"):
        simulation.settle()


def test_unloading_the_last_ready_version_too_early_is_a_breach(make: Make) -> None:
    simulation = make(custom_policy=UnloadsUnwantedAtOnce())
    push(simulation, 1)
    simulation.settle()
    push(simulation, 2)
    simulation.store.delete(BASES[0], 1)
    with pytest.raises(AssertionError, match=r"\(2\) the last ready version goes"):
        simulation.settle()


def test_loading_beside_an_old_version_is_a_breach_of_the_resource_policy(make: Make) -> None:
    simulation = make("resource", custom_policy=AvailabilityPreservingPolicy())
    push(simulation, 1)
    simulation.settle()
    push(simulation, 2)
    simulation.store.delete(BASES[0], 1)
    with pytest.raises(AssertionError, match=r"\(3\) {name: m version: 2} begins to load"):
        simulation.settle()


def test_unloading_under_a_live_handle_is_a_breach(make: Make) -> None:
    simulation = make()
    push(simulation, 1)
    simulation.settle()
    simulation.take_handle(ModelRef("m"))
    loader = simulation.checker.lives[M1].loader
    assert loader is not None
    simulation.checker.on_unload(loader)
    with pytest.raises(AssertionError, match=r"\(4\) {name: m version: 1} is unloaded under 1 live handles"):
        simulation.tick()


def test_wish_that_stays_unfulfilled_without_a_reason_is_a_breach(make: Make) -> None:
    class DoesNothing:
        def next_action(self, snapshots: Sequence[ServableStateSnapshot]) -> Action | None:
            return None

    simulation = make(custom_policy=DoesNothing())
    push(simulation, 1)
    with pytest.raises(AssertionError, match=r"\(10\)"):
        simulation.settle()


@pytest.mark.parametrize(
    "flaw", sorted(set(Flaw) - {Flaw.NONE, Flaw.MESSY, Flaw.FORGETFUL}, key=lambda flaw: flaw.value)
)
def test_flawed_version_has_its_reason_and_leaves_its_sibling_alone(make: Make, flaw: Flaw) -> None:
    simulation = make()
    push(simulation, 1)
    push(simulation, 2, Recipe(flaw=flaw))
    simulation.settle()
    assert simulation.checker.available() == [M1]
    push(simulation, 2)
    simulation.settle()
    assert simulation.checker.available() == [M1, ServableId("m", 2)]


def test_version_that_waits_for_room_has_its_reason_and_leaves_its_sibling_alone(make: Make) -> None:
    simulation = make()
    simulation.change_room("m", has_room=False)
    push(simulation, 1)
    push(simulation, 2, Recipe(remote=True))
    simulation.settle()
    assert simulation.checker.available() == [M1]
    simulation.change_room("m", has_room=True)
    simulation.settle()
    assert simulation.checker.available() == [M1, ServableId("m", 2)]


def test_room_of_which_nobody_is_told_is_a_breach(make: Make) -> None:
    simulation = make()
    simulation.change_room("m", has_room=False)
    push(simulation, 1, Recipe(remote=True))
    simulation.settle()
    simulation.checker.without_room.clear()
    with pytest.raises(AssertionError, match=r"\(10\)"):
        simulation.settle()
