"""Aspired lists and what becomes of them: coalescing, versions that come back, ticks."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.support.errors import refusal
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager, AspiredVersionsManagerOptions
from tfs_lite.managers.harness import HarnessState, LoaderHarness, ServableStateSnapshot
from tfs_lite.managers.policies import POLICIES, Action, ActionKind
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.loader import FakeLoader
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

S = HarnessState
BAD = Status(StatusCode.INVALID_ARGUMENT, "not a model")
LIFE = ["Start", "Loading", "Available"]


def serve(fixture: ManagerFixture, *versions: int, name: str = "m") -> None:
    fixture.serve(name, *versions)
    assert fixture.ready(name) == sorted(versions)


# Lists.


def test_manager_without_a_policy_is_refused() -> None:
    options = AspiredVersionsManagerOptions(
        clock=VirtualClock(), load_executor=ManualExecutor(), unload_executor=ManualExecutor(), policy=None
    )
    assert "needs a policy" in refusal(AspiredVersionsManager, options)


def test_list_does_nothing_until_the_next_tick(fixture: ManagerFixture) -> None:
    fixture.aspire("m", 1)
    assert fixture.manager.get_managed_servable_state_snapshots() == []
    fixture.tick()
    assert fixture.state("m", 1) is S.LOAD_REQUESTED


def test_empty_list_for_an_unknown_stream_does_nothing(fixture: ManagerFixture) -> None:
    fixture.aspire("m")
    assert fixture.settle() == []
    assert fixture.events == []


def test_newer_list_replaces_one_that_no_tick_has_seen(fixture: ManagerFixture) -> None:
    fixture.aspire("m", 1)
    fixture.serve("m", 2)
    assert (fixture.history("m", 1), fixture.ready("m")) == ([], [2])


def test_unload_then_reload_within_one_tick_is_nothing(fixture: ManagerFixture) -> None:
    serve(fixture, 1)
    fixture.aspire("m")
    fixture.aspire("m", 1)
    assert fixture.settle() == []
    assert fixture.history("m", 1) == LIFE


def test_versions_of_one_list_are_taken_on_in_its_order(fixture: ManagerFixture) -> None:
    fixture.aspire_and_tick("m", 3, 1, 2)
    assert [version for text, version in fixture.timeline() if text == "Start"] == [3, 1, 2]


def test_list_with_an_item_of_another_stream_is_dropped_whole(fixture: ManagerFixture, caplog) -> None:
    fixture.emit("m", [fixture.data("m", 1), fixture.data("other", 2)])
    assert fixture.settle() == []
    assert "names other streams" in caplog.text


def test_version_named_twice_counts_once(fixture: ManagerFixture, caplog) -> None:
    first, second = fixture.data("m", 1), fixture.data("m", 1)
    fixture.emit("m", [first, second])
    fixture.settle()
    assert (first.payload.loads, second.payload.loads) == (1, 0)
    assert "twice" in caplog.text


def test_loader_offered_for_a_version_that_is_managed_is_dropped(fixture: ManagerFixture) -> None:
    serve(fixture, 1)
    serve(fixture, 1)
    assert [loader.loads for loader in fixture.loaders[ServableId("m", 1)]] == [1, 0]


def test_ready_version_with_another_revision_goes_on_serving(fixture: ManagerFixture) -> None:
    serve(fixture, 1)
    fixture.serve("m", 1, revision="changed")
    assert fixture.history("m", 1) == LIFE


def test_erroneous_item_does_not_disturb_its_siblings(fixture: ManagerFixture) -> None:
    fixture.emit("m", [ServableData.error(ServableId("m", 3), BAD), fixture.data("m", 2), fixture.data("m", 1)])
    fixture.settle()
    assert (fixture.ready("m"), fixture.status("m", 3)) == ([1, 2], BAD)


def test_streams_do_not_delay_one_another(fixture: ManagerFixture) -> None:
    serve(fixture, 1, name="a")
    handle = fixture.manager.get_servable_handle(ModelRef("a"))
    fixture.serve("a")
    fixture.aspire("a", 1)  # waits for the handle
    serve(fixture, 1, name="b")
    assert fixture.state("a", 1) is S.QUIESCING
    handle.release()


def test_callback_does_nothing_once_the_manager_is_closed(fixture: ManagerFixture) -> None:
    fixture.manager.close()
    fixture.aspire_and_tick("m", 1)
    assert fixture.events == []


# Coming back.


def test_version_aspired_again_while_it_unloads_waits_for_the_old_incarnation(fixture: ManagerFixture) -> None:
    serve(fixture, 1)
    handle = fixture.manager.get_servable_handle(ModelRef("m"))
    fixture.serve("m")
    fixture.serve("m", 1, 2)
    assert fixture.history("m", 2) == []  # the whole list waits
    assert len(fixture.loaders[ServableId("m", 1)]) == 2
    handle.release()
    fixture.settle()
    assert fixture.ready("m") == [1, 2]
    assert fixture.history("m", 1) == [*LIFE, "Unloading", "End", *LIFE]
    assert [(one.loads, one.unloads) for one in fixture.loaders[ServableId("m", 1)]] == [(1, 1), (1, 0)]


def test_list_that_waits_can_still_be_replaced(fixture: ManagerFixture) -> None:
    serve(fixture, 1)
    handle = fixture.manager.get_servable_handle(ModelRef("m"))
    fixture.serve("m")
    fixture.serve("m", 1)
    fixture.serve("m", 2)
    assert (fixture.ready("m"), fixture.state("m", 1)) == ([2], S.QUIESCING)
    handle.release()
    fixture.settle()
    assert fixture.history("m", 1) == [*LIFE, "Unloading", "End"]


def test_version_that_a_waiting_list_lacks_does_not_begin_to_load() -> None:
    fixture = ManagerFixture("resource")
    serve(fixture, 1)
    fixture.aspire_and_tick("m", 2)
    fixture.unloads.start()
    fixture.aspire_and_tick("m", 1)  # waits for the old incarnation; 2 was deleted
    fixture.unloads.pass_time()  # no new version waits for this unload any more
    fixture.tick()
    assert (fixture.loads.queued, fixture.state("m", 2)) == ([], None)
    fixture.unloads.finish()
    fixture.settle()
    assert (fixture.ready("m"), fixture.history("m", 2)) == ([1], ["Start", "End(CANCELLED)"])


def test_ready_version_that_is_aspired_again_simply_stays(fixture: ManagerFixture) -> None:
    serve(fixture, 1)
    fixture.loading[ServableId("m", 2)] = {"failures": -1}
    fixture.serve("m", 2)
    fixture.aspire("m", 1)  # back from a broken upgrade
    fixture.settle()
    fixture.settle()
    assert (fixture.history("m", 1), fixture.ready("m")) == (LIFE, [1])
    assert fixture.state("m", 2) is None


def test_ready_version_in_the_newest_list_is_not_unloaded(fixture: ManagerFixture) -> None:
    serve(fixture, 1)
    fixture.aspire_and_tick("m", 2)
    fixture.loads.run_all()
    fixture.aspire("m", 1)  # before the tick that would unload 1
    assert [(action.kind.value, action.id.version) for action in fixture.settle()] == [("unload", 2)]
    assert fixture.history("m", 1) == LIFE


def test_version_aspired_again_while_its_cancelled_load_runs_waits_for_its_end(fixture: ManagerFixture) -> None:
    fixture.aspire_and_tick("m", 1)
    fixture.loads.start()
    fixture.aspire_and_tick("m")
    fixture.aspire_and_tick("m", 1)
    fixture.loads.finish()
    fixture.settle()
    assert fixture.history("m", 1) == ["Start", "Loading", "End(CANCELLED)", *LIFE]
    assert fixture.violations() == []


def test_version_dropped_from_the_queue_comes_back_although_a_long_load_holds_the_thread(fixture) -> None:
    fixture.aspire_and_tick("a", 1)
    fixture.loads.start()  # goes on and on
    fixture.aspire_and_tick("m", 1)
    fixture.aspire_and_tick("m")
    fixture.aspire_and_tick("m", 1)
    fixture.tick()
    assert fixture.state("m", 1) is S.LOAD_REQUESTED
    fixture.loads.finish()
    fixture.settle()
    assert fixture.history("m", 1) == ["Start", "End(CANCELLED)", *LIFE]


# The tick.


def test_one_action_a_tick_however_many_streams_there_are() -> None:
    fixture = ManagerFixture(threads=8)
    for name in "abcdefgh":
        fixture.aspire(name, 1)
    for expected in range(1, 9):
        fixture.tick()
        assert len(fixture.loads.queued) == expected
    assert fixture.tick() is None


def test_unloads_of_all_streams_go_before_loads() -> None:
    fixture = ManagerFixture(threads=8)
    serve(fixture, 1, name="z")
    fixture.aspire("a", 1)
    fixture.aspire("z")
    actions = fixture.settle()
    assert [(action.kind.value, action.id.name) for action in actions] == [("unload", "z"), ("load", "a")]


def test_policy_that_fails_on_one_stream_does_not_stop_the_others(caplog) -> None:
    class Moody:
        def next_action(self, snapshots):
            if snapshots[0].id.name == "bad":
                raise RuntimeError("no idea")
            return POLICIES["availability"].next_action(snapshots)

    fixture = ManagerFixture(Moody())
    fixture.aspire("bad", 1)
    fixture.serve("good", 1)
    assert (fixture.ready("bad"), fixture.ready("good")) == ([], [1])
    assert "the policy failed on bad" in caplog.text


def test_tick_returns_what_it_did(fixture: ManagerFixture) -> None:
    assert fixture.tick() is None
    fixture.aspire("m", 1)
    action = fixture.tick()
    assert (action.kind.value, action.id) == ("load", ServableId("m", 1))


def test_tick_thread_goes_on_by_itself_and_ends_with_close() -> None:
    names = [f"m{index}" for index in range(20)]
    others = set(threading.enumerate())
    fixture = ManagerFixture(
        tick_interval=3600.0, load_executor=PoolExecutor("load", 2), unload_executor=PoolExecutor("unload", 1)
    )
    fixture.manager.start()
    for name in names:
        fixture.aspire(name, 1)
    fixture.wait_for(ManagerState.AVAILABLE, *(ServableId(name, 1) for name in names))
    fixture.manager.close()
    assert "tfs-manager" not in [thread.name for thread in set(threading.enumerate()) - others]
    assert all(fixture.history(name, 1)[-1] == "End" for name in names)


def test_tick_thread_without_load_threads_loads_by_itself() -> None:
    fixture = ManagerFixture(
        tick_interval=3600.0, load_executor=PoolExecutor("load", 0), unload_executor=PoolExecutor("unload", 0)
    )
    fixture.manager.start()
    fixture.aspire("m", 1)
    fixture.wait_for(ManagerState.AVAILABLE, ServableId("m", 1))
    fixture.aspire("m")
    fixture.wait_for(ManagerState.END, ServableId("m", 1))
    fixture.manager.close()


def test_every_action_asks_for_the_next_tick_also_an_unload_that_waits_for_a_handle() -> None:
    changes: list[int] = []
    fixture = ManagerFixture(on_change=lambda: changes.append(1))
    fixture.serve("m", 1)
    with fixture.manager.get_servable_handle(ModelRef("m")):
        fixture.aspire("m")
        before = len(changes)
        assert fixture.tick() is not None
        assert len(changes) > before


def test_action_that_is_refused_does_not_ask_for_the_next_tick() -> None:
    class Stubborn:
        def next_action(self, snapshots):
            return Action(ActionKind.UNLOAD, ServableId("m", 99))

    changes: list[int] = []
    fixture = ManagerFixture(Stubborn(), on_change=lambda: changes.append(1))
    fixture.aspire_and_tick("m", 1)
    before = len(changes)
    assert fixture.tick() is not None
    assert len(changes) == before


def test_retry_reaches_a_manager_without_load_threads() -> None:
    fixture = ManagerFixture(load_executor=ManualExecutor(0))
    fixture.loading[ServableId("m", 1)] = {"failures": 1}
    fixture.aspire_and_tick("m", 1)
    fixture.clock.advance(60)
    fixture.tick()
    assert fixture.ready("m") == [1]


def test_loader_type_is_what_sources_emit(fixture: ManagerFixture) -> None:
    loader = FakeLoader()
    fixture.emit("m", [ServableData.ok(ServableId("m", 1), loader)])
    fixture.settle()
    with fixture.manager.get_servable_handle(ModelRef("m")) as handle:
        assert handle.servable is loader.servable


# Many models.


class CountingPolicy:
    """Notes which streams it is asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def next_action(self, snapshots: Sequence[ServableStateSnapshot]) -> Action | None:
        self.asked.append(snapshots[0].id.name)
        return POLICIES["availability"].next_action(snapshots)


