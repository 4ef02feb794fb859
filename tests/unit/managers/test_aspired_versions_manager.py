"""Wishes and what becomes of them: lists, coalescing, versions that come back, ticks."""

from __future__ import annotations

import threading

import pytest

from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.servable import ServableData, ServableId, ServableRequest
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager, AspiredVersionsManagerOptions
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.policies import POLICIES, Action, ActionKind
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.loader import FakeLoader
from tfs_lite.testing.lifecycle.manager_fixture import ManagerWorld

S = HarnessState
BAD = Status(StatusCode.INVALID_ARGUMENT, "not a model")
LIFE = ["Start", "Loading", "Available"]


def serve(world: ManagerWorld, *versions: int, name: str = "m") -> None:
    world.aspire(name, *versions)
    world.settle()
    assert world.ready(name) == sorted(versions)


# Lists.


def test_manager_without_a_policy_is_refused() -> None:
    options = AspiredVersionsManagerOptions(
        clock=VirtualClock(), load_executor=ManualExecutor(), unload_executor=ManualExecutor(), policy=None
    )
    with pytest.raises(ServingError, match="needs a policy") as raised:
        AspiredVersionsManager(options)
    assert raised.value.code is StatusCode.INVALID_ARGUMENT


def test_list_does_nothing_until_the_next_tick(world: ManagerWorld) -> None:
    world.aspire("m", 1)
    assert world.manager.get_managed_servable_state_snapshots() == []
    world.tick()
    assert world.state("m", 1) is S.LOAD_REQUESTED


def test_empty_list_for_an_unknown_stream_does_nothing(world: ManagerWorld) -> None:
    world.aspire("m")
    assert world.settle() == []
    assert world.events == []


def test_newer_list_replaces_one_that_nobody_looked_at(world: ManagerWorld) -> None:
    world.aspire("m", 1)
    world.aspire("m", 2)
    world.settle()
    assert (world.story("m", 1), world.ready("m")) == ([], [2])


def test_unload_then_reload_within_one_tick_is_nothing(world: ManagerWorld) -> None:
    serve(world, 1)
    world.aspire("m")
    world.aspire("m", 1)
    assert world.settle() == []
    assert world.story("m", 1) == LIFE


def test_versions_of_one_list_are_taken_on_in_its_order(world: ManagerWorld) -> None:
    world.aspire("m", 3, 1, 2)
    world.tick()
    assert [version for text, version in world.chronicle() if text == "Start"] == [3, 1, 2]


def test_list_with_an_item_of_another_stream_is_dropped_whole(world: ManagerWorld, caplog) -> None:
    world.emit("m", [world.data("m", 1), world.data("other", 2)])
    assert world.settle() == []
    assert "names other streams" in caplog.text


def test_version_named_twice_counts_once(world: ManagerWorld, caplog) -> None:
    first, second = world.data("m", 1), world.data("m", 1)
    world.emit("m", [first, second])
    world.settle()
    assert (first.payload.loads, second.payload.loads) == (1, 0)
    assert "twice" in caplog.text


def test_loader_offered_for_a_version_that_is_managed_is_dropped(world: ManagerWorld) -> None:
    serve(world, 1)
    serve(world, 1)
    assert [loader.loads for loader in world.loaders[ServableId("m", 1)]] == [1, 0]


def test_ready_version_with_another_revision_goes_on_serving_and_is_logged_once(world, caplog) -> None:
    serve(world, 1)
    for _ in range(3):
        world.aspire("m", 1, revision="changed")
        world.settle()
    assert world.story("m", 1) == LIFE
    assert caplog.text.count("changed on disk while it is served") == 1


def test_erroneous_item_does_not_disturb_its_siblings(world: ManagerWorld) -> None:
    world.emit("m", [ServableData.error(ServableId("m", 3), BAD), world.data("m", 2), world.data("m", 1)])
    world.settle()
    assert (world.ready("m"), world.status("m", 3)) == ([1, 2], BAD)


