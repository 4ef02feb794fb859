"""Loads that compete for memory: who goes, who waits, who is woken, who is refused."""

from __future__ import annotations

import pytest

from tfs_lite.core.resources import GPU, MAIN, RAM, Resource, ResourceAllocation, ResourceUtil, main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.managers import reservations
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.testing.lifecycle.loader import FakeLoader

S = HarnessState


@pytest.fixture
def basic(make_basic):
    return make_basic(ram=15)


def make_sized_ready(basic, version: int, size: int, **loading):
    loader = basic.sized_now(version, size, **loading)
    assert basic.state(version) is S.READY
    return loader


def test_refusal_names_wanted_used_and_total(basic) -> None:
    make_sized_ready(basic, 1, 10)
    basic.sized_now(2, 6)
    asked, status = basic.outcomes[-1]
    assert (asked, status.code) == ("load 2", StatusCode.RESOURCE_EXHAUSTED)
    assert status.message == (
        "Insufficient resources to load servable {name: m version: 2}: main/0/ram_in_bytes wanted 6, used 10, total 15"
    )
    assert basic.events[-2:] == ["Start 2", "End 2"]


def test_what_never_fits_is_refused_although_something_is_in_flight(basic) -> None:
    basic.sized_begun(1, 10)
    basic.sized_begun(2, 16)
    assert (basic.state(1), basic.codes()) == (S.LOADING, ["load 2: RESOURCE_EXHAUSTED"])


def test_load_waits_for_an_unload_that_waits_for_a_handle(basic) -> None:
    make_sized_ready(basic, 1, 10)
    handle = basic.handle()
    basic.unload(1)
    basic.sized_now(2, 10)
    assert (basic.state(2), basic.loads.queued, basic.loads.running) == (S.LOAD_REQUESTED, [], [])
    handle.release()
    assert basic.state(2) is S.LOAD_REQUESTED  # memory counts until the unload has returned
    basic.unloads.start()
    basic.unloads.work()
    assert basic.state(2) is S.LOAD_REQUESTED
    basic.unloads.finish()
    assert basic.state(2) is S.LOAD_APPROVED
    basic.loads.run_all()
    assert basic.state(2) is S.READY
    assert basic.events[3:] == ["Unloading 1", "Start 2", "End 1", "Loading 2", "Available 2"]


def test_unload_is_decided_while_a_load_waits(basic) -> None:
    make_sized_ready(basic, 1, 10)
    basic.sized_begun(2, 5)
    basic.sized(3, 10)
    assert basic.loads.start() is False
    basic.unload(1)  # asked for after the load was parked
    basic.unloads.run_all()
    basic.loads.finish()
    basic.loads.run_all()
    assert basic.state(3) is S.READY


def test_waiting_load_is_refused_when_nothing_is_in_flight_any_more(basic) -> None:
    basic.sized_begun(1, 10)
    basic.sized_begun(2, 10)
    assert basic.state(2) is S.LOAD_REQUESTED
    basic.loads.finish()
    assert basic.codes() == ["load 1: OK", "load 2: RESOURCE_EXHAUSTED"]


@pytest.mark.parametrize(
    ("loading", "first"),
    [({"failures": -1}, S.ERROR), ({"estimate_after_load": main_ram(5)}, S.READY)],
    ids=["fails", "turns out smaller"],
)
def test_waiting_load_goes_when_the_one_before(make_basic, loading: dict, first: HarnessState) -> None:
    basic = make_basic(ram=15, max_num_load_retries=0)
    basic.sized_begun(1, 10, **loading)
    basic.sized_begun(2, 10)
    basic.loads.finish()
    basic.loads.run_all()
    assert (basic.state(1), basic.state(2)) == (first, S.READY)


def test_load_between_two_attempts_counts_as_in_flight_and_keeps_its_memory(basic) -> None:
    basic.sized_now(1, 10, failures=1)
    basic.sized_now(2, 10)
    assert (basic.state(1), basic.state(2)) == (S.LOADING, S.LOAD_REQUESTED)
    basic.manager.set_aspired(ServableId("m", 1), False)
    basic.loads.run_all()
    assert basic.state(2) is S.READY


def test_those_who_wait_are_served_in_order(basic) -> None:
    make_sized_ready(basic, 1, 15)
    handle = basic.handle()
    basic.unload(1)
    for version, size in ((2, 8), (3, 8), (4, 8)):
        basic.sized_now(version, size)
    handle.release()
    basic.unloads.run_all()
    assert [basic.state(version) for version in (2, 3, 4)] == [S.LOAD_APPROVED, S.LOAD_REQUESTED, S.LOAD_REQUESTED]


