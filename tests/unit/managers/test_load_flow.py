"""Attempts, retries in virtual time, and cancelling at every moment."""

from __future__ import annotations

import re

import pytest

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.loader import FakeLoader

S = HarnessState
ID = ServableId("m", 1)
FATAL = Status(StatusCode.INVALID_ARGUMENT, "never")


def test_attempts_are_an_interval_apart_and_no_thread_waits(basic) -> None:
    loader = basic.request(1, FakeLoader(failures=2))
    for attempt in (1, 2):
        basic.loads.run_all()
        assert (loader.loads, basic.state(1), basic.loads.running) == (attempt, S.LOADING, [])
        basic.clock.advance(59)
        assert basic.loads.queued == []
        basic.clock.advance(1)
        assert len(basic.loads.queued) == 1
    basic.loads.run_all()
    assert (loader.loads, basic.state(1), basic.codes()) == (3, S.READY, ["load 1: OK"])
    assert basic.events == ["Start 1", "Loading 1", "Available 1"]


def test_broken_version_does_not_hold_up_a_healthy_one_on_a_single_thread(make_basic) -> None:
    basic = make_basic(threads=1)
    basic.manage(1, FakeLoader(failures=-1))
    basic.manage(2)
    basic.load(1)
    basic.load(2)
    basic.loads.run_all()
    assert (basic.state(1), basic.state(2)) == (S.LOADING, S.READY)


@pytest.mark.parametrize("interval", [0, -1])
def test_retries_without_interval_follow_at_once(make_basic, interval: float) -> None:
    basic = make_basic(load_retry_interval=interval, max_num_load_retries=3)
    loader = basic.load_now(1, FakeLoader(failures=-1))
    assert (loader.loads, basic.state(1), basic.clock.pending) == (4, S.ERROR, 0)


def test_no_retries_means_one_attempt(make_basic) -> None:
    basic = make_basic(max_num_load_retries=0)
    loader = basic.load_now(1, FakeLoader(failures=-1))
    assert (loader.loads, basic.codes()) == (1, ["load 1: UNAVAILABLE"])


def test_predicate_sees_each_failure_and_may_end_the_retries(make_basic) -> None:
    seen = []

    def should_retry(status: Status) -> bool:
        seen.append(status.code)
        return len(seen) < 2

    basic = make_basic(should_retry_model_load=should_retry, load_retry_interval=0)
    loader = basic.load_now(1, FakeLoader(failures=-1))
    assert (loader.loads, seen) == (2, [StatusCode.UNAVAILABLE] * 2)


def test_log_says_which_attempt_failed_of_how_many(make_basic, caplog) -> None:
    basic = make_basic(load_retry_interval=0, max_num_load_retries=1)
    basic.load_now(1, FakeLoader(failures=-1))
    assert tries(caplog) == ["attempt 1 of 2", "attempt 2 of 2"]


def test_each_failed_attempt_is_one_line_and_the_story_comes_with_the_first_of_its_kind(make_basic, caplog) -> None:
    caplog.set_level("INFO")
    failure = ServingError(StatusCode.FAILED_PRECONDITION, "no weights")
    failure.detail = "Traceback"

    class Telling(FakeLoader):
        def load(self, servable_id: ServableId) -> None:
            raise failure

    basic = make_basic(load_retry_interval=0, max_num_load_retries=2)
    basic.load_now(1, Telling())
    lines = [record for record in caplog.records if "no weights" in record.getMessage()]
    assert [record.story for record in lines] == ["Traceback", "", ""]


def test_log_does_not_promise_attempts_that_do_not_come(make_basic, caplog) -> None:
    basic = make_basic(should_retry_model_load=lambda status: status.code is not StatusCode.INVALID_ARGUMENT)
    basic.load_now(1, FakeLoader(failures=-1, failure=FATAL))
    assert tries(caplog) == ["attempt 1, not retried"]
    caplog.clear()
    basic.begin(2, FakeLoader(failures=-1))
    basic.manager.set_aspired(ServableId("m", 2), False)
    basic.loads.finish()
    assert tries(caplog) == ["attempt 1, not retried"]


