"""What the world hears of one version: every story there is, in virtual time."""

from __future__ import annotations

import pytest

from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.manager_fixture import ManagerWorld

BAD = Status(StatusCode.INVALID_ARGUMENT, "not a model")


def world_with(version: int = 1, options: dict | None = None, **loading: object) -> ManagerWorld:
    world = ManagerWorld(**(options or {}))
    world.loading[ServableId("m", version)] = loading
    return world


def test_version_that_comes_and_goes_says_all_five_states() -> None:
    world = ManagerWorld()
    world.aspire("m", 1)
    world.settle()
    world.aspire("m")
    world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "Available", "Unloading", "End"]
    assert world.state("m", 1) is None


def test_item_that_arrives_with_an_error_only_ends() -> None:
    world = ManagerWorld()
    world.emit("m", [ServableData.error(ServableId("m", 1), BAD)])
    world.settle()
    assert world.story("m", 1) == ["End(INVALID_ARGUMENT)"]
    assert world.status("m", 1) == BAD


def test_failed_estimate_ends_without_loading() -> None:
    world = world_with(estimate_failures=-1, options={"ram": 15, "max_num_load_retries": 0})
    world.aspire("m", 1)
    world.settle()
    assert world.story("m", 1) == ["Start", "End(UNAVAILABLE)"]
    assert world.status("m", 1).message.startswith(
        "Error while attempting to reserve resources to load servable {name: m version: 1}: "
    )
    assert world.loader("m", 1).loads == 0


def test_lack_of_resources_ends_once_without_loading() -> None:
    world = world_with(estimate=main_ram(16), options={"ram": 15})
    world.aspire("m", 1)
    world.settle()
    assert world.story("m", 1) == ["Start", "End(RESOURCE_EXHAUSTED)"]


def test_failing_load_ends_after_all_attempts() -> None:
    world = world_with(failures=-1, options={"max_num_load_retries": 2, "load_retry_interval": 10})
    world.aspire("m", 1)
    world.settle()
    for _ in range(5):
        world.clock.advance(10)
        world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "End(UNAVAILABLE)"]
    assert world.loader("m", 1).loads == 3
    assert world.loader("m", 1).unloads == 0


def test_load_that_succeeds_on_a_retry() -> None:
    world = world_with(failures=2)
    world.aspire("m", 1)
    for _ in range(3):
        world.settle()
        world.clock.advance(60)
    world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "Available"]


def test_error_that_is_not_to_be_retried_ends_after_one_attempt() -> None:
    options = {"should_retry_model_load": lambda status: status.code is not StatusCode.INVALID_ARGUMENT}
    world = world_with(failures=-1, failure=BAD, options=options)
    world.aspire("m", 1)
    world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "End(INVALID_ARGUMENT)"]
    assert (world.loader("m", 1).loads, world.clock.pending) == (1, 0)


def test_unaspired_while_loading_and_the_load_succeeds() -> None:
    world = ManagerWorld()
    world.aspire("m", 1)
    world.tick()
    world.loads.start()
    world.aspire("m")
    world.tick()
    world.loads.finish()
    assert world.ready("m") == []
    world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "End(CANCELLED)"]
    assert (world.loader("m", 1).loads, world.loader("m", 1).unloads) == (1, 1)
    assert world.state("m", 1) is None


def test_unaspired_while_loading_and_the_load_fails() -> None:
    world = world_with(failures=-1)
    world.aspire("m", 1)
    world.tick()
    world.loads.start()
    world.aspire("m")
    world.tick()
    world.loads.finish()
    world.settle()
    world.clock.advance(600)
    world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "End(UNAVAILABLE)"]
    assert (world.loader("m", 1).loads, world.loader("m", 1).unloads) == (1, 0)


def test_unaspired_while_waiting_for_a_retry_ends_at_once() -> None:
    world = world_with(failures=-1)
    world.aspire("m", 1)
    world.settle()
    assert world.state("m", 1) is HarnessState.LOADING
    world.aspire("m")
    world.tick()
    assert world.story("m", 1) == ["Start", "Loading", "End(UNAVAILABLE)"]
    world.clock.advance(600)
    world.settle()
    assert world.loader("m", 1).loads == 1