def test_small_load_goes_ahead_only_where_it_takes_no_place(basic) -> None:
    make_sized_ready(basic, 1, 10)
    handle = basic.handle()
    basic.unload(1)
    basic.sized(2, 12)  # waits for the ten
    basic.sized(3, 3)  # fits beside 2 later on
    basic.sized_now(4, 1)  # fits now, not beside 2 and 3
    assert [basic.state(version) for version in (2, 3, 4)] == [S.LOAD_REQUESTED, S.READY, S.LOAD_REQUESTED]
    handle.release()
    basic.unloads.run_all()
    basic.loads.run_all()
    assert [basic.state(version) for version in (2, 3, 4)] == [S.READY, S.READY, S.ERROR]


def test_cancelling_the_first_in_line_lets_the_next_go(basic) -> None:
    make_sized_ready(basic, 1, 8)
    handle = basic.handle()
    basic.unload(1)
    basic.sized(2, 14)
    basic.sized_now(3, 5)
    assert basic.state(3) is S.LOAD_REQUESTED
    basic.manager.set_aspired(ServableId("m", 2), False)
    basic.loads.run_all()
    assert (basic.state(2), basic.state(3)) == (S.ERROR, S.READY)
    assert "load 2: CANCELLED" in basic.codes()
    handle.release()


def test_approved_load_that_is_cancelled_in_the_queue_gives_its_memory_back(basic) -> None:
    make_sized_ready(basic, 1, 10)
    basic.unload(1)
    basic.sized_now(2, 10)
    basic.unloads.run_all()
    assert basic.state(2) is S.LOAD_APPROVED
    basic.manager.set_aspired(ServableId("m", 2), False)
    make_sized_ready(basic, 3, 15)
    assert basic.codes()[2:] == ["load 2: CANCELLED", "load 3: OK"]


def test_over_estimate_is_freed_after_the_load(basic) -> None:
    make_sized_ready(basic, 1, 15, estimate_after_load=main_ram(1))
    make_sized_ready(basic, 2, 14)


def test_estimate_that_fails_after_the_load_leaves_the_one_before(basic, caplog) -> None:
    loader = FakeLoader(estimate=main_ram(10))

    def break_estimates() -> None:
        loader.estimate_failures = -1

    loader.while_loading = break_estimates
    basic.load_now(1, loader)
    assert basic.state(1) is S.READY
    basic.sized_now(2, 6)
    assert basic.codes()[-1] == "load 2: RESOURCE_EXHAUSTED"
    assert "{name: m version: 1}: its memory is not known; the estimate from before the load stays" in caplog.text


def test_device_that_the_machine_does_not_have_fails_the_load(make_basic) -> None:
    basic = make_basic(ram=15, max_num_load_retries=0)
    basic.load_now(1, FakeLoader(estimate=ResourceAllocation({Resource("tpu", RAM): 1})))
    assert basic.codes() == ["load 1: INVALID_ARGUMENT"]
    assert "no device 'tpu'" in basic.outcomes[0][1].message


def test_gpu_that_is_not_chosen_yet_counts_on_every_gpu_until_the_load_names_it(make_basic) -> None:
    total = ResourceAllocation({Resource(GPU, RAM, 0): 16, Resource(GPU, RAM, 1): 16})
    tracker = ResourceTracker(ResourceUtil({MAIN: 1, GPU: 2}), total)
    basic = make_basic(resource_tracker=tracker)
    somewhere = ResourceAllocation({Resource(GPU, RAM): 12})
    placed = [ResourceAllocation({Resource(GPU, RAM, instance): 12}) for instance in (0, 1)]
    for version in (1, 2):
        basic.manage(version, FakeLoader(estimate=somewhere, estimate_after_load=placed[version - 1]))
        basic.load(version)
    basic.loads.start()
    basic.loads.start()
    assert (basic.state(1), basic.state(2)) == (S.LOADING, S.LOAD_REQUESTED)
    basic.loads.finish()
    basic.loads.run_all()
    assert basic.state(2) is S.READY


def test_memory_of_a_cancelled_load_counts_until_it_is_unloaded(basic) -> None:
    basic.sized_begun(1, 10)
    basic.manager.set_aspired(ServableId("m", 1), False)
    basic.loads.finish()
    basic.sized_now(2, 10)
    assert (basic.state(1), basic.state(2)) == (S.UNLOADING, S.LOAD_REQUESTED)
    basic.unloads.run_all()
    basic.loads.run_all()
    assert basic.state(2) is S.READY


def test_parked_loads_are_decided_again_only_when_room_may_have_come(basic, monkeypatch) -> None:
    make_sized_ready(basic, 1, 10)
    handle = basic.handle()
    basic.unload(1)
    for version in (2, 3, 4):
        basic.sized_now(version, 10)
    decided = []
    decide = reservations.decide
    monkeypatch.setattr(reservations, "decide", lambda *asked: decided.append(asked) or decide(*asked))
    for _ in range(5):
        basic.manager.set_num_load_threads(1)  # a change, but not of room
    assert decided == []
    handle.release()
    basic.unloads.run_all()
    basic.loads.run_all()
    assert basic.state(2) is S.READY
