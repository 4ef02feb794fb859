"""The end of a manager: what is unloaded, what is waited for, what is left to its users."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.core.threads import left_behind
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.loader import FakeLoader

S = HarnessState
ID = ServableId("m", 1)


def in_thread(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> None:
    """Waits for a state that another thread brings about."""
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came about")


@pytest.fixture
def make_real(make_basic) -> Iterator[Callable[[int], Any]]:
    """Managers with real time and real threads, which end with the test."""
    to_end: list[Callable[[], None]] = []

    def make(threads: int) -> Any:
        clock, loads, unloads = SystemClock(), PoolExecutor("real-load", threads), PoolExecutor("real-unload", threads)
        to_end.extend([loads.shutdown, unloads.shutdown, clock.close])
        return make_basic(clock=clock, load_executor=loads, unload_executor=unloads)

    yield make
    for end in to_end:
        end()


def is_closing(basic) -> bool:
    """A manager that is closing refuses every load; before, an unknown version is not found."""
    answers = []
    basic.manager.load_servable(ServableId("unknown", 1), answers.append)
    return answers[0].code is StatusCode.FAILED_PRECONDITION


def test_everything_ready_is_unloaded_in_order(basic) -> None:
    basic.make_ready(2, 1)
    basic.events.clear()
    basic.manager.close()
    assert basic.events == ["Unloading 1", "Unloading 2", "End 1", "End 2"]
    assert (basic.state(1), basic.state(2)) == (S.DISABLED, S.DISABLED)


def test_new_and_queued_and_waiting_versions_end(make_basic) -> None:
    basic = make_basic(threads=1)
    retried = basic.load_now(1, FakeLoader(failures=-1))
    basic.request(2)
    basic.manage(3)
    basic.manager.close(60)  # no handle is live and no load runs: nothing to wait for
    assert [event for event in basic.events if event.startswith("End")] == ["End 1", "End 2", "End 3"]
    assert basic.codes() == ["load 1: UNAVAILABLE", "load 2: CANCELLED"]
    basic.clock.advance(600)
    assert retried.loads == 1


def test_closing_twice_is_closing_once(basic) -> None:
    basic.make_ready(1)
    basic.manager.close()
    basic.manager.close()
    assert basic.events.count("End 1") == 1


def test_nothing_can_be_asked_of_a_closed_manager(basic) -> None:
    basic.make_ready(1)
    basic.manager.close()
    assert "shutting down" in refusal(basic.manage, 2, code=StatusCode.FAILED_PRECONDITION)
    basic.load(1)
    assert basic.outcomes[-1][1].code is StatusCode.FAILED_PRECONDITION
    refusal(basic.manager.get_servable_handle, ModelRef("m"), code=StatusCode.NOT_FOUND)


def test_version_in_use_is_never_unloaded_under_its_user(basic) -> None:
    basic.make_ready(1, 2)
    handle = basic.manager.get_servable_handle(ModelRef("m", 1))
    basic.manager.close(0)
    assert handle.servable.alive
    assert basic.events[-2:] == ["Unloading 1", "Unloading 2"]
    basic.unloads.run_all()
    assert (basic.events[-1], handle.servable.alive) == ("End 2", True)
    handle.release()
    basic.unloads.run_all()
    assert basic.events[-1] == "End 1"


def test_close_waits_for_handles_in_virtual_time_and_gives_up_when_it_is_over(basic, caplog) -> None:
    basic.make_ready(1)
    handle = basic.handle()
    closing = in_thread(lambda: basic.manager.close(30))
    until(lambda: basic.state(1) is S.QUIESCING and basic.clock.pending == 1)
    basic.clock.advance(29)
    assert closing.is_alive()
    basic.clock.advance(1)
    closing.join(60)
    assert not closing.is_alive()
    assert "is still in use" in caplog.text
    assert "requests inside {name: m version: 1}" in left_behind()
    assert (basic.events[-1], handle.servable.alive) == ("Unloading 1", True)
    handle.release()
    basic.unloads.run_all()
    assert (basic.events[-1], basic.state(1)) == ("End 1", S.DISABLED)
    assert "requests inside {name: m version: 1}" not in left_behind()


@pytest.mark.parametrize("threads", [0, 2])
def test_close_returns_as_soon_as_the_last_handle_is_released(make_real, threads: int) -> None:
    basic = make_real(threads)
    basic.request(1)
    basic.manager.run_pending()
    until(lambda: basic.state(1) is S.READY)
    handle = basic.handle()
    closing = in_thread(lambda: basic.manager.close(3600))
    until(lambda: basic.state(1) is S.QUIESCING)
    handle.release()
    closing.join(60)
    assert not closing.is_alive()
    assert basic.events[-2:] == ["Unloading 1", "End 1"]


def test_load_that_runs_is_waited_for_and_its_result_unloaded_unseen(make_real, caplog) -> None:
    caplog.set_level(logging.INFO)
    go_on = threading.Event()
    basic = make_real(1)
    loader = basic.request(1, FakeLoader(while_loading=go_on.wait))
    until(lambda: basic.state(1) is S.LOADING)
    closing = in_thread(lambda: basic.manager.close(3600))
    until(lambda: is_closing(basic))
    go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert "is still loading; the stop waits up to 3600 s for that" in caplog.text
    assert basic.events == ["Start 1", "Loading 1", "End 1"]
    assert (loader.loads, loader.unloads, basic.codes()) == (1, 1, ["load 1: CANCELLED"])


def test_load_that_runs_too_long_is_left_behind(make_real, caplog) -> None:
    go_on = threading.Event()
    basic = make_real(1)
    loader = basic.request(1, FakeLoader(while_loading=go_on.wait))
    until(lambda: basic.state(1) is S.LOADING)
    basic.manager.close(0)
    assert "is still loading" in caplog.text
    go_on.set()
    until(lambda: basic.state(1) is S.DISABLED)
    assert loader.unloads == 1


def test_version_that_becomes_ready_while_closing_is_unloaded_too(basic) -> None:
    basic.begin(1)

    def close_on_available(timed: object) -> None:
        if timed.event.state.value == "Available":
            closing = in_thread(lambda: basic.manager.close(0))
            until(lambda: is_closing(basic))
            closers.append(closing)

    closers: list[threading.Thread] = []
    basic.bus.subscribe(close_on_available)
    basic.loads.finish()
    for closing in closers:
        closing.join(60)
    basic.unloads.run_all()
    assert basic.events == ["Start 1", "Loading 1", "Available 1", "Unloading 1", "End 1"]


def test_close_ends_every_thread_and_disables_every_version(make_real) -> None:
    basic = make_real(4)
    for version in range(8):
        basic.manage(version)
        basic.load(version)
    until(lambda: all(basic.state(version) is S.READY for version in range(8)))
    basic.manager.close(10)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("real-")]
    assert all(basic.state(version) is S.DISABLED for version in range(8))


def test_errored_version_says_nothing_more(basic) -> None:
    basic.manager.manage_servable(ServableData.error(ID, FakeLoader().failure))
    basic.manager.close()
    assert basic.events == ["End 1"]


def test_executors_take_no_more_work(basic) -> None:
    basic.manager.close()
    assert isinstance(basic.loads, ManualExecutor)
    basic.loads.submit(object())
    basic.unloads.submit(object())
    assert (basic.loads.queued, basic.unloads.queued) == ([], [])
