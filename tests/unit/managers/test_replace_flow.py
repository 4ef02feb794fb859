"""A ready version is loaded anew and takes its own place: what serves meanwhile, what fails, what is left behind."""

from __future__ import annotations

import threading

import pytest

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.loader import FakeLoader

S = HarnessState
ID = ServableId("m", 1)
LIFE = ["Start 1", "Loading 1", "Available 1"]


def revision(basic) -> str:
    return basic.manager.get_managed_servable_state_snapshot(ID).revision


def test_new_load_takes_the_place_and_the_old_one_is_unloaded_without_an_event(basic) -> None:
    old = basic.load_now(1)
    new = basic.replace(1, revision="b")
    assert basic.handle().servable is old.servable
    basic.loads.run_all()
    assert basic.handle().servable is new.servable
    assert (basic.state(1), revision(basic), basic.codes()) == (S.READY, "b", ["load 1: OK", "replace 1: OK"])


def test_old_one_serves_its_handles_to_the_end(basic) -> None:
    old = basic.load_now(1)
    handle = basic.handle()
    basic.replace(1)
    basic.loads.run_all()
    basic.unloads.run_all()
    assert (old.unloads, handle.servable.alive) == (0, True)
    handle.release()
    basic.unloads.run_all()
    assert (old.unloads, basic.events) == (1, LIFE)


def test_replaced_version_is_unloaded_like_any_other(basic) -> None:
    basic.load_now(1)
    new = basic.replace(1)
    basic.loads.run_all()
    basic.unload_now(1)
    assert (new.unloads, basic.state(1), basic.events) == (1, S.DISABLED, [*LIFE, "Unloading 1", "End 1"])


def test_load_that_fails_leaves_the_old_one_serving(basic) -> None:
    old = basic.load_now(1)
    basic.replace(1, FakeLoader(failures=1, failure=Status(StatusCode.INVALID_ARGUMENT, "no such output")), "b")
    basic.loads.run_all()
    assert basic.outcomes[-1] == ("replace 1", Status(StatusCode.INVALID_ARGUMENT, "no such output"))
    assert (basic.handle().servable, revision(basic), basic.events) == (old.servable, "", LIFE)


def test_second_replacement_takes_the_place_of_the_first(basic) -> None:
    loaders = [basic.load_now(1), basic.replace(1)]
    basic.loads.run_all()
    loaders.append(basic.replace(1))
    basic.loads.run_all()
    basic.unloads.run_all()
    assert [loader.unloads for loader in loaders] == [1, 1, 0]
    assert basic.handle().servable is loaders[2].servable


def test_of_two_at_once_the_first_to_end_wins_and_the_other_is_unloaded(basic) -> None:
    basic.load_now(1)
    first, second = basic.replace(1), basic.replace(1)
    basic.loads.run_all()
    basic.unloads.run_all()
    assert (basic.handle().servable, first.unloads, second.loads) == (first.servable, 0, 0)
    assert sorted(basic.codes()[1:]) == ["replace 1: CANCELLED", "replace 1: OK"]


def test_only_ready_versions_are_replaced(basic) -> None:
    basic.replace(1)
    basic.manage(1)
    basic.replace(1)
    assert basic.codes() == ["replace 1: NOT_FOUND", "replace 1: FAILED_PRECONDITION"]


@pytest.mark.parametrize("when", ["queued", "loading"])
def test_version_that_is_withdrawn_meanwhile_is_not_replaced(basic, when: str) -> None:
    basic.load_now(1)
    new = basic.replace(1)
    if when == "loading":
        basic.loads.start()
    basic.manager.set_aspired(ID, False)
    basic.unload_now(1)
    if when == "loading":
        basic.loads.work()
        basic.loads.finish()
    basic.loads.run_all()
    basic.unloads.run_all()
    assert (basic.state(1), new.loads, new.unloads) == (S.DISABLED, *((1, 1) if when == "loading" else (0, 0)))
    assert (basic.codes()[-1], basic.events) == ("replace 1: CANCELLED", [*LIFE, "Unloading 1", "End 1"])


