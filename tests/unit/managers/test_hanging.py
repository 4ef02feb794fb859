"""Loads and unloads that hang: who goes on, whose memory counts, and what is told. Virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.managers.harness import HarnessState, Overdue
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

S = HarnessState


def tick(fixture: ManagerFixture) -> None:
    """Until nothing is to be done but by the executors."""
    idle = 0
    while idle < 2:
        idle = 0 if fixture.tick() else idle + 1


def run(fixture: ManagerFixture, but: str) -> None:
    """Everything runs that the threads can run; the loads, or the unloads, of the model ``sick`` hang."""
    for _ in range(50):
        tick(fixture)
        for executor in (fixture.loads, fixture.unloads):
            while executor.can_start:
                executor.start()
            for index in reversed(range(len(executor.running))):
                if executor.running[index].startswith(f"{but} {{name: sick "):
                    executor.pass_time(index)
                else:
                    executor.finish(index)


@pytest.fixture
def overdue() -> list[tuple[ServableId, Overdue]]:
    return []


@pytest.mark.parametrize("policy", ["availability", "resource"])
def test_load_that_hangs_holds_up_no_other_model(policy: str, overdue: list[Any]) -> None:
    fixture = ManagerFixture(policy, on_overdue=lambda *told: overdue.append(told))
    fixture.serve("well", 1)
    fixture.aspire("sick", 1)
    fixture.aspire("well", 2)
    run(fixture, but="load")
    assert fixture.ready("well") == [2]
    assert fixture.state("sick", 1) is S.LOADING
    assert overdue == [(ServableId("sick", 1), Overdue.LOAD)]
    fixture.loads.finish()
    assert fixture.ready("sick") == [1]


@pytest.mark.parametrize("policy", ["availability", "resource"])
def test_unload_that_hangs_holds_up_no_other_model(policy: str, overdue: list[Any]) -> None:
    fixture = ManagerFixture(policy, on_overdue=lambda *told: overdue.append(told))
    for name in ("sick", "well"):
        fixture.serve(name, 1)
    for name in ("sick", "well"):
        fixture.aspire(name, 2)
    run(fixture, but="unload")
    assert fixture.ready("well") == [2]
    assert (fixture.state("well", 1), fixture.state("sick", 1)) == (None, S.UNLOADING)
    assert overdue[0] == (ServableId("sick", 1), Overdue.UNLOAD)
    fixture.unloads.finish()
    fixture.settle()
    assert fixture.history("sick", 1)[-2:] == ["Unloading", "End"]
    assert fixture.ready("sick") == [2]


def sized(**needs: int) -> ManagerFixture:
    fixture = ManagerFixture("resource", ram=10, max_num_load_retries=0)
    for name, size in needs.items():
        for version in (1, 2):
            fixture.loading[ServableId(name, version)] = {"estimate": main_ram(size)}
    return fixture


def test_others_do_not_queue_behind_memory_that_an_unload_does_not_give_back() -> None:
    """The successor waited for the memory of the version that hangs, and all others behind it, withdrawn already."""
    fixture = sized(sick=6, well=4)
    fixture.serve("sick", 1)
    fixture.serve("well", 1)
    fixture.aspire("sick", 2)
    fixture.aspire("well", 2)
    run(fixture, but="unload")
    assert fixture.ready("well") == [2]
    status = fixture.status("sick", 2)
    assert status is not None
    assert (fixture.state("sick", 2), status.code) == (S.ERROR, StatusCode.RESOURCE_EXHAUSTED)
    assert "used 6" in status.message  # what hangs is counted
    fixture.unloads.finish()
    fixture.settle()
    assert fixture.ready("sick") == [2]


def test_load_that_hangs_keeps_its_memory_and_lets_nobody_wait_for_it() -> None:
    fixture = sized(sick=6, big=6, well=4)
    fixture.aspire("sick", 1)
    run(fixture, but="load")
    fixture.aspire("big", 1)
    fixture.aspire("well", 1)
    run(fixture, but="load")
    assert (fixture.state("big", 1), fixture.ready("well")) == (S.ERROR, [1])
    fixture.aspire("sick")
    tick(fixture)
    fixture.loads.finish()
    fixture.settle()
    assert (fixture.ready("sick"), fixture.ready("big")) == ([], [1])


def test_close_does_not_wait_for_what_hangs() -> None:
    fixture = ManagerFixture()
    fixture.serve("sick", 1)
    fixture.aspire("sick")
    run(fixture, but="unload")
    before = fixture.clock.pending
    fixture.manager.close(drain_timeout=3600.0)  # waits in real time
    assert fixture.clock.pending == before


def test_no_other_version_is_withdrawn_while_one_waits_for_the_thread_that_unloads() -> None:
    """With the resource policy all others went dark, one after the other, behind the unload that hung."""
    fixture = ManagerFixture("resource")
    for name in "abc":
        fixture.serve(name, 1)
    for name in "abc":
        fixture.aspire(name, 2)
    tick(fixture)
    fixture.unloads.start()
    tick(fixture)
    assert fixture.unloads.queued == ["unload {name: b version: 1}"]
    assert fixture.ready("c") == [1]
    fixture.unloads.finish()
    fixture.settle()
    assert [fixture.ready(name) for name in "abc"] == [[2], [2], [2]]


@pytest.mark.parametrize("policy", ["availability", "resource"])
def test_request_that_never_ends_keeps_its_version_and_holds_up_no_successor(policy: str, overdue: list[Any]) -> None:
    """With the resource policy the model was dark for as long as one client held a request open."""
    fixture = ManagerFixture(policy, drain_patience=90.0, on_overdue=lambda *told: overdue.append(told))
    fixture.serve("sick", 1)
    handle = fixture.manager.get_servable_handle(ModelRef("sick"))
    fixture.serve("sick", 2)
    fixture.clock.advance(89.0)
    fixture.settle()
    assert (overdue, fixture.ready("sick")) == ([], [2] if policy == "availability" else [])
    fixture.clock.advance(2.0)
    fixture.settle()
    assert overdue == [(ServableId("sick", 1), Overdue.DRAIN)]
    assert (fixture.state("sick", 1), fixture.ready("sick")) == (S.QUIESCING, [2])
    assert fixture.manager.survey().versions[ServableId("sick", 1)].leaving == 1
    assert handle.servable is not None
    handle.release()
    fixture.settle()
    assert fixture.history("sick", 1)[-2:] == ["Unloading", "End"]


def test_load_is_refused_rather_than_parked_behind_a_request_that_never_ends() -> None:
    fixture = ManagerFixture("resource", ram=10, max_num_load_retries=0, drain_patience=90.0)
    for version in (1, 2):
        fixture.loading[ServableId("sick", version)] = {"estimate": main_ram(6)}
    fixture.serve("sick", 1)
    handle = fixture.manager.get_servable_handle(ModelRef("sick"))
    fixture.serve("sick", 2)
    fixture.clock.advance(91.0)
    fixture.settle()
    status = fixture.status("sick", 2)
    assert status is not None
    assert status.code is StatusCode.RESOURCE_EXHAUSTED
    handle.release()
    fixture.settle()
    assert fixture.ready("sick") == [2]


def test_version_that_has_drained_in_time_leaves_no_timer() -> None:
    fixture = ManagerFixture(drain_patience=90.0)
    fixture.serve("m", 1)
    before = fixture.clock.pending
    with fixture.manager.get_servable_handle(ModelRef("m")):
        fixture.serve("m", 2)
        assert fixture.clock.pending == before + 1
    assert fixture.clock.pending == before


def test_requests_inside_a_replaced_load_are_said_to_hang_until_they_end(make_basic) -> None:
    """The version answers all the while, by its new load."""
    overdue: list[Any] = []
    basic = make_basic(drain_patience=90.0, on_overdue=lambda *told: overdue.append(told))
    basic.make_ready(1)
    handle = basic.handle()
    basic.replace(1)
    basic.loads.run_all()
    basic.clock.advance(89)
    assert hangs_beside(basic) == []
    basic.clock.advance(2)
    assert hangs_beside(basic) == [(Overdue.DRAIN, 91.0)]
    assert overdue == [(ServableId("m", 1), Overdue.DRAIN)]
    assert not basic.manager.survey().versions[ServableId("m", 1)].state.is_overdue
    handle.release()
    assert hangs_beside(basic) == []


def test_a_load_that_is_to_take_a_place_is_said_to_hang(make_basic) -> None:
    basic = make_basic()
    basic.make_ready(1)
    basic.replace(1)
    basic.loads.start()
    basic.clock.advance(130)
    basic.loads.pass_time(0)
    assert hangs_beside(basic) == [(Overdue.LOAD, 130.0)]
    basic.loads.finish()
    assert hangs_beside(basic) == []


def hangs_beside(basic) -> list[tuple[Overdue, float]]:
    """The steps of other loads of version 1 that take longer than their bound, and for how long they go on."""
    view = basic.manager.survey()
    return [(step, view.now - since) for step, since in view.versions[ServableId("m", 1)].hangs_beside]