def test_unaspired_while_queued_ends_at_once_and_is_never_loaded() -> None:
    world = ManagerWorld()
    world.aspire("m", 1)
    world.tick()
    assert world.loads.queued == ["load {name: m version: 1}"]
    world.aspire("m")
    world.tick()
    assert world.story("m", 1) == ["Start", "End(CANCELLED)"]
    world.settle()
    assert world.loader("m", 1).loads == 0


def test_unaspired_while_new_ends_when_it_is_dropped() -> None:
    world = ManagerWorld()
    world.aspire("a", 1)
    world.aspire("m", 1)
    world.tick()  # the one action goes to a
    world.aspire("m")
    world.tick()
    world.tick()
    assert world.story("m", 1) == ["Start", "End(CANCELLED)"]
    assert world.state("m", 1) is None


def test_unaspired_while_it_waits_for_memory() -> None:
    world = ManagerWorld(ram=15, threads=2)
    world.loading[ServableId("a", 1)] = world.loading[ServableId("m", 1)] = {"estimate": main_ram(10)}
    world.aspire("a", 1)
    world.aspire("m", 1)
    world.tick()
    world.loads.start()
    world.tick()
    assert world.loads.start() is False  # parked
    world.aspire("m")
    world.tick()
    assert world.story("m", 1) == ["Start", "End(CANCELLED)"]
    world.loads.finish()
    world.settle()
    assert world.loader("m", 1).loads == 0


def test_errored_version_emitted_again_with_reload_on() -> None:
    options = {"enable_reload_servables_with_error": True, "max_num_load_retries": 0}
    world = world_with(failures=-1, options=options)
    world.aspire("m", 1)
    world.settle()
    world.loading.clear()
    world.aspire("m", 1)
    world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "End(UNAVAILABLE)", "Start", "Loading", "Available"]


def test_aspired_again_after_its_unload() -> None:
    world = ManagerWorld()
    for versions in ([1], [], [1]):
        world.aspire("m", *versions)
        world.settle()
    life = ["Start", "Loading", "Available"]
    assert world.story("m", 1) == [*life, "Unloading", "End", *life]


def test_ready_version_unloads_when_the_manager_closes() -> None:
    world = ManagerWorld()
    world.aspire("m", 1)
    world.settle()
    world.manager.close()
    assert world.story("m", 1) == ["Start", "Loading", "Available", "Unloading", "End"]


def test_handle_held_during_unload_delays_the_end_only() -> None:
    world = ManagerWorld()
    world.aspire("m", 1)
    world.settle()
    handle = world.manager.get_available_servable_handles()[ServableId("m", 1)]
    world.aspire("m")
    world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "Available", "Unloading"]
    assert handle.servable.alive
    handle.release()
    world.settle()
    assert world.story("m", 1)[-1] == "End"


@pytest.mark.parametrize(
    ("policy", "chronicle"),
    [
        ("availability", [("Start", 2), ("Loading", 2), ("Available", 2), ("Unloading", 1), ("End", 1)]),
        ("resource", [("Start", 2), ("Unloading", 1), ("End", 1), ("Loading", 2), ("Available", 2)]),
    ],
)
def test_upgrade_loads_and_unloads_in_the_order_of_its_policy(policy: str, chronicle: list[tuple[str, int]]) -> None:
    world = ManagerWorld(policy)
    world.aspire("m", 1)
    world.settle()
    world.events.clear()
    world.aspire("m", 2)
    world.settle()
    assert world.chronicle() == chronicle


def test_available_is_published_when_obtainable_and_before_ready_unloading_while_obtainable() -> None:
    world = ManagerWorld()
    seen = []

    def look(timed: object) -> None:
        event = timed.event
        if event.id.version == 1:
            seen.append((event.state.value, world.ready("m"), world.state("m", 1).value))

    world.bus.subscribe(look)
    world.aspire("m", 1)
    world.settle()
    world.aspire("m")
    world.settle()
    assert seen == [
        ("Start", [], "new"),
        ("Loading", [], "loading"),
        ("Available", [1], "loading"),
        ("Unloading", [1], "unload-requested"),
        ("End", [], "disabled"),
    ]


def test_end_comes_after_the_loader_has_unloaded() -> None:
    world = ManagerWorld()
    unloads_at_end = []
    world.bus.subscribe(
        lambda timed: timed.event.state.value == "End" and unloads_at_end.append(world.loader("m", 1).unloads)
    )
    for versions in ([1], []):
        world.aspire("m", *versions)
        world.settle()
    assert unloads_at_end == [1]
