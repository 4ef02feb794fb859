"""Loads that need room in a cluster first: parked without a failure, tried again when they are woken."""

from __future__ import annotations

import logging

import pytest

from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.loader import FakeLoader

S = HarnessState
WAITS = "waits for 1 of 3 replicas: num_gpus 1; free 0.5 on gpu-a"
WAITING = Status(StatusCode.UNAVAILABLE, WAITS, Reason.WAITS_FOR_PLACE)
M9 = ServableId("m", 9)


class Placed(FakeLoader):
    """Loads once ``has_room``."""

    def __init__(self, has_room: bool = False, **loading) -> None:
        super().__init__(while_loading=self._look, **loading)
        self.has_room = has_room

    def _look(self) -> None:
        if not self.has_room:
            raise ServingError(WAITING.code, WAITING.message, WAITING.reason)


def test_load_waits_without_using_up_attempts_threads_or_time(make_basic) -> None:
    basic = make_basic(threads=1, max_num_load_retries=0)
    loader = basic.load_now(9, Placed())
    for loads in (2, 3, 4):
        assert (basic.state(9), basic.loads.running, basic.loads.queued, basic.clock.pending) == (S.LOADING, [], [], 0)
        basic.manager.wake(M9)
        basic.loads.run_all()
        assert loader.loads == loads
    loader.has_room = True
    basic.manager.wake(M9)
    basic.loads.run_all()
    assert (basic.state(9), loader.loads, basic.codes()) == (S.READY, 5, ["load 9: OK"])
    assert [event for event in basic.events if event.endswith(" 9")] == ["Start 9", "Loading 9", "Available 9"]
    assert loader.violations == []


def test_nothing_is_tried_again_before_it_is_woken(basic) -> None:
    loader = basic.load_now(9, Placed())
    basic.clock.advance(10_000)
    basic.make_ready(1)
    basic.unload_now(1)
    assert (loader.loads, basic.state(9)) == (1, S.LOADING)


def test_neighbours_load_meanwhile(make_basic) -> None:
    basic = make_basic(threads=1)
    basic.request(9, Placed())
    basic.request(1)
    basic.request(2)
    basic.loads.run_all()
    assert [basic.state(version) for version in (9, 1, 2)] == [S.LOADING, S.READY, S.READY]


def test_change_during_the_attempt_is_not_missed(basic) -> None:
    loader = basic.begin(9, Placed())
    basic.loads.work()  # it has looked, and there was no room
    loader.has_room = True
    basic.manager.wake(M9)
    basic.loads.finish()
    basic.loads.run_all()
    assert (basic.state(9), loader.loads) == (S.READY, 2)


def test_change_before_the_attempt_counts_for_no_other(basic) -> None:
    loader = basic.request(9, Placed())
    basic.manager.wake(M9)
    basic.loads.run_all()
    assert (basic.state(9), loader.loads) == (S.LOADING, 1)


@pytest.mark.parametrize("times", [2, 5])
def test_several_changes_lead_to_one_attempt(basic, times: int) -> None:
    loader = basic.load_now(9, Placed())
    for _ in range(times):
        basic.manager.wake(M9)
    basic.loads.run_all()
    assert loader.loads == 2


def test_others_are_not_touched(basic) -> None:
    def look() -> None:
        raise ServingError(StatusCode.UNAVAILABLE, "waits for model other", Reason.WAITS_FOR_MODELS)

    for_models = basic.load_now(8, FakeLoader(while_loading=look))
    for_retry = basic.load_now(7, FakeLoader(failures=1))
    basic.make_ready(1)
    loads = for_models.loads
    for version in (1, 7, 8, 9):
        basic.manager.wake(ServableId("m", version))
    basic.loads.run_all()
    assert (for_models.loads, for_retry.loads) == (loads, 1)


def test_a_model_that_becomes_available_makes_no_room(basic) -> None:
    loader = basic.load_now(9, Placed())
    basic.make_ready(1)
    assert loader.loads == 1


def test_other_failures_of_the_load_count_as_ever(make_basic) -> None:
    basic = make_basic(max_num_load_retries=1, load_retry_interval=0)
    loader = basic.load_now(9, Placed(failures=2))
    loader.has_room = True
    basic.manager.wake(M9)
    basic.loads.run_all()
    assert (basic.state(9), loader.loads) == (S.ERROR, 3)
    assert "load 9: UNAVAILABLE" in basic.codes()


@pytest.mark.parametrize("close", [False, True], ids=["cancelled", "closed"])
def test_waiting_load_ends_with_what_it_waits_for(basic, close: bool) -> None:
    loader = basic.load_now(9, Placed())
    if close:
        basic.manager.close()
    else:
        basic.manager.set_aspired(M9, False)
    assert (basic.state(9), basic.outcomes) == (S.ERROR, [("load 9", WAITING)])
    basic.manager.wake(M9)
    assert (loader.loads, basic.loads.queued) == (1, [])


def test_load_that_was_cancelled_during_its_attempt_does_not_wait(basic) -> None:
    basic.begin(9, Placed())
    basic.manager.set_aspired(M9, False)
    basic.manager.wake(M9)
    basic.loads.finish()
    assert (basic.state(9), basic.loads.queued) == (S.ERROR, [])


def test_load_that_waits_does_not_keep_others_parked(make_basic) -> None:
    basic = make_basic(ram=15)
    basic.begin(9, Placed(estimate=main_ram(10)))
    basic.sized(2, 10)
    assert not basic.loads.start()
    assert basic.state(2) is S.LOAD_REQUESTED  # parked: what is loading may turn out smaller
    basic.loads.finish()
    assert (basic.state(9), basic.state(2)) == (S.LOADING, S.ERROR)


def test_wait_is_logged_once_and_not_as_a_failure(basic, caplog) -> None:
    caplog.set_level(logging.INFO, "tfs_lite.managers")
    basic.load_now(9, Placed())
    basic.manager.wake(M9)
    basic.loads.run_all()
    about = [record for record in caplog.records if WAITS in record.getMessage()]
    assert [record.levelno for record in about] == [logging.INFO]


def test_version_that_is_served_stays_while_its_successor_waits(fixture) -> None:
    room = []

    def look() -> None:
        if not room:
            raise ServingError(WAITING.code, WAITING.message, WAITING.reason)

    fixture.serve("m", 1)
    fixture.loading[ServableId("m", 2)] = {"while_loading": look}
    fixture.serve("m", 2)
    assert (fixture.ready("m"), fixture.state("m", 2)) == ([1], S.LOADING)
    fixture.serve("other", 5)
    assert (fixture.ready("m"), fixture.ready("other")) == ([1], [5])
    room.append("gpu-a")
    fixture.manager.wake(ServableId("m", 2))
    fixture.settle()
    assert fixture.ready("m") == [2]
    assert fixture.history("m", 2) == ["Start", "Loading", "Available"]
    assert fixture.violations() == []


def test_version_that_waits_and_is_not_wanted_any_more_ends(fixture) -> None:
    def look() -> None:
        raise ServingError(WAITING.code, WAITING.message, WAITING.reason)

    fixture.loading[ServableId("m", 1)] = {"while_loading": look}
    fixture.serve("m", 1)
    fixture.serve("m")
    assert fixture.state("m", 1) is None
    assert fixture.history("m", 1) == ["Start", "Loading", "End(UNAVAILABLE)"]
