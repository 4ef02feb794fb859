"""Loads that need other models first: parked without a failure, tried again when any version has become available."""

from __future__ import annotations

import logging

import pytest

from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.loader import FakeLoader

S = HarnessState
WAITS = "waits for model other"


class Dependent(FakeLoader):
    """Loads once all ``needs`` are available in the manager of ``basic``."""

    def __init__(self, basic, *needs: int, **loading) -> None:
        super().__init__(while_loading=self._look, **loading)
        self._basic = basic
        self._needs = {ServableId("m", version) for version in needs}

    def _look(self) -> None:
        if not self._needs <= set(self._basic.manager.list_available_servable_ids()):
            raise ServingError(StatusCode.UNAVAILABLE, WAITS, Reason.WAITS_FOR_MODELS)


def test_load_waits_without_using_up_attempts_or_threads(make_basic) -> None:
    basic = make_basic(threads=1, max_num_load_retries=0)
    loader = basic.load_now(9, Dependent(basic, 1, 2, 3))
    for version in (1, 2):
        assert (basic.state(9), basic.loads.running, basic.loads.queued) == (S.LOADING, [], [])
        assert basic.clock.pending == 0
        basic.make_ready(version)
    assert (basic.state(9), loader.loads) == (S.LOADING, 3)
    basic.make_ready(3)
    assert (basic.state(9), loader.loads) == (S.READY, 4)
    assert "load 9: OK" in basic.codes()
    assert [event for event in basic.events if event.endswith(" 9")] == ["Start 9", "Loading 9", "Available 9"]
    assert loader.violations == []


def test_model_that_comes_during_the_attempt_is_not_missed(basic) -> None:
    loader = basic.manage(9, Dependent(basic, 1))
    basic.manage(1)
    basic.load(9)
    basic.load(1)
    assert basic.loads.start()
    basic.loads.work()  # it has looked, and not found it
    assert basic.loads.start()
    basic.loads.finish(1)
    assert basic.state(1) is S.READY
    basic.loads.finish(0)
    basic.loads.run_all()
    assert (basic.state(9), loader.loads) == (S.READY, 2)


def test_nothing_is_tried_again_before_something_has_changed(basic) -> None:
    loader = basic.load_now(9, Dependent(basic, 1))
    basic.clock.advance(10_000)
    basic.load_now(2, FakeLoader(failures=-1))
    assert (loader.loads, basic.state(9)) == (1, S.LOADING)


def test_all_that_wait_are_tried_again(basic) -> None:
    for version in (7, 8, 9):
        basic.manage(version, Dependent(basic, 1))
        basic.load(version)
    basic.loads.run_all()
    basic.make_ready(1)
    assert {basic.state(version) for version in (7, 8, 9)} == {S.READY}


def test_those_that_wait_for_one_another_come_in_turn(basic) -> None:
    basic.manage(9, Dependent(basic, 8))
    basic.manage(8, Dependent(basic, 7))
    basic.manage(7, Dependent(basic, 1))
    for version in (9, 8, 7):
        basic.load(version)
    basic.loads.run_all()
    basic.make_ready(1)
    assert [event for event in basic.events if event.startswith("Available")] == [
        "Available 1",
        "Available 7",
        "Available 8",
        "Available 9",
    ]


def test_other_failures_of_the_load_count_as_ever(make_basic) -> None:
    basic = make_basic(max_num_load_retries=1, load_retry_interval=0)
    loader = basic.load_now(9, Dependent(basic, 1, failures=2))
    assert basic.state(9) is S.LOADING
    basic.make_ready(1)
    assert (basic.state(9), loader.loads) == (S.ERROR, 3)
    assert "load 9: UNAVAILABLE" in basic.codes()


def test_same_code_without_the_reason_is_a_failure(make_basic) -> None:
    basic = make_basic(max_num_load_retries=0)
    basic.load_now(9, FakeLoader(failures=1, failure=Status(StatusCode.UNAVAILABLE, WAITS)))
    assert basic.state(9) is S.ERROR


@pytest.mark.parametrize("close", [False, True], ids=["cancelled", "closed"])
def test_waiting_load_ends_with_what_it_waits_for(basic, close: bool) -> None:
    loader = basic.load_now(9, Dependent(basic, 1))
    if close:
        basic.manager.close()
    else:
        basic.manager.set_aspired(ServableId("m", 9), False)
    assert basic.state(9) is S.ERROR
    assert basic.outcomes == [("load 9", Status(StatusCode.UNAVAILABLE, WAITS, Reason.WAITS_FOR_MODELS))]
    if not close:
        basic.make_ready(1)
    assert (loader.loads, basic.loads.queued) == (1, [])


def test_load_that_was_cancelled_during_its_attempt_does_not_wait(basic) -> None:
    basic.begin(9, Dependent(basic, 1))
    basic.manager.set_aspired(ServableId("m", 9), False)
    basic.loads.finish()
    assert basic.state(9) is S.ERROR


def test_load_that_waits_for_models_does_not_keep_others_parked(make_basic) -> None:
    basic = make_basic(ram=15)
    basic.begin(9, Dependent(basic, 1, estimate=main_ram(10)))
    basic.sized(2, 10)
    assert not basic.loads.start()
    assert basic.state(2) is S.LOAD_REQUESTED  # parked: what is loading may turn out smaller
    basic.loads.finish()
    assert (basic.state(9), basic.state(2)) == (S.LOADING, S.ERROR)
    assert "load 2: RESOURCE_EXHAUSTED" in basic.codes()
    basic.sized_now(3, 10)
    assert basic.state(3) is S.ERROR


def test_wait_is_logged_once_and_not_as_a_failure(basic, caplog) -> None:
    caplog.set_level(logging.INFO, "tfs_lite.managers")
    basic.load_now(9, Dependent(basic, 1, 2, 3))
    basic.make_ready(1)
    basic.make_ready(2)
    about = [record for record in caplog.records if WAITS in record.getMessage()]
    assert [record.levelno for record in about] == [logging.INFO]


def test_version_that_is_served_stays_while_its_successor_waits(fixture) -> None:
    def look() -> None:
        if not fixture.ready("other"):
            raise ServingError(StatusCode.UNAVAILABLE, WAITS, Reason.WAITS_FOR_MODELS)

    fixture.serve("m", 1)
    fixture.loading[ServableId("m", 2)] = {"while_loading": look}
    fixture.serve("m", 2)
    assert (fixture.ready("m"), fixture.state("m", 2)) == ([1], S.LOADING)
    fixture.serve("other", 5)
    assert (fixture.ready("m"), fixture.ready("other")) == ([2], [5])
    assert fixture.history("m", 2) == ["Start", "Loading", "Available"]
    assert fixture.violations() == []


def test_version_that_waits_and_is_not_wanted_any_more_ends(fixture) -> None:
    def look() -> None:
        raise ServingError(StatusCode.UNAVAILABLE, WAITS, Reason.WAITS_FOR_MODELS)

    fixture.loading[ServableId("m", 1)] = {"while_loading": look}
    fixture.serve("m", 1)
    fixture.serve("m")
    assert fixture.state("m", 1) is None
    assert fixture.history("m", 1) == ["Start", "Loading", "End(UNAVAILABLE)"]
