"""Versions that failed and are loaded anew: after a repair, or when memory became free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfs_lite.core.resources import GroupMemory, main_ram
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

S = HarnessState
BAD = Status(StatusCode.INVALID_ARGUMENT, "not a model")
LIFE = ["Start", "Loading", "Available"]


# After a repair.


def fail(fixture: ManagerFixture, revision: str = "r1") -> None:
    fixture.loading[ServableId("m", 1)] = {"failures": -1, "failure": BAD}
    fixture.serve("m", 1, revision=revision)
    fixture.loading.clear()
    assert fixture.state("m", 1) is S.ERROR


@pytest.fixture
def once() -> ManagerFixture:
    """A fixture without retries."""
    return ManagerFixture(max_num_load_retries=0)


def test_error_with_the_same_revision_is_left_alone(once: ManagerFixture) -> None:
    fail(once)
    once.serve("m", 1, revision="r1")
    assert once.history("m", 1) == ["Start", "Loading", "End(INVALID_ARGUMENT)"]


def test_error_with_another_revision_is_loaded_anew(once: ManagerFixture) -> None:
    fail(once)
    once.serve("m", 1, revision="r2")
    assert once.history("m", 1) == ["Start", "Loading", "End(INVALID_ARGUMENT)", *LIFE]
    assert [loader.loads for loader in once.loaders[ServableId("m", 1)]] == [1, 1]


def test_other_files_end_the_wait_between_two_attempts() -> None:
    fixture = ManagerFixture(max_num_load_retries=5, load_retry_interval=60.0)
    fixture.loading[ServableId("m", 1)] = {"failures": -1, "failure": BAD}
    fixture.serve("m", 1, revision="half")
    fixture.loading.clear()
    fixture.serve("m", 1, revision="half")
    assert fixture.state("m", 1) is S.LOADING
    fixture.serve("m", 1, revision="whole")
    assert fixture.history("m", 1) == ["Start", "Loading", "End(INVALID_ARGUMENT)", *LIFE]
    fixture.clock.advance(600.0)
    fixture.settle()
    assert [loader.loads for loader in fixture.loaders[ServableId("m", 1)]] == [1, 0, 1]
    assert not fixture.violations()


def test_other_files_leave_an_attempt_that_runs_alone() -> None:
    fixture = ManagerFixture(max_num_load_retries=5)
    fixture.aspire("m", 1, revision="half")
    fixture.tick()
    fixture.loads.start()
    fixture.serve("m", 1, revision="whole")
    fixture.loads.finish()
    fixture.settle()
    assert fixture.history("m", 1) == LIFE


def fails_once_while(during: Callable[[], None]) -> dict[str, Any]:
    """A loader whose attempt sees ``during`` happen, and fails."""
    return {"failures": 1, "while_loading": during}


def test_files_that_change_while_an_attempt_runs_are_loaded_as_soon_as_it_has_failed() -> None:
    """However the version got there: its first attempt, or the one after a refusal."""
    fixture = ManagerFixture(max_num_load_retries=5, load_retry_interval=60.0)
    revisions = iter(["r2", "r3", "r4"])

    def change() -> None:
        one_more = next(revisions)
        if one_more == "r4":
            fixture.loading.clear()
        fixture.aspire("m", 1, revision=one_more)
        fixture.tick()

    fixture.loading[ServableId("m", 1)] = fails_once_while(change)
    fixture.serve("m", 1, revision="r1")
    assert fixture.ready("m") == [1]
    assert [loader.loads for loader in fixture.loaders[ServableId("m", 1)]] == [1, 1, 1, 1]
    assert not fixture.violations()


def test_of_several_changes_while_an_attempt_runs_the_last_one_counts() -> None:
    fixture = ManagerFixture(max_num_load_retries=5, load_retry_interval=60.0)
    fixture.loading[ServableId("m", 1)] = {"failures": 1}
    fixture.aspire("m", 1, revision="r1")
    fixture.tick()
    fixture.loading.clear()
    fixture.loads.start()
    for revision in ("r2", "r3", "r1"):
        fixture.aspire("m", 1, revision=revision)
        fixture.tick()
    fixture.loads.finish()
    fixture.settle()
    assert fixture.state("m", 1) is S.LOADING  # the files are those that it has failed with
    fixture.clock.advance(60.0)
    fixture.settle()
    assert fixture.ready("m") == [1]
    assert [loader.loads for loader in fixture.loaders[ServableId("m", 1)]] == [2, 0, 0, 0]


def test_version_that_is_not_wanted_any_more_does_not_begin_anew_because_its_files_had_changed() -> None:
    fixture = ManagerFixture(max_num_load_retries=5, load_retry_interval=60.0)
    fixture.loading[ServableId("m", 1)] = {"failures": -1}
    fixture.aspire("m", 1, revision="r1")
    fixture.tick()
    fixture.loads.start()
    fixture.aspire("m", 1, revision="r2")
    fixture.tick()
    fixture.aspire("m")
    fixture.tick()
    fixture.loads.finish()
    fixture.settle()
    assert fixture.state("m", 1) is None
    assert [loader.loads for loader in fixture.loaders[ServableId("m", 1)]] == [1, 0]


def test_files_that_change_while_an_attempt_runs_are_loaded_without_another_look_of_the_tick_thread() -> None:
    """The attempt that fails asks for the tick; nobody waits for the next one by itself."""
    asked: list[None] = []
    fixture = ManagerFixture(load_retry_interval=60.0, on_change=lambda: asked.append(None))
    fixture.loading[ServableId("m", 1)] = {"failures": 1}
    fixture.aspire("m", 1, revision="r1")
    fixture.tick()
    fixture.loads.start()
    asked.clear()
    fixture.loads.finish()
    assert asked


def test_repair_of_one_version_leaves_its_ready_sibling_alone(once: ManagerFixture) -> None:
    once.loading[ServableId("m", 1)] = {"failures": -1}
    once.serve("m", 1, 2, revision="r1")
    once.loading.clear()
    once.emit("m", [once.data("m", 1, "r2"), once.data("m", 2, "r1")])
    once.settle()
    assert (once.ready("m"), once.history("m", 2)) == ([1, 2], LIFE)


def test_errored_item_that_comes_back_healthy_is_loaded(once: ManagerFixture) -> None:
    once.emit("m", [ServableData.error(ServableId("m", 1), BAD, "r1")])
    once.settle()
    once.serve("m", 1, revision="r1")
    assert once.history("m", 1) == ["End(INVALID_ARGUMENT)", *LIFE]


def test_errored_item_that_comes_back_errored_is_left_alone(once: ManagerFixture) -> None:
    for _ in range(3):
        once.emit("m", [ServableData.error(ServableId("m", 1), BAD, "r1")])
        once.settle()
    assert once.history("m", 1) == ["End(INVALID_ARGUMENT)"]


def test_error_that_is_no_longer_aspired_is_dropped(once: ManagerFixture) -> None:
    fail(once)
    once.serve("m")
    assert once.state("m", 1) is None
    once.serve("m", 1, revision="r1")
    assert once.ready("m") == [1]


# When memory becomes free.


def full() -> ManagerFixture:
    """15 units: a has 10, the swap of m from 1 to 2 lacks room."""
    fixture = ManagerFixture(ram=15)
    sizes = {("a", 1): 10, ("m", 1): 2, ("m", 2): 10}
    for (name, version), size in sizes.items():
        fixture.loading[ServableId(name, version)] = {"estimate": main_ram(size)}
    fixture.aspire("a", 1)
    fixture.serve("m", 1)
    fixture.serve("m", 2)
    assert fixture.status("m", 2).code is StatusCode.RESOURCE_EXHAUSTED
    assert fixture.ready("m") == [1]
    return fixture


def test_version_that_lacked_memory_is_tried_again_when_another_model_was_unloaded() -> None:
    fixture = full()
    fixture.serve("a")
    assert fixture.ready("m") == [2]
    assert fixture.history("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)", *LIFE]
    assert fixture.history("m", 1) == [*LIFE, "Unloading", "End"]


def test_version_that_lacked_memory_is_not_tried_again_before_something_was_unloaded() -> None:
    fixture = full()
    for _ in range(3):
        fixture.serve("m", 2)
    assert fixture.history("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)"]


def test_version_that_still_lacks_memory_is_tried_once_per_unload() -> None:
    fixture = full()
    fixture.loading[ServableId("b", 1)] = {"estimate": main_ram(1)}
    for _ in range(2):
        fixture.serve("b", 1)
        fixture.serve("b")
        fixture.serve("m", 2)
    assert fixture.history("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)"] * 3
    assert fixture.ready("m") == [1]


def test_version_that_ran_out_of_memory_while_loading_is_tried_again_too() -> None:
    fixture = ManagerFixture(max_num_load_retries=0)
    fixture.serve("a", 1)
    assert fixture.ready("a") == [1]
    full_gpu = Status(StatusCode.RESOURCE_EXHAUSTED, "GPU 0 is full")
    fixture.loading[ServableId("m", 1)] = {"failures": 1, "failure": full_gpu}
    fixture.serve("m", 1)
    assert fixture.status("m", 1) == full_gpu
    fixture.serve("a")
    assert (fixture.ready("m"), fixture.loader("m", 1).loads) == ([1], 2)


def test_version_that_lacked_memory_and_is_not_wanted_any_more_is_not_tried_again() -> None:
    fixture = full()
    fixture.aspire("m", 1)
    fixture.serve("a")
    assert fixture.history("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)"]


def test_version_dropped_by_the_very_tick_that_could_try_it_again_is_dropped() -> None:
    fixture = full()
    fixture.aspire_and_tick("a")
    fixture.unloads.run_all()  # room now
    fixture.serve("m", 1)
    assert fixture.history("m", 2) == ["Start", "End(RESOURCE_EXHAUSTED)"]
    assert fixture.ready("m") == [1]


# In a control group, whose memory others take and give back.


class Group:
    """100 bytes, of which so many are held."""

    held = 60

    def __call__(self) -> GroupMemory:
        return GroupMemory(100, self.held)


def test_version_that_had_no_room_beside_a_burst_of_requests_is_tried_again_when_that_is_over() -> None:
    group = Group()
    fixture = ManagerFixture(ram=1000, group=group)
    fixture.loading[ServableId("m", 1)] = {"estimate": main_ram(50)}
    fixture.serve("m", 1)
    assert fixture.history("m", 1) == ["Start", "End(RESOURCE_EXHAUSTED)"]
    group.held = 51
    fixture.settle()
    assert fixture.history("m", 1) == ["Start", "End(RESOURCE_EXHAUSTED)"]
    group.held = 50
    fixture.settle()
    assert fixture.history("m", 1) == ["Start", "End(RESOURCE_EXHAUSTED)", *LIFE]


def test_load_that_itself_had_no_memory_is_not_tried_again_because_there_is_room() -> None:
    fixture = ManagerFixture(ram=1000, group=Group(), max_num_load_retries=0)
    full = Status(StatusCode.RESOURCE_EXHAUSTED, "the model wanted more than its files say")
    fixture.loading[ServableId("m", 1)] = {"estimate": main_ram(10), "failures": -1, "failure": full}
    fixture.serve("m", 1)
    fixture.settle()
    assert fixture.history("m", 1) == ["Start", "Loading", "End(RESOURCE_EXHAUSTED)"]


def test_new_version_waits_while_the_old_one_leaves_and_counts_what_it_gives_back() -> None:
    group = Group()
    group.held = 10
    fixture = ManagerFixture("resource", ram=1000, group=group)
    fixture.loading = {ServableId("m", version): {"estimate": main_ram(60)} for version in (1, 2)}
    fixture.serve("m", 1)
    group.held = 70
    fixture.aspire("m", 2)
    fixture.unloads.run_all()
    group.held = 10
    fixture.settle()
    assert fixture.ready("m") == [2]