def served_many(count: int) -> tuple[ManagerFixture, CountingPolicy]:
    policy = CountingPolicy()
    fixture = ManagerFixture(policy)
    for number in range(count):
        fixture.aspire(f"m{number:03}", 1)
    fixture.settle()
    return fixture, policy


def test_the_policy_is_asked_only_about_streams_that_have_changed() -> None:
    fixture, policy = served_many(50)
    policy.asked.clear()
    fixture.settle()
    assert policy.asked == []
    fixture.serve("m007", 2)
    assert fixture.ready("m007") == [2]
    assert set(policy.asked) == {"m007"}


def test_a_list_that_changes_nothing_asks_nobody() -> None:
    fixture, policy = served_many(3)
    policy.asked.clear()
    fixture.serve("m001", 1)
    assert policy.asked == []


def test_the_questions_for_many_models_grow_as_their_number_does() -> None:
    asked = {count: len(served_many(count)[1].asked) for count in (20, 40)}
    assert asked[40] <= 2 * asked[20] + 1


def test_a_tick_copies_the_versions_of_no_other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture, _ = served_many(50)
    copied: list[str] = []
    snapshot = LoaderHarness.snapshot

    def counted(harness: LoaderHarness) -> ServableStateSnapshot:
        copied.append(harness.id.name)
        return snapshot(harness)

    monkeypatch.setattr(LoaderHarness, "snapshot", counted)
    fixture.aspire("m007", 2)
    fixture.manager.tick()
    assert set(copied) == {"m007"}


def test_a_policy_that_fails_is_asked_again_at_the_next_tick() -> None:
    class Failing(CountingPolicy):
        def next_action(self, snapshots: Sequence[ServableStateSnapshot]) -> Action | None:
            action = super().next_action(snapshots)
            if len(self.asked) == 1:
                raise RuntimeError("no")
            return action

    fixture = ManagerFixture(Failing())
    fixture.aspire("m", 1)
    assert fixture.tick() is None
    fixture.settle()
    assert fixture.ready("m") == [1]