def test_streams_do_not_delay_one_another(world: ManagerWorld) -> None:
    serve(world, 1, name="a")
    handle = world.manager.get_servable_handle(ServableRequest.latest("a"))
    world.aspire("a")
    world.settle()
    world.aspire("a", 1)  # waits for the handle
    serve(world, 1, name="b")
    assert world.state("a", 1) is S.QUIESCING
    handle.release()


def test_callback_does_nothing_once_the_manager_is_closed(world: ManagerWorld) -> None:
    world.manager.close()
    world.aspire("m", 1)
    world.tick()
    assert world.events == []


# Coming back.


def test_version_aspired_again_while_it_unloads_waits_for_the_old_incarnation(world: ManagerWorld) -> None:
    serve(world, 1)
    handle = world.manager.get_servable_handle(ServableRequest.latest("m"))
    world.aspire("m")
    world.settle()
    world.aspire("m", 1, 2)
    world.settle()
    assert world.story("m", 2) == []  # the whole list waits
    assert len(world.loaders[ServableId("m", 1)]) == 2
    handle.release()
    world.settle()
    assert world.ready("m") == [1, 2]
    assert world.story("m", 1) == [*LIFE, "Unloading", "End", *LIFE]
    assert [(one.loads, one.unloads) for one in world.loaders[ServableId("m", 1)]] == [(1, 1), (1, 0)]


def test_list_that_waits_can_still_be_replaced(world: ManagerWorld) -> None:
    serve(world, 1)
    handle = world.manager.get_servable_handle(ServableRequest.latest("m"))
    world.aspire("m")
    world.settle()
    world.aspire("m", 1)
    world.settle()
    world.aspire("m", 2)
    world.settle()
    assert (world.ready("m"), world.state("m", 1)) == ([2], S.QUIESCING)
    handle.release()
    world.settle()
    assert world.story("m", 1) == [*LIFE, "Unloading", "End"]


def test_ready_version_that_is_aspired_again_simply_stays(world: ManagerWorld) -> None:
    serve(world, 1)
    world.loading[ServableId("m", 2)] = {"failures": -1}
    world.aspire("m", 2)
    world.settle()
    world.aspire("m", 1)  # back from a broken upgrade
    world.settle()
    world.settle()
    assert (world.story("m", 1), world.ready("m")) == (LIFE, [1])
    assert world.state("m", 2) is None


def test_ready_version_in_the_newest_list_is_not_unloaded(world: ManagerWorld) -> None:
    serve(world, 1)
    world.aspire("m", 2)
    world.tick()
    world.loads.run_all()
    world.aspire("m", 1)  # before the tick that would unload 1
    assert [(action.kind.value, action.id.version) for action in world.settle()] == [("unload", 2)]
    assert world.story("m", 1) == LIFE


def test_version_aspired_again_while_its_cancelled_load_runs_waits_for_its_end(world: ManagerWorld) -> None:
    world.aspire("m", 1)
    world.tick()
    world.loads.start()
    world.aspire("m")
    world.tick()
    world.aspire("m", 1)
    world.tick()
    world.loads.finish()
    world.settle()
    assert world.story("m", 1) == ["Start", "Loading", "End(CANCELLED)", *LIFE]
    assert world.violations() == []


def test_version_dropped_from_the_queue_comes_back_although_a_long_load_holds_the_thread(
    world: ManagerWorld,
) -> None:
    world.aspire("a", 1)
    world.tick()
    world.loads.start()  # goes on and on
    world.aspire("m", 1)
    world.tick()
    world.aspire("m")
    world.tick()
    world.aspire("m", 1)
    world.tick()
    world.tick()
    assert world.state("m", 1) is S.LOAD_REQUESTED
    world.loads.finish()
    world.settle()
    assert world.story("m", 1) == ["Start", "End(CANCELLED)", *LIFE]


# The tick.


def test_one_action_a_tick_however_many_streams_there_are() -> None:
    world = ManagerWorld(threads=8)
    for name in "abcdefgh":
        world.aspire(name, 1)
    for expected in range(1, 9):
        world.tick()
        assert len(world.loads.queued) == expected
    assert world.tick() is None


