"""Version transitions from start to end: the worked cases of both policies, in virtual time."""

from __future__ import annotations

import pytest

from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.policies import ActionKind
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture


def steps(fixture: ManagerFixture) -> list[str]:
    return [f"{action.kind.value} {action.id.version}" for action in fixture.settle()]


def with_ready(*versions: int, policy: str = "availability", broken: tuple[int, ...] = ()) -> ManagerFixture:
    """A fixture that serves these versions; those in ``broken`` will never load."""
    fixture = ManagerFixture(policy, max_num_load_retries=0)
    for version in broken:
        fixture.loading[ServableId("m", version)] = {"failures": -1}
    fixture.serve("m", *versions)
    assert fixture.ready("m") == sorted(versions)
    return fixture


@pytest.mark.parametrize(
    ("ready", "aspired", "broken", "sequence", "left"),
    [
        ([1], [2], (), ["load 2", "unload 1"], [2]),
        ([1], [2], (2,), ["load 2"], [1]),
        ([1, 2], [3], (), ["unload 1", "load 3", "unload 2"], [3]),
        ([0, 1], [7], (7,), ["unload 0", "load 7"], [1]),
        ([1], [2, 3], (), ["load 3", "load 2", "unload 1"], [2, 3]),
        ([1], [2, 3], (3,), ["load 3", "load 2"], [1, 2]),
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
    fixture = with_ready(*ready, broken=broken)
    fixture.aspire("m", *aspired)
    assert steps(fixture) == sequence
    assert fixture.ready("m") == left
    assert fixture.violations() == []


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
    fixture = with_ready(*ready, policy="resource", broken=broken)
    fixture.aspire("m", *aspired)
    assert steps(fixture) == sequence
    assert fixture.ready("m") == left


def test_failed_upgrade_keeps_the_old_version_until_a_better_one_comes() -> None:
    fixture = with_ready(1, broken=(2,))
    fixture.serve("m", 2)
    assert fixture.state("m", 2) is HarnessState.ERROR
    fixture.aspire("m", 3)
    assert steps(fixture) == ["load 3", "unload 1"]
    assert fixture.state("m", 2) is None


def test_error_that_is_still_wanted_and_an_old_version_stay_as_they_are() -> None:
    fixture = with_ready(0, broken=(1,))
    fixture.serve("m", 1)
    for _ in range(3):
        fixture.aspire("m", 1)
        assert steps(fixture) == []
    assert fixture.ready("m") == [0]


def test_two_new_versions_load_side_by_side_and_the_old_one_goes_when_both_are_ready() -> None:
    fixture = ManagerFixture(threads=2)
    fixture.serve("m", 1)
    fixture.aspire("m", 2, 3)
    assert [str(fixture.tick().id.version), str(fixture.tick().id.version)] == ["3", "2"]
    assert fixture.tick() is None
    assert fixture.loads.start()
    assert fixture.loads.start()
    fixture.loads.finish(1)
    assert fixture.tick() is None
    fixture.loads.finish()
    action = fixture.tick()
    assert (action.kind.value, action.id.version) == ("unload", 1)


def test_old_version_that_another_one_stands_beside_goes_when_its_source_gives_the_failed_one_up() -> None:
    fixture = with_ready(1, broken=(3,))
    fixture.aspire("m", 2, 3)
    assert steps(fixture) == ["load 3", "load 2"]
    fixture.aspire("m", 2, 3, given_up=(3,))
    assert steps(fixture) == ["unload 1"]


def test_old_version_stays_where_its_source_wants_it_in_the_place_of_the_one_that_failed() -> None:
    fixture = with_ready(1, 2, broken=(3,))
    fixture.aspire("m", 3, 2)
    assert steps(fixture) == ["load 3"]
    fixture.aspire("m", 3, 2, 1, given_up=(3,))
    assert steps(fixture) == []
    assert fixture.ready("m") == [1, 2]


def test_resource_policy_waits_for_a_load_that_is_no_longer_aspired() -> None:
    fixture = ManagerFixture("resource")
    fixture.aspire_and_tick("m", 1)
    fixture.loads.start()
    fixture.aspire("m", 2)
    assert fixture.tick() is None
    fixture.loads.finish()
    assert fixture.tick() is None  # its unload is still to come
    fixture.unloads.run_all()
    assert steps(fixture) == ["load 2"]


def test_resource_policy_waits_for_the_last_handle() -> None:
    fixture = with_ready(1, policy="resource")
    handle = fixture.manager.get_available_servable_handles()[ServableId("m", 1)]
    fixture.aspire("m", 2)
    assert steps(fixture) == ["unload 1"]
    handle.release()
    assert steps(fixture) == ["load 2"]


def test_swap_that_does_not_fit_keeps_the_old_version_and_says_why() -> None:
    fixture = ManagerFixture(ram=15)
    for version in (1, 2):
        fixture.loading[ServableId("m", version)] = {"estimate": main_ram(10)}
    fixture.serve("m", 1)
    fixture.aspire("m", 2)
    assert steps(fixture) == ["load 2"]
    assert fixture.ready("m") == [1]
    status = fixture.status("m", 2)
    assert status.code is StatusCode.RESOURCE_EXHAUSTED
    assert "main/0/ram_in_bytes wanted 10, used 10, total 15" in status.message


def test_swap_that_does_not_fit_twice_works_with_the_resource_policy() -> None:
    fixture = ManagerFixture("resource", ram=15)
    for version in (1, 2):
        fixture.loading[ServableId("m", version)] = {"estimate": main_ram(10)}
    fixture.serve("m", 1)
    fixture.aspire("m", 2)
    assert steps(fixture) == ["unload 1", "load 2"]
    assert fixture.ready("m") == [2]


def test_without_threads_every_action_is_done_within_its_tick() -> None:
    fixture = ManagerFixture(load_executor=ManualExecutor(0), unload_executor=ManualExecutor(0))
    fixture.aspire_and_tick("m", 1)
    assert fixture.ready("m") == [1]
    fixture.aspire_and_tick("m", 2)
    assert fixture.ready("m") == [1, 2]
    fixture.tick()
    assert fixture.ready("m") == [2]
    assert fixture.history("m", 1) == ["Start", "Loading", "Available", "Unloading", "End"]


# Found by the simulation of the lifecycle.


def test_no_version_of_a_list_that_waits_is_unloaded_by_an_older_list() -> None:
    fixture = ManagerFixture()
    fixture.serve("m", 1, 2)
    fixture.aspire("m")
    action = fixture.tick()
    assert action is not None
    assert (action.kind, action.id.version) == (ActionKind.UNLOAD, 1)
    fixture.aspire("m", 1, 2)  # waits for version 1, which is on its way out

    assert fixture.tick() is None
    fixture.settle()

    assert fixture.history("m", 2) == ["Start", "Loading", "Available"]
    assert fixture.ready("m") == [1, 2]


def test_last_ready_version_stays_while_the_only_wanted_one_is_still_leaving() -> None:
    fixture = ManagerFixture()
    fixture.serve("m", 1, 2)
    handle = fixture.manager.get_servable_handle(ModelRef("m", 1))
    fixture.aspire_and_tick("m")
    fixture.aspire("m", 1)

    fixture.settle()
    assert fixture.ready("m") == [2]

    handle.release()
    fixture.settle()
    assert fixture.ready("m") == [1]
    assert fixture.timeline()[-4:] == [("Loading", 1), ("Available", 1), ("Unloading", 2), ("End", 2)]
