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


class MonitorFixture:
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
def fixture() -> MonitorFixture:
    return MonitorFixture()


# What is known.


def test_nothing_is_known_before_anything_was_said(fixture: MonitorFixture) -> None:
    assert fixture.monitor.get_state(ServableId("m", 1)) is None
    assert fixture.monitor.get_version_states("m") == {}
    assert fixture.monitor.get_all_servable_states() == {}


def test_last_event_of_a_version_counts_and_has_its_time(fixture: MonitorFixture) -> None:
    fixture.say(1, M.START)
    last = fixture.say(1, M.LOADING)
    assert fixture.monitor.get_state(ServableId("m", 1)) == last
    assert fixture.monitor.get_version_states("m")[1].time == 1.0


def test_versions_come_highest_first(fixture: MonitorFixture) -> None:
    for version in (9, 11, 10):
        fixture.say(version, M.START)
    assert list(fixture.states()) == [11, 10, 9]
    assert list(fixture.monitor.get_all_servable_states()["m"]) == [11, 10, 9]


def test_ended_versions_are_bounded_per_name_and_the_oldest_end_goes_first() -> None:
    fixture = MonitorFixture(max_ended_versions=2)
    fixture.say(9, M.AVAILABLE)
    for version in (3, 1, 2):
        fixture.say(version, M.END)
    fixture.say(1, M.END, name="b")
    assert fixture.states() == {9: M.AVAILABLE, 2: M.END, 1: M.END}
    assert fixture.states("b") == {1: M.END}


def test_version_that_ends_again_counts_as_ended_last() -> None:
    fixture = MonitorFixture(max_ended_versions=2)
    for version in (1, 2, 1, 3):
        fixture.say(version, M.END)
    assert fixture.states() == {3: M.END, 1: M.END}


def test_names_without_a_live_version_are_bounded_and_the_first_to_end_goes_first() -> None:
    fixture = MonitorFixture(max_ended_names=2)
    fixture.say(1, M.AVAILABLE, name="alive")
    for name in ("a", "b", "a", "c"):
        fixture.say(1, M.END, name=name)
    assert list(fixture.monitor.get_all_servable_states()) == ["alive", "a", "c"]


def test_name_that_came_back_to_life_is_kept_until_it_ends_again() -> None:
    fixture = MonitorFixture(max_ended_names=1)
    fixture.say(1, M.END, name="a")
    fixture.say(2, M.START, WAITING, name="a")
    for name in ("b", "c"):
        fixture.say(1, M.END, name=name)
    assert set(fixture.monitor.get_all_servable_states()) == {"a", "c"}
    fixture.say(2, M.END, name="a")
    assert set(fixture.monitor.get_all_servable_states()) == {"a"}


# Not accepted yet.


def test_version_whose_files_are_arriving_shows_why_it_waits(fixture: MonitorFixture) -> None:
    fixture.say(1, M.START, WAITING)
    assert fixture.monitor.get_state(ServableId("m", 1)).health == WAITING


@pytest.mark.parametrize("state", [M.START, M.LOADING, M.AVAILABLE, M.UNLOADING])
def test_arriving_files_never_hide_what_the_manager_works_on(fixture: MonitorFixture, state: ManagerState) -> None:
    fixture.say(1, state)
    fixture.say(1, M.START, WAITING)
    assert fixture.states() == {1: state}
    assert fixture.monitor.get_state(ServableId("m", 1)).health.ok


def test_arriving_files_replace_an_end_and_an_older_reason(fixture: MonitorFixture) -> None:
    fixture.say(1, M.END, FAILED)
    fixture.say(1, M.START, WAITING)
    newer = fixture.say(1, M.START, Status(StatusCode.UNAVAILABLE, "waiting for 1 file"))
    assert fixture.monitor.get_state(ServableId("m", 1)) == newer
    fixture.say(1, M.START)
    assert fixture.monitor.get_state(ServableId("m", 1)).health.ok


# Subscribers.


def test_subscriber_sees_each_event_when_queries_show_it(fixture: MonitorFixture) -> None:
    seen = []
    subscription = fixture.monitor.subscribe(lambda timed: seen.append((timed.state.state, fixture.states())))
    fixture.say(1, M.START)
    fixture.say(1, M.LOADING)
    subscription.close()
    fixture.say(1, M.AVAILABLE)
    assert seen == [(M.START, {1: M.START}), (M.LOADING, {1: M.LOADING})]


def test_subscriber_that_raises_does_not_disturb_the_others(fixture: MonitorFixture, caplog) -> None:
    def broken(timed: object) -> None:
        raise RuntimeError("mine")

    seen = []
    fixture.monitor.subscribe(broken)
    fixture.monitor.subscribe(seen.append)
    fixture.say(1, M.START)
    assert len(seen) == 1
    assert "subscriber of the state monitor failed" in caplog.text


def test_closed_monitor_keeps_what_it_knows_and_hears_nothing(fixture: MonitorFixture) -> None:
    fixture.say(1, M.START)
    fixture.monitor.close()
    fixture.say(1, M.LOADING)
    assert fixture.states() == {1: M.START}