def tries(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [found[1] for found in map(re.compile(r" failed \((.*?)\): ").search, caplog.messages) if found]


def test_predicate_that_refuses_unknown_does_not_cancel_a_good_load(make_basic) -> None:
    basic = make_basic(should_retry_model_load=lambda status: False)
    basic.make_ready(1)


def test_predicate_that_raises_ends_the_retries(make_basic, caplog) -> None:
    def broken(status: Status) -> bool:
        raise RuntimeError("mine")

    basic = make_basic(should_retry_model_load=broken)
    basic.load_now(1, FakeLoader(failures=-1))
    assert basic.codes() == ["load 1: UNAVAILABLE"]
    assert "should_retry_model_load failed" in caplog.text


def test_unexpected_exception_becomes_a_status_and_its_traceback_is_logged(make_basic, caplog) -> None:
    def crash() -> None:
        raise KeyError("weights")

    basic = make_basic(max_num_load_retries=0)
    basic.load_now(1, FakeLoader(while_loading=crash))
    assert basic.outcomes == [("load 1", Status(StatusCode.UNKNOWN, "KeyError: 'weights'"))]
    assert "Traceback" in caplog.text


def test_cancel_while_queued_ends_at_once(basic) -> None:
    loader = basic.request(1)
    basic.manager.set_aspired(ID, False)
    assert (basic.state(1), basic.codes()) == (S.ERROR, ["load 1: CANCELLED"])
    basic.loads.run_all()
    assert (loader.loads, basic.events, basic.codes()) == (0, ["Start 1", "End 1"], ["load 1: CANCELLED"])


def test_cancel_while_estimating_ends_at_once(make_basic) -> None:
    basic = make_basic(ram=15)

    class Cancelling(FakeLoader):
        def estimate_resources(self):
            basic.manager.set_aspired(ID, False)
            return super().estimate_resources()

    loader = basic.load_now(1, Cancelling())
    assert (loader.loads, basic.codes(), basic.state(1)) == (0, ["load 1: CANCELLED"], S.ERROR)


@pytest.mark.parametrize("worked", [False, True])
def test_cancel_while_the_attempt_runs_unloads_what_it_loaded(basic, worked: bool) -> None:
    loader = basic.begin(1)
    if worked:
        basic.loads.work()
    basic.manager.set_aspired(ID, False)
    assert basic.state(1) is S.LOADING
    basic.loads.finish()
    assert (basic.state(1), basic.outcomes, basic.manager.list_available_servable_ids()) == (S.UNLOADING, [], [])
    basic.unloads.run_all()
    assert (loader.loads, loader.unloads, basic.state(1)) == (1, 1, S.DISABLED)
    assert (basic.events, basic.codes()) == (["Start 1", "Loading 1", "End 1"], ["load 1: CANCELLED"])


def test_cancel_while_the_attempt_runs_makes_its_failure_the_last(basic) -> None:
    loader = basic.begin(1, FakeLoader(failures=-1))
    basic.manager.set_aspired(ID, False)
    basic.loads.finish()
    basic.clock.advance(600)
    basic.loads.run_all()
    assert (loader.loads, loader.unloads, basic.codes()) == (1, 0, ["load 1: UNAVAILABLE"])


def test_cancel_between_attempts_ends_at_once_with_the_last_failure(basic) -> None:
    loader = basic.load_now(1, FakeLoader(failures=-1, failure=FATAL))
    basic.manager.set_aspired(ID, False)
    assert basic.outcomes == [("load 1", FATAL)]
    basic.clock.advance(600)
    assert (basic.loads.queued, loader.loads) == ([], 1)


def test_cancel_of_a_queued_retry_ends_at_once(basic) -> None:
    loader = basic.load_now(1, FakeLoader(failures=1))
    basic.clock.advance(60)
    basic.manager.set_aspired(ID, False)
    basic.loads.run_all()
    assert (loader.loads, basic.codes()) == (1, ["load 1: UNAVAILABLE"])


def test_cancel_of_a_ready_version_changes_nothing(basic) -> None:
    basic.make_ready(1)
    basic.manager.set_aspired(ID, False)
    assert basic.state(1) is S.READY
    basic.unload_now(1)
    assert basic.codes()[-1] == "unload 1: OK"


def test_timer_of_an_ended_load_does_nothing_to_its_successor(basic) -> None:
    basic.load_now(1, FakeLoader(failures=-1))
    basic.manager.set_aspired(ID, False)
    basic.manager.stop_managing_servable(ID)
    successor = basic.request(1, FakeLoader(failures=1))
    basic.clock.advance(30)
    basic.loads.run_all()
    basic.clock.advance(30)  # the old timer is due, the new one is not
    basic.loads.run_all()
    assert successor.loads == 1
    basic.clock.advance(30)
    basic.loads.run_all()
    assert (successor.loads, basic.state(1)) == (2, S.READY)


def test_failing_estimate_is_retried_like_a_load(make_basic) -> None:
    basic = make_basic(ram=15)
    loader = basic.request(1, FakeLoader(estimate_failures=2))
    for _ in range(2):
        basic.loads.run_all()
        assert basic.state(1) is S.LOAD_REQUESTED
        basic.clock.advance(60)
    basic.loads.run_all()
    assert (basic.state(1), loader.loads) == (S.READY, 1)


def test_attempts_to_load_are_counted_apart_from_attempts_to_estimate(make_basic) -> None:
    basic = make_basic(ram=15, max_num_load_retries=2, load_retry_interval=0)
    loader = basic.load_now(1, FakeLoader(estimate_failures=2, failures=2))
    assert (basic.state(1), loader.loads) == (S.READY, 3)


def test_without_a_tracker_nothing_is_estimated(basic) -> None:
    loader = basic.load_now(1, FakeLoader(estimate_failures=-1))
    assert (basic.state(1), loader.estimates) == (S.READY, 0)


def test_inline_load_with_retries_ends_within_one_run(make_basic) -> None:
    basic = make_basic(load_executor=ManualExecutor(0), load_retry_interval=0)
    loader = basic.request(1, FakeLoader(failures=2))
    basic.manager.run_pending()
    assert (loader.loads, basic.state(1)) == (3, S.READY)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit("odd")], ids=repr)
@pytest.mark.parametrize("step", ["estimate", "load"])
def test_load_whose_code_wants_to_end_the_process_fails_with_what_it_raised(make_basic, step, error) -> None:
    class Ending(FakeLoader):
        def estimate_resources(self):
            if step == "estimate":
                raise error
            return super().estimate_resources()

        def load(self, servable_id: ServableId) -> None:
            raise error

    basic = make_basic(max_num_load_retries=0, ram=1000)
    basic.load_now(1, Ending())
    assert (basic.state(1), basic.codes()) == (S.ERROR, ["load 1: UNKNOWN"])
    assert basic.outcomes[-1][1].message.endswith(f"{type(error).__name__}: {error}")