def test_memory_of_both_counts_until_the_old_one_is_unloaded(make_basic) -> None:
    basic = make_basic(ram=25)
    basic.sized_now(1, 10)
    handle = basic.handle()
    basic.replace(1, FakeLoader(estimate=main_ram(10)))
    basic.loads.run_all()
    basic.sized_now(2, 10)
    assert (basic.codes()[-1], basic.state(2)) == ("replace 1: OK", S.LOAD_REQUESTED)  # parked
    handle.release()
    basic.unloads.run_all()
    basic.loads.run_all()
    assert basic.state(2) is S.READY


def test_without_room_beside_what_serves_nothing_is_loaded(make_basic) -> None:
    basic = make_basic(ram=15)
    basic.sized_now(1, 10)
    new = basic.replace(1, FakeLoader(estimate=main_ram(10)))
    basic.loads.run_all()
    asked, status = basic.outcomes[-1]
    assert (asked, status.code, new.loads) == ("replace 1", StatusCode.RESOURCE_EXHAUSTED, 0)
    assert "wanted 10, used 10, total 15" in status.message


def test_memory_of_a_failed_replacement_is_free_again(make_basic) -> None:
    basic = make_basic(ram=20)
    basic.sized_now(1, 10)
    basic.replace(1, FakeLoader(estimate=main_ram(10), failures=1))
    basic.loads.run_all()
    basic.sized_now(2, 10)
    assert basic.state(2) is S.READY


def test_close_unloads_what_was_loaded_meanwhile(make_basic) -> None:
    basic = make_basic(load_executor=PoolExecutor("loads", 0), unload_executor=PoolExecutor("unloads", 0))
    old = basic.request(1)
    basic.manager.run_pending()
    new = basic.replace(1, FakeLoader(while_loading=lambda: basic.manager.close(0.0)))
    basic.manager.run_pending()
    basic.manager.run_pending()
    assert (old.unloads, new.loads, new.unloads, basic.codes()[-1]) == (1, 1, 1, "replace 1: CANCELLED")
    assert basic.events == [*LIFE, "Unloading 1", "End 1"]


def test_close_that_comes_before_the_load_cancels_it(basic) -> None:
    old, new = basic.load_now(1), basic.replace(1)
    basic.manager.close(0.0)
    basic.unloads.run_all()
    basic.loads.run_all()
    assert (old.unloads, new.loads, basic.codes()[-1]) == (1, 0, "replace 1: CANCELLED")


def test_readers_always_find_a_live_one_while_it_is_replaced_again_and_again(make_basic) -> None:
    clock, loads, unloads = SystemClock(), PoolExecutor("real-load", 2), PoolExecutor("real-unload", 2)
    basic = make_basic(clock=clock, load_executor=loads, unload_executor=unloads)
    first, available = FakeLoader(), threading.Event()
    basic.bus.subscribe(lambda timed: available.set() if timed.event.state is ManagerState.AVAILABLE else None)
    basic.request(1, first)
    assert available.wait(60)
    faults: list[str] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            with basic.handle() as handle:
                servable = handle.servable
                if not servable.alive or not handle.servable.alive:
                    faults.append("a dead servable was handed out")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    loaders = [first]
    for _ in range(200):
        done = threading.Event()
        loaders.append(FakeLoader())
        basic.manager.replace_servable(ServableData.ok(ID, loaders[-1]), lambda status, done=done: done.set())
        assert done.wait(60)
    over.set()
    for reader in readers:
        reader.join(60)
    basic.manager.close(60.0)
    clock.close()
    assert faults == []
    assert [(loader.loads, loader.unloads, loader.violations) for loader in loaders] == [(1, 1, [])] * len(loaders)
    assert basic.events == [*LIFE, "Unloading 1", "End 1"]
