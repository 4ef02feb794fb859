"""Version transitions from start to end: the worked cases of both policies, in virtual time."""

from __future__ import annotations

import pytest

from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.manager_fixture import ManagerWorld


def steps(world: ManagerWorld) -> list[str]:
    return [f"{action.kind.value} {action.id.version}" for action in world.settle()]


def with_ready(*versions: int, policy: str = "availability", broken: tuple[int, ...] = ()) -> ManagerWorld:
    """A world that serves these versions; those in ``broken`` will never load."""
    world = ManagerWorld(policy, max_num_load_retries=0)
    for version in broken:
        world.loading[ServableId("m", version)] = {"failures": -1}
    world.aspire("m", *versions)
    world.settle()
    assert world.ready("m") == sorted(versions)
    return world


@pytest.mark.parametrize(
    ("ready", "aspired", "broken", "sequence", "left"),
    [
        ([1], [2], (), ["load 2", "unload 1"], [2]),
        ([1], [2], (2,), ["load 2"], [1]),
        ([1, 2], [3], (), ["unload 1", "load 3", "unload 2"], [3]),
        ([0, 1], [7], (7,), ["unload 0", "load 7"], [1]),
        ([1], [2, 3], (), ["load 3", "unload 1", "load 2"], [2, 3]),
        ([1], [2, 3], (3,), ["load 3", "load 2", "unload 1"], [2]),
        ([2], [1], (), ["load 1", "unload 2"], [1]),
        ([0, 1], [1], (), ["unload 0"], [1]),
        ([1, 2, 3], [], (), ["unload 1", "unload 2", "unload 3"], []),
        ([1], [1, 2], (), ["load 2"], [1, 2]),
        ([1], [1], (), [], [1]),
    ],
)
def test_availability_keeps_one_version_ready_throughout(
    ready: list[int], aspired: list[int], broken: tuple[int, ...], sequence: list[str], left: list[int]
) -> None:
    world = with_ready(*ready, broken=broken)
    world.aspire("m", *aspired)
    assert steps(world) == sequence
    assert world.ready("m") == left
    assert world.violations() == []


@pytest.mark.parametrize(
    ("ready", "aspired", "broken", "sequence", "left"),
    [
        ([1], [2], (), ["unload 1", "load 2"], [2]),
        ([1], [2], (2,), ["unload 1", "load 2"], []),
        ([1, 2], [3], (), ["unload 1", "unload 2", "load 3"], [3]),
        ([1], [2, 3], (), ["unload 1", "load 3", "load 2"], [2, 3]),
        ([1], [], (), ["unload 1"], []),
        ([1], [1, 2], (), ["load 2"], [1, 2]),
    ],
)
def test_resource_unloads_before_it_loads(
    ready: list[int], aspired: list[int], broken: tuple[int, ...], sequence: list[str], left: list[int]
) -> None:
    world = with_ready(*ready, policy="resource", broken=broken)
    world.aspire("m", *aspired)
    assert steps(world) == sequence
    assert world.ready("m") == left


def test_failed_upgrade_keeps_the_old_version_until_a_better_one_comes() -> None:
    world = with_ready(1, broken=(2,))
    world.aspire("m", 2)
    world.settle()
    assert world.state("m", 2) is HarnessState.ERROR
    world.aspire("m", 3)
    assert steps(world) == ["load 3", "unload 1"]
    assert world.state("m", 2) is None


def test_error_that_is_still_wanted_and_an_old_version_stay_as_they_are() -> None:
    world = with_ready(0, broken=(1,))
    world.aspire("m", 1)
    world.settle()
    for _ in range(3):
        world.aspire("m", 1)
        assert steps(world) == []
    assert world.ready("m") == [0]


def test_two_new_versions_load_side_by_side_and_the_old_one_goes_when_either_is_ready() -> None:
    world = ManagerWorld(threads=2)
    world.aspire("m", 1)
    world.settle()
    world.aspire("m", 2, 3)
    assert [str(world.tick().id.version), str(world.tick().id.version)] == ["3", "2"]
    assert world.tick() is None
    assert world.loads.start()
    assert world.loads.start()
    world.loads.finish(1)
    action = world.tick()
    assert (action.kind.value, action.id.version) == ("unload", 1)


def test_resource_policy_waits_for_a_load_that_nobody_wants_any_more() -> None:
    world = ManagerWorld("resource")
    world.aspire("m", 1)
    world.tick()
    world.loads.start()
    world.aspire("m", 2)
    assert world.tick() is None
    world.loads.finish()
    assert world.tick() is None  # its unload is still to come
    world.unloads.run_all()
    assert steps(world) == ["load 2"]


def test_resource_policy_waits_for_the_last_handle() -> None:
    world = with_ready(1, policy="resource")
    handle = world.manager.get_available_servable_handles()[ServableId("m", 1)]
    world.aspire("m", 2)
    assert steps(world) == ["unload 1"]
    handle.release()
    assert steps(world) == ["load 2"]


def test_swap_that_does_not_fit_keeps_the_old_version_and_says_why() -> None:
    world = ManagerWorld(ram=15)
    for version in (1, 2):
        world.loading[ServableId("m", version)] = {"estimate": main_ram(10)}
    world.aspire("m", 1)
    world.settle()
    world.aspire("m", 2)
    assert steps(world) == ["load 2"]
    assert world.ready("m") == [1]
    status = world.status("m", 2)
    assert status.code is StatusCode.RESOURCE_EXHAUSTED
    assert "main/0/ram_in_bytes wanted 10, used 10, total 15" in status.message


def test_swap_that_does_not_fit_twice_works_with_the_resource_policy() -> None:
    world = ManagerWorld("resource", ram=15)
    for version in (1, 2):
        world.loading[ServableId("m", version)] = {"estimate": main_ram(10)}
    world.aspire("m", 1)
    world.settle()
    world.aspire("m", 2)
    assert steps(world) == ["unload 1", "load 2"]
    assert world.ready("m") == [2]


def test_without_threads_every_action_is_done_within_its_tick() -> None:
    world = ManagerWorld(load_executor=ManualExecutor(0), unload_executor=ManualExecutor(0))
    world.aspire("m", 1)
    world.tick()
    assert world.ready("m") == [1]
    world.aspire("m", 2)
    world.tick()
    assert world.ready("m") == [1, 2]
    world.tick()
    assert world.ready("m") == [2]
    assert world.story("m", 1) == ["Start", "Loading", "Available", "Unloading", "End"]
