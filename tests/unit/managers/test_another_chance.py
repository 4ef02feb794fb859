"""Versions that failed and get another chance: after a repair, or when memory became free."""

from __future__ import annotations

import pytest

from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.manager_fixture import ManagerWorld

S = HarnessState
BAD = Status(StatusCode.INVALID_ARGUMENT, "not a model")
LIFE = ["Start", "Loading", "Available"]


# Errors that get another chance.


def fail(world: ManagerWorld, revision: str = "r1") -> None:
    world.loading[ServableId("m", 1)] = {"failures": -1, "failure": BAD}
    world.aspire("m", 1, revision=revision)
    world.settle()
    world.loading.clear()
    assert world.state("m", 1) is S.ERROR


@pytest.fixture
def once() -> ManagerWorld:
    """A world without retries."""
    return ManagerWorld(max_num_load_retries=0)


def test_error_with_the_same_revision_is_left_alone(once: ManagerWorld) -> None:
    fail(once)
    once.aspire("m", 1, revision="r1")
    once.settle()
    assert once.story("m", 1) == ["Start", "Loading", "End(INVALID_ARGUMENT)"]


def test_error_with_another_revision_is_loaded_anew(once: ManagerWorld) -> None:
    fail(once)
    once.aspire("m", 1, revision="r2")
    once.settle()
    assert once.story("m", 1) == ["Start", "Loading", "End(INVALID_ARGUMENT)", *LIFE]
    assert [loader.loads for loader in once.loaders[ServableId("m", 1)]] == [1, 1]


def test_repair_of_one_version_leaves_its_ready_sibling_alone(once: ManagerWorld) -> None:
    once.loading[ServableId("m", 1)] = {"failures": -1}
    once.aspire("m", 1, 2, revision="r1")
    once.settle()
    once.loading.clear()
    once.emit("m", [once.data("m", 1, "r2"), once.data("m", 2, "r1")])
    once.settle()
    assert (once.ready("m"), once.story("m", 2)) == ([1, 2], LIFE)


def test_errored_item_that_comes_back_healthy_is_loaded(once: ManagerWorld) -> None:
    once.emit("m", [ServableData.error(ServableId("m", 1), BAD, "r1")])
    once.settle()
    once.aspire("m", 1, revision="r1")
    once.settle()
    assert once.story("m", 1) == ["End(INVALID_ARGUMENT)", *LIFE]


def test_errored_item_that_comes_back_errored_is_left_alone(once: ManagerWorld) -> None:
    for _ in range(3):
        once.emit("m", [ServableData.error(ServableId("m", 1), BAD, "r1")])
        once.settle()
    assert once.story("m", 1) == ["End(INVALID_ARGUMENT)"]


def test_error_that_nobody_wants_any_more_is_dropped(once: ManagerWorld) -> None:
    fail(once)
    once.aspire("m")
    once.settle()
    assert once.state("m", 1) is None
    once.aspire("m", 1, revision="r1")
    once.settle()
    assert once.ready("m") == [1]


# Memory that becomes free later.


def full() -> ManagerWorld:
    """15 units: a has 10, the swap of m from 1 to 2 lacks room."""
    world = ManagerWorld(ram=15)
    sizes = {("a", 1): 10, ("m", 1): 2, ("m", 2): 10}
    for (name, version), size in sizes.items():
        world.loading[ServableId(name, version)] = {"estimate": main_ram(size)}
    world.aspire("a", 1)
    world.aspire("m", 1)
    world.settle()
    world.aspire("m", 2)
    world.settle()
    assert world.status("m", 2).code is StatusCode.RESOURCE_EXHAUSTED
    assert world.ready("m") == [1]
    return world


def test_version_that_lacked_memory_is_tried_again_when_another_model_was_unloaded() -> None:
    world = full()
    world.aspire("a")
    world.settle()
    assert world.ready("m") == [2]
    assert world.story("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)", *LIFE]
    assert world.story("m", 1) == [*LIFE, "Unloading", "End"]


def test_version_that_lacked_memory_is_not_tried_again_before_something_was_unloaded() -> None:
    world = full()
    for _ in range(3):
        world.aspire("m", 2)
        world.settle()
    assert world.story("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)"]


def test_version_that_still_lacks_memory_is_tried_once_per_unload() -> None:
    world = full()
    world.loading[ServableId("b", 1)] = {"estimate": main_ram(1)}
    for _ in range(2):
        world.aspire("b", 1)
        world.settle()
        world.aspire("b")
        world.settle()
        world.aspire("m", 2)
        world.settle()
    assert world.story("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)"] * 3
    assert world.ready("m") == [1]


def test_version_that_ran_out_of_memory_while_loading_is_tried_again_too() -> None:
    world = ManagerWorld(max_num_load_retries=0)
    world.aspire("a", 1)
    world.settle()
    assert world.ready("a") == [1]
    full_gpu = Status(StatusCode.RESOURCE_EXHAUSTED, "GPU 0 is full")
    world.loading[ServableId("m", 1)] = {"failures": 1, "failure": full_gpu}
    world.aspire("m", 1)
    world.settle()
    assert world.status("m", 1) == full_gpu
    world.aspire("a")
    world.settle()
    assert (world.ready("m"), world.loader("m", 1).loads) == ([1], 2)


def test_version_that_lacked_memory_and_is_not_wanted_any_more_is_not_tried_again() -> None:
    world = full()
    world.aspire("m", 1)
    world.aspire("a")
    world.settle()
    assert world.story("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)"]


def test_version_dropped_by_the_very_tick_that_could_try_it_again_is_dropped() -> None:
    world = full()
    world.aspire("a")
    world.tick()
    world.unloads.run_all()  # room now
    world.aspire("m", 1)
    world.settle()
    assert world.story("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)"]
    assert world.ready("m") == [1]
