"""The mechanism: what may be asked of which version, and what is answered."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.loader import FakeLoader

S = HarnessState
ID = ServableId("m", 1)
BAD = Status(StatusCode.DATA_LOSS, "half a file")


def test_managed_version_is_new_and_says_start(basic) -> None:
    basic.manage(1)
    assert (basic.state(1), basic.events) == (S.NEW, ["Start 1"])


def test_managing_an_id_twice_is_refused_and_the_first_stays(basic) -> None:
    first = basic.manage(1)
    second = FakeLoader()
    assert "already being managed" in refusal(basic.manage, 1, second, code=StatusCode.FAILED_PRECONDITION)
    basic.load(1)
    basic.loads.run_all()
    assert (first.loads, second.loads, basic.events) == (1, 0, ["Start 1", "Loading 1", "Available 1"])


def test_errored_item_is_managed_in_error_and_loading_it_reports_its_error(basic) -> None:
    basic.manager.manage_servable(ServableData.error(ID, BAD))
    assert (basic.state(1), basic.events) == (S.ERROR, ["End 1"])
    basic.load(1)
    basic.unload(1)
    assert basic.outcomes == [("load 1", BAD), ("unload 1", BAD)]
    assert basic.state(1) is S.ERROR


def test_unknown_version_is_not_found(basic) -> None:
    basic.load(7)
    basic.unload(7)
    basic.manager.set_aspired(ServableId("m", 7), False)
    assert basic.codes() == ["load 7: NOT_FOUND", "unload 7: NOT_FOUND"]
    assert "is not being managed" in basic.outcomes[0][1].message


def test_second_load_request_is_refused_and_the_first_goes_on(basic) -> None:
    basic.request(1)
    basic.load(1)
    assert basic.codes() == ["load 1: FAILED_PRECONDITION"]
    basic.loads.run_all()
    assert basic.codes()[1:] == ["load 1: OK"]
    basic.load(1)
    assert basic.codes()[2:] == ["load 1: FAILED_PRECONDITION"]


def test_only_ready_versions_can_be_unloaded_and_only_once(basic) -> None:
    basic.manage(1)
    basic.unload(1)
    basic.load(1)
    basic.unload(1)
    basic.loads.run_all()
    basic.unload(1)
    basic.unload_now(1)
    basic.unload(1)
    assert basic.codes() == [
        "unload 1: FAILED_PRECONDITION",
        "unload 1: FAILED_PRECONDITION",
        "load 1: OK",
        "unload 1: FAILED_PRECONDITION",
        "unload 1: OK",
        "unload 1: FAILED_PRECONDITION",
    ]


def test_done_is_called_after_the_last_event(basic) -> None:
    basic.manage(1)
    seen = []
    basic.manager.load_servable(ID, lambda status: seen.append(list(basic.events)))
    basic.loads.run_all()
    basic.manager.unload_servable(ID, lambda status: seen.append(list(basic.events)))
    basic.unloads.run_all()
    assert [events[-1] for events in seen] == ["Available 1", "End 1"]


def test_callback_that_raises_is_only_logged(basic, caplog) -> None:
    basic.manage(1)

    def broken(status: Status) -> None:
        raise RuntimeError("mine")

    basic.manager.load_servable(ID, broken)
    basic.loads.run_all()
    assert basic.state(1) is S.READY
    assert "callback of a load or unload failed" in caplog.text


@pytest.mark.parametrize("state", ["new", "error", "disabled"])
def test_resting_version_can_be_dropped(basic, state: str) -> None:
    basic.manage(1, FakeLoader(failures=1, failure=BAD) if state == "error" else None)
    if state != "new":
        basic.load(1)
        basic.loads.run_all()
        basic.manager.set_aspired(ID, False)
    if state == "disabled":
        basic.unload_now(1)
    assert basic.state(1).value == state
    basic.manager.stop_managing_servable(ID)
    assert basic.state(1) is None
    assert basic.events.count("End 1") == 1


def test_busy_or_unknown_version_cannot_be_dropped(basic) -> None:
    def refused() -> bool:
        with pytest.raises(ServingError) as raised:
            basic.manager.stop_managing_servable(ID)
        return raised.value.code is StatusCode.FAILED_PRECONDITION

    assert refused()
    basic.request(1)
    assert basic.state(1) is S.LOAD_REQUESTED
    assert refused()
    basic.loads.start()
    assert basic.state(1) is S.LOADING
    assert refused()
    basic.loads.finish()
    assert basic.state(1) is S.READY
    assert refused()
    handle = basic.handle()
    basic.unload(1)
    assert basic.state(1) is S.QUIESCING
    assert refused()
    handle.release()
    assert basic.state(1) is S.QUIESCED
    assert refused()
    basic.unloads.start()
    assert basic.state(1) is S.UNLOADING
    assert refused()


def test_dropped_version_may_be_managed_again_with_another_loader(basic) -> None:
    basic.make_ready(1)
    basic.unload_now(1)
    basic.manager.stop_managing_servable(ID)
    basic.make_ready(1)
    life = ["Start 1", "Loading 1", "Available 1"]
    assert basic.events == [*life, "Unloading 1", "End 1", *life]


def test_managed_versions_are_listed_in_order(basic) -> None:
    basic.manage(2)
    basic.manage(1)
    basic.manager.manage_servable(ServableData.ok(ServableId("a", 5), FakeLoader(), "r"))
    assert [s.id.version for s in basic.manager.get_managed_servable_state_snapshots("m")] == [1, 2]
    everything = basic.manager.get_managed_servable_state_snapshots()
    assert [str(found.id) for found in everything][:1] == ["{name: a version: 5}"]
    assert basic.manager.get_managed_servable_state_snapshots("x") == []
    assert basic.manager.get_managed_servable_state_snapshot(ServableId("x", 1)) is None


def test_version_is_served_from_available_to_unloading_only(basic) -> None:
    request = ModelRef("m", 1)

    def served() -> bool:
        try:
            basic.manager.get_servable_handle(request).release()
        except ServingError as error:
            return error.code is not StatusCode.NOT_FOUND
        return True

    basic.manage(1)
    answers = [served()]
    basic.load(1)
    basic.loads.start()
    basic.loads.work()
    answers.append(served())
    basic.loads.finish()
    answers.append(served())
    basic.unload(1)
    answers.append(served())
    basic.unloads.run_all()
    answers.append(served())
    assert answers == [False, False, True, False, False]


def test_available_handles_cover_every_ready_version_and_no_other(basic) -> None:
    basic.make_ready(2, 1)
    basic.manage(3)
    handles = basic.manager.get_available_servable_handles()
    assert [found.version for found in handles] == [1, 2]
    assert basic.manager.list_available_servable_ids() == list(handles)
    for handle in handles.values():
        handle.release()


def test_teardown_never_runs_on_the_thread_that_releases_the_last_handle(basic) -> None:
    basic.make_ready(1)
    handle = basic.handle()
    loaded = handle.servable
    basic.unload(1)
    assert basic.unloads.queued == []
    handle.release()
    assert (loaded.alive, basic.unloads.queued) == (True, ["unload {name: m version: 1}"])
    basic.unloads.run_all()
    assert not loaded.alive


def test_handle_of_another_version_holds_nothing_up(basic) -> None:
    basic.make_ready(1)
    with basic.handle():
        basic.make_ready(2)
        basic.unload_now(2)
        assert basic.state(2) is S.DISABLED


@pytest.mark.parametrize("error", [RuntimeError("stuck"), SystemExit(3), GeneratorExit()], ids=repr)
def test_unload_that_raises_is_logged_and_counts_as_unloaded(basic, caplog, error: BaseException) -> None:
    def fail() -> None:
        raise error

    basic.load_now(1, FakeLoader(while_unloading=fail))
    basic.unload_now(1)
    assert (basic.state(1), basic.codes()[-1]) == (S.DISABLED, "unload 1: OK")
    assert "counts as unloaded" in caplog.text


def test_loader_that_loads_nothing_has_failed(make_basic) -> None:
    class Empty(FakeLoader):
        servable = None

    basic = make_basic(max_num_load_retries=0)
    basic.load_now(1, Empty())
    assert basic.codes() == ["load 1: INTERNAL"]


def test_number_of_load_threads_can_be_changed(basic) -> None:
    basic.manager.set_num_load_threads(9)
    assert basic.loads.num_threads == 9


def test_works_without_an_event_bus(make_basic) -> None:
    basic = make_basic(event_bus=None)
    basic.make_ready(1)
    basic.manager.close()
    assert basic.events == []


def test_on_change_is_called_after_each_change(make_basic) -> None:
    told = []
    basic = make_basic(on_change=lambda: told.append(basic.state(1)))
    basic.make_ready(1)
    handle = basic.handle()
    basic.unload(1)
    handle.release()
    basic.unloads.run_all()
    assert {S.NEW, S.LOAD_REQUESTED, S.READY, S.QUIESCED, S.DISABLED} <= set(told)


def test_no_callback_runs_under_a_lock(make_basic) -> None:
    """Each of them asks the manager something; under a lock that would hang."""

    def ask(*_: object) -> None:
        basic.manager.get_managed_servable_state_snapshots()
        basic.manager.list_available_servable_ids()

    def retry(status: Status) -> bool:
        ask()
        return True

    basic = make_basic(ram=15, load_retry_interval=0, should_retry_model_load=retry, on_change=ask, threads=1)
    basic.bus.subscribe(ask)

    class Asking(FakeLoader):
        def estimate_resources(self):
            ask()
            return super().estimate_resources()

    loader = Asking(failures=1, while_loading=ask, while_unloading=ask)
    basic.manage(1, loader)
    basic.manager.load_servable(ID, ask)
    basic.loads.run_all()
    basic.manager.unload_servable(ID, ask)
    basic.unloads.run_all()
    basic.manager.stop_managing_servable(ID)
    assert (loader.loads, loader.unloads) == (2, 1)