def test_unloads_of_all_streams_go_before_loads() -> None:
    world = ManagerWorld(threads=8)
    serve(world, 1, name="z")
    world.aspire("a", 1)
    world.aspire("z")
    actions = world.settle()
    assert [(action.kind.value, action.id.name) for action in actions] == [("unload", "z"), ("load", "a")]


def test_policy_that_fails_on_one_stream_does_not_stop_the_others(caplog) -> None:
    class Moody:
        def next_action(self, snapshots):
            if snapshots[0].id.name == "bad":
                raise RuntimeError("no idea")
            return POLICIES["availability"].next_action(snapshots)

    world = ManagerWorld(Moody())
    world.aspire("bad", 1)
    world.aspire("good", 1)
    world.settle()
    assert (world.ready("bad"), world.ready("good")) == ([], [1])
    assert "the policy failed on bad" in caplog.text


def test_tick_returns_what_it_did(world: ManagerWorld) -> None:
    assert world.tick() is None
    world.aspire("m", 1)
    action = world.tick()
    assert (action.kind.value, action.id) == ("load", ServableId("m", 1))


def test_tick_thread_goes_on_by_itself_and_ends_with_close() -> None:
    names = [f"m{index}" for index in range(20)]
    others = set(threading.enumerate())
    world = ManagerWorld(
        tick_interval=3600.0, load_executor=PoolExecutor("load", 2), unload_executor=PoolExecutor("unload", 1)
    )
    world.manager.start()
    for name in names:
        world.aspire(name, 1)
    world.wait_for(ManagerState.AVAILABLE, *(ServableId(name, 1) for name in names))
    world.manager.close()
    assert "tfs-manager" not in [thread.name for thread in set(threading.enumerate()) - others]
    assert all(world.story(name, 1)[-1] == "End" for name in names)


def test_tick_thread_without_load_threads_loads_by_itself() -> None:
    world = ManagerWorld(
        tick_interval=3600.0, load_executor=PoolExecutor("load", 0), unload_executor=PoolExecutor("unload", 0)
    )
    world.manager.start()
    world.aspire("m", 1)
    world.wait_for(ManagerState.AVAILABLE, ServableId("m", 1))
    world.aspire("m")
    world.wait_for(ManagerState.END, ServableId("m", 1))
    world.manager.close()


def test_every_action_asks_for_the_next_tick_also_an_unload_that_waits_for_a_handle() -> None:
    changes: list[int] = []
    world = ManagerWorld(on_change=lambda: changes.append(1))
    world.aspire("m", 1)
    world.settle()
    with world.manager.get_servable_handle(ServableRequest.latest("m")):
        world.aspire("m")
        before = len(changes)
        assert world.tick() is not None
        assert len(changes) > before


def test_action_that_is_refused_does_not_ask_for_the_next_tick() -> None:
    class Stubborn:
        def next_action(self, snapshots):
            return Action(ActionKind.UNLOAD, ServableId("m", 99))

    changes: list[int] = []
    world = ManagerWorld(Stubborn(), on_change=lambda: changes.append(1))
    world.aspire("m", 1)
    world.tick()
    before = len(changes)
    assert world.tick() is not None
    assert len(changes) == before


def test_retry_reaches_a_manager_without_load_threads() -> None:
    world = ManagerWorld(load_executor=ManualExecutor(0))
    world.loading[ServableId("m", 1)] = {"failures": 1}
    world.aspire("m", 1)
    world.tick()
    world.clock.advance(60)
    world.tick()
    assert world.ready("m") == [1]


def test_loader_type_is_what_sources_emit(world: ManagerWorld) -> None:
    loader = FakeLoader()
    world.emit("m", [ServableData.ok(ServableId("m", 1), loader)])
    world.settle()
    with world.manager.get_servable_handle(ServableRequest.latest("m")) as handle:
        assert handle.servable is loader.servable
