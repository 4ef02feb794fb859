"""What the state monitor remembers of each version."""

from __future__ import annotations

import pytest

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.testing.lifecycle.clock import VirtualClock

M = ManagerState
FAILED = Status(StatusCode.UNAVAILABLE, "broken")
WAITING = Status(StatusCode.UNAVAILABLE, "waiting for 2 files")


class Wire:
    """A bus with a monitor."""

    def __init__(self, **options: int) -> None:
        self.clock = VirtualClock(0)
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(self.bus, **options)

    def say(self, version: int, state: ManagerState, health: Status = OK, name: str = "m") -> ServableState:
        event = ServableState(ServableId(name, version), state, health)
        self.bus.publish(event)
        self.clock.advance(1)
        return event

    def states(self, name: str = "m") -> dict[int, ManagerState]:
        return {version: timed.state.state for version, timed in self.monitor.get_version_states(name).items()}


@pytest.fixture
def wire() -> Wire:
    return Wire()


# What is known.


def test_nothing_is_known_before_anything_was_said(wire: Wire) -> None:
    assert wire.monitor.get_state(ServableId("m", 1)) is None
    assert wire.monitor.get_version_states("m") == {}
    assert wire.monitor.get_all_servable_states() == {}


def test_last_event_of_a_version_counts_and_has_its_time(wire: Wire) -> None:
    wire.say(1, M.START)
    last = wire.say(1, M.LOADING)
    assert wire.monitor.get_state(ServableId("m", 1)) == last
    assert wire.monitor.get_version_states("m")[1].time == 1.0


def test_versions_come_highest_first(wire: Wire) -> None:
    for version in (9, 11, 10):
        wire.say(version, M.START)
    assert list(wire.states()) == [11, 10, 9]
    assert list(wire.monitor.get_all_servable_states()["m"]) == [11, 10, 9]


def test_ended_versions_are_bounded_per_name_and_the_oldest_end_goes_first() -> None:
    wire = Wire(max_ended_versions=2)
    wire.say(9, M.AVAILABLE)
    for version in (3, 1, 2):
        wire.say(version, M.END)
    wire.say(1, M.END, name="b")
    assert wire.states() == {9: M.AVAILABLE, 2: M.END, 1: M.END}
    assert wire.states("b") == {1: M.END}


def test_version_that_ends_again_counts_as_ended_last() -> None:
    wire = Wire(max_ended_versions=2)
    for version in (1, 2, 1, 3):
        wire.say(version, M.END)
    assert wire.states() == {3: M.END, 1: M.END}


def test_names_without_a_live_version_are_bounded_and_the_first_to_end_goes_first() -> None:
    wire = Wire(max_ended_names=2)
    wire.say(1, M.AVAILABLE, name="alive")
    for name in ("a", "b", "a", "c"):
        wire.say(1, M.END, name=name)
    assert list(wire.monitor.get_all_servable_states()) == ["alive", "a", "c"]


def test_name_that_came_back_to_life_is_kept_until_it_ends_again() -> None:
    wire = Wire(max_ended_names=1)
    wire.say(1, M.END, name="a")
    wire.say(2, M.START, WAITING, name="a")
    for name in ("b", "c"):
        wire.say(1, M.END, name=name)
    assert set(wire.monitor.get_all_servable_states()) == {"a", "c"}
    wire.say(2, M.END, name="a")
    assert set(wire.monitor.get_all_servable_states()) == {"a"}


# Not accepted yet.


def test_version_whose_files_are_arriving_shows_why_it_waits(wire: Wire) -> None:
    wire.say(1, M.START, WAITING)
    assert wire.monitor.get_state(ServableId("m", 1)).health == WAITING


@pytest.mark.parametrize("state", [M.START, M.LOADING, M.AVAILABLE, M.UNLOADING])
def test_arriving_files_never_hide_what_the_manager_works_on(wire: Wire, state: ManagerState) -> None:
    wire.say(1, state)
    wire.say(1, M.START, WAITING)
    assert wire.states() == {1: state}
    assert wire.monitor.get_state(ServableId("m", 1)).health.ok


def test_arriving_files_replace_an_end_and_an_older_reason(wire: Wire) -> None:
    wire.say(1, M.END, FAILED)
    wire.say(1, M.START, WAITING)
    newer = wire.say(1, M.START, Status(StatusCode.UNAVAILABLE, "waiting for 1 file"))
    assert wire.monitor.get_state(ServableId("m", 1)) == newer
    wire.say(1, M.START)
    assert wire.monitor.get_state(ServableId("m", 1)).health.ok


# Subscribers.


def test_subscriber_sees_each_event_when_queries_show_it(wire: Wire) -> None:
    seen = []
    subscription = wire.monitor.subscribe(lambda timed: seen.append((timed.state.state, wire.states())))
    wire.say(1, M.START)
    wire.say(1, M.LOADING)
    subscription.close()
    wire.say(1, M.AVAILABLE)
    assert seen == [(M.START, {1: M.START}), (M.LOADING, {1: M.LOADING})]


def test_subscriber_that_raises_disturbs_nobody(wire: Wire, caplog) -> None:
    def broken(timed: object) -> None:
        raise RuntimeError("mine")

    seen = []
    wire.monitor.subscribe(broken)
    wire.monitor.subscribe(seen.append)
    wire.say(1, M.START)
    assert len(seen) == 1
    assert "subscriber of the state monitor failed" in caplog.text


def test_closed_monitor_keeps_what_it_knows_and_hears_nothing(wire: Wire) -> None:
    wire.say(1, M.START)
    wire.monitor.close()
    wire.say(1, M.LOADING)
    assert wire.states() == {1: M.START}
